package virtio

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/rawcall"
)

// Poller waits for many descriptors in one goroutine. Its epoll descriptor is itself in the
// runtime's poller, so waiting occupies no thread. (If the descriptors were in the runtime's poller
// themselves, every event would wake the process, wanted or not.) Add, Change and Remove may be
// called during Wait.
type Poller struct {
	file *os.File
	raw  syscall.RawConn
	fd   int

	events [32]unix.EpollEvent
	n      int
	err    error
	try    func(uintptr) bool // created once, so that Wait allocates nothing
}

// NewPoller returns a poller that waits for nothing yet.
func NewPoller() (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	// A non-blocking descriptor makes os.NewFile use the runtime's poller. epoll itself ignores the
	// flag.
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

// poll collects events and reports whether there are any. If not, the runtime calls it again later.
func (p *Poller) poll(fd uintptr) bool {
	p.n, p.err = rawcall.EpollWait(int(fd), p.events[:])
	return p.n != 0 || p.err != nil
}

// Wait returns the next events, which are valid until the next Wait, or an error after Close.
func (p *Poller) Wait() ([]unix.EpollEvent, error) {
	if err := p.raw.Read(p.try); err != nil {
		return nil, err
	}
	if p.err != nil {
		return nil, p.err
	}
	return p.events[:p.n], nil
}

// Add adds events of fd, such as EPOLLIN, to those that Wait waits for.
func (p *Poller) Add(fd int, events uint32) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(fd)}
	if err := rawcall.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("poll descriptor %d: %w", fd, err)
	}
	return nil
}

// Change replaces the events of an added descriptor, which cannot fail.
func (p *Poller) Change(fd int, events uint32) {
	ev := unix.EpollEvent{Events: events, Fd: int32(fd)}
	_ = rawcall.EpollCtl(p.fd, unix.EPOLL_CTL_MOD, fd, &ev)
}

// Remove reverses Add.
func (p *Poller) Remove(fd int) { _ = rawcall.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, fd, nil) }

// Close ends Wait.
func (p *Poller) Close() error { return p.file.Close() }
