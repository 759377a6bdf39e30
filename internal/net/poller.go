package net

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// poller waits in one goroutine for the sockets of all sandboxes without a stack.
type poller struct{ epoll int }

func newPoller() (*poller, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("wait for frame sockets: %w", err)
	}
	return &poller{epoll}, nil
}

func (p *poller) add(fd int) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP, Fd: int32(fd)}
	return unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &event)
}

// remove removes a descriptor from the poller. An event for the descriptor may still be delivered
// afterwards.
func (p *poller) remove(fd int) { _ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, fd, nil) }

// run calls ready(fd) for every descriptor that is readable or whose peer has hung up. It repeats
// the call until the descriptor is removed.
func (p *poller) run(ready func(fd int)) {
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(p.epoll, events, -1)
		if err != nil && err != unix.EINTR {
			fmt.Fprintf(os.Stderr, "forkd-net: wait for frame sockets: %v\n", err)
			return
		}
		for _, event := range events[:max(n, 0)] {
			ready(int(event.Fd))
		}
	}
}
