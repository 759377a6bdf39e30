package vsock

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// poller waits for many descriptors in one goroutine: an epoll descriptor that is itself in the runtime's poller, so
// that waiting occupies no thread. add, change and remove may be called while wait waits.
type poller struct {
	file *os.File
	raw  syscall.RawConn
	fd   int

	events [32]unix.EpollEvent
	n      int
	err    error
	try    func(uintptr) bool // made once: wait allocates nothing
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	// Non-blocking makes os.NewFile put it into the runtime's poller; epoll itself does not care.
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("epoll: %w", err)
	}
	p := &poller{file: os.NewFile(uintptr(fd), "epoll"), fd: fd}
	if p.raw, err = p.file.SyscallConn(); err != nil {
		_ = p.file.Close()
		return nil, fmt.Errorf("epoll: %w", err)
	}
	p.try = p.poll
	return p, nil
}

// poll collects events and reports whether there are any; if not, the runtime calls it again when there are.
func (p *poller) poll(fd uintptr) bool {
	for {
		if p.n, p.err = unix.EpollWait(int(fd), p.events[:], 0); p.err != unix.EINTR {
			return p.n != 0
		}
	}
}

// wait returns the next events, which are valid until the next wait, or an error after close.
func (p *poller) wait() ([]unix.EpollEvent, error) {
	if err := p.raw.Read(p.try); err != nil {
		return nil, err
	}
	if p.err != nil {
		return nil, p.err
	}
	return p.events[:p.n], nil
}

func (p *poller) add(fd int, events uint32) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(fd)}
	if err := unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("poll descriptor %d: %w", fd, err)
	}
	return nil
}

// change and remove of a descriptor that was added cannot fail.
func (p *poller) change(fd int, events uint32) {
	ev := unix.EpollEvent{Events: events, Fd: int32(fd)}
	_ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_MOD, fd, &ev)
}

func (p *poller) remove(fd int) { _ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, fd, nil) }

func (p *poller) close() error { return p.file.Close() }
