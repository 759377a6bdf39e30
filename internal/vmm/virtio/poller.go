package virtio

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/rawcall"
)

// Poller waits for many descriptors in one goroutine. It has an epoll descriptor, and only that
// descriptor is in the Go runtime's poller, so waiting occupies no thread. If all descriptors were
// in the runtime's poller, every event would wake the process, even events that the device does not
// wait for. Add, Change and Remove may be called during Wait.
type Poller struct {
	file *os.File
	raw  syscall.RawConn
	fd   int

	events [32]unix.EpollEvent
	n      int
	err    error
	try    func(uintptr) bool // method value, created once so that Wait allocates nothing
}

// NewPoller returns a poller without descriptors.
func NewPoller() (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	// os.NewFile uses the runtime's poller only if the descriptor is non-blocking. epoll itself
	// ignores the flag.
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("epoll: %w", err)
	}
	p := &Poller{file: os.NewFile(uintptr(fd), "epoll"), fd: fd}
	if p.raw, err = p.file.SyscallConn(); err != nil {
		_ = p.file.Close()
		return nil, fmt.Errorf("epoll: %w", err)
	}
	p.try = p.poll
	return p, nil
}

// poll collects events. If there are none, it returns false, and the runtime calls it again when
// there are some.
func (p *Poller) poll(fd uintptr) bool {
	p.n, p.err = rawcall.EpollWait(int(fd), p.events[:])
	return p.n != 0 || p.err != nil
}

// Wait waits until there are events, and returns them. The slice is valid until the next Wait.
// After Close, Wait returns an error.
func (p *Poller) Wait() ([]unix.EpollEvent, error) {
	if err := p.raw.Read(p.try); err != nil {
		return nil, err
	}
	if p.err != nil {
		return nil, p.err
	}
	return p.events[:p.n], nil
}

// Add makes Wait report the given events of fd, such as EPOLLIN. The events contain the tag in the
// field Pad. If the descriptor is closed and its number is used again, the tag shows whether an
// event belongs to the old or to the new descriptor.
func (p *Poller) Add(fd int, events uint32, tag int32) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(fd), Pad: tag}
	if err := rawcall.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("poll descriptor %d: %w", fd, err)
	}
	return nil
}

// Change replaces the events and the tag of a descriptor that was added before. It cannot fail.
func (p *Poller) Change(fd int, events uint32, tag int32) {
	ev := unix.EpollEvent{Events: events, Fd: int32(fd), Pad: tag}
	_ = rawcall.EpollCtl(p.fd, unix.EPOLL_CTL_MOD, fd, &ev)
}

func (p *Poller) Remove(fd int) { _ = rawcall.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, fd, nil) }

// Close ends Wait.
func (p *Poller) Close() error { return p.file.Close() }
