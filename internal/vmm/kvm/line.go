package kvm

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Line is an input of a VM's interrupt controllers.
//
// An eventfd that KVM makes an interrupt (irqfd) would do, too; but KVM has a thread of the kernel
// deliver that, unless the interrupt is a message, and a restore waits for KVM to learn of one.
type Line struct {
	vm  int
	gsi uint32
	mu  sync.Mutex // an edge that comes while the line is up is none
}

// Line returns the input number gsi.
func (v *VM) Line(gsi uint32) *Line { return &Line{vm: v.fd, gsi: gsi} }

// Raise raises an edge. It does not wait, and is no call of which the Go runtime is told (see
// package rawcall).
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
