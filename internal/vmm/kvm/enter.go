package kvm

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Register is one of a device, four bytes wide, that a vCPU's thread serves by itself: an exit to
// Go code has to wait for a processor of the Go scheduler, and wakes the runtime's monitor thread,
// which then keeps interrupting the vCPU for as long as it looks around.
type Register struct {
	GPA   uint64
	Word  *atomic.Uint32 // what a load returns
	Clear bool           // it is not loaded from, but written to: bits written are cleared in Word
}

// enter calls KVM_RUN until there is an exit that wants Go code, or an error; first it waits at the
// gate, if there is one. With block it gives the processor of the Go scheduler away before, because
// a vCPU may stay in its guest for hours. In an ordinary system call the runtime takes the
// processor back by itself, but only after up to 10 ms, through which its monitor thread wakes up
// all the time.
//
// Between the calls of the runtime nothing may run that could grow the stack, allocate, or write a
// pointer: the goroutine has no processor, and the collector may be at work.
//
//go:nosplit
//go:norace
func (c *VCPU) enter(block bool, gate *Gate) unix.Errno {
	if block {
		enterSyscallBlock()
	} else {
		enterSyscall()
	}
	if gate != nil {
		gate.pass()
	}
	var errno unix.Errno
	for {
		if _, _, errno = unix.RawSyscall(unix.SYS_IOCTL, uintptr(c.fd), ioRun, 0); errno != 0 || !c.serveRegister() {
			break
		}
	}
	exitSyscall()
	return errno
}

// serveRegister carries out the exit if it is an access to one of the registers, and reports
// whether it was one. See enter for what it must not do.
//
//go:nosplit
//go:norace
func (c *VCPU) serveRegister() bool {
	if serveNone || c.head.Exit_reason != ExitMMIO || c.head.Flags != 0 {
		return false
	}
	e := (*mmioExit)(unsafe.Pointer(&c.head.Exit))
	data := (*uint32)(unsafe.Pointer(&e.Data))
	for i := range c.registers {
		r := &c.registers[i]
		if e.Phys_addr != r.GPA || e.Len != 4 || (e.Is_write != 0) != r.Clear {
			continue
		}
		word := (*uint32)(unsafe.Pointer(r.Word)) // not by its methods, which a compiler need not inline
		if r.Clear {
			atomic.AndUint32(word, ^*data)
		} else {
			*data = atomic.LoadUint32(word)
		}
		atomic.AddUint64(&c.served, 1)
		return true
	}
	return false
}

// What the runtime calls before and after system calls; it keeps them for packages outside it
// (go.dev/issue/67401). enterSyscallBlock gives the processor of the Go scheduler away.

//go:linkname enterSyscall runtime.entersyscall
func enterSyscall()

//go:linkname enterSyscallBlock runtime.entersyscallblock
func enterSyscallBlock()

//go:linkname exitSyscall runtime.exitsyscall
func exitSyscall()
