package kvm

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Line is an input of a VM's interrupt controllers.
//
// It is raised by an ioctl and not by an eventfd (irqfd), for two reasons. KVM delivers an irqfd's
// interrupt in a kernel thread, unless the interrupt is a message. And with an irqfd, a restore
// would have to wait until KVM has registered the irqfd.
type Line struct {
	vm  int
	gsi uint32
	// held while the line is up; if two threads raised the line at the same time, one interrupt
	// would be lost
	mu sync.Mutex
}

// Line returns the input with the number gsi.
func (v *VM) Line(gsi uint32) *Line { return &Line{vm: v.fd, gsi: gsi} }

// Raise raises the line and lowers it again, which is one edge for the controllers. It does not
// block, and does not inform the Go runtime (see package rawcall).
func (l *Line) Raise() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, level := range [...]uint32{1, 0} {
		s := irqLevel{Irq: l.gsi, Level: level}
		_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(l.vm), ioIRQLine, uintptr(unsafe.Pointer(&s)))
		if errno != 0 {
			return fmt.Errorf("raise GSI %d: %w", l.gsi, errno)
		}
	}
	return nil
}
