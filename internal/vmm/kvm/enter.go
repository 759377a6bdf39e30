package kvm

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Register is a device register of four bytes. Run handles guest accesses to it in the vCPU's
// thread, without Go code. For any other exit, the thread must wait for a processor (P) of the Go
// scheduler. The thread also wakes the runtime's monitor thread, which then keeps interrupting the
// vCPU for some time.
type Register struct {
	GPA   uint64
	Word  *atomic.Uint32 // value that a load returns
	Clear bool           // whether the register is write-only; a store then clears the stored bits in Word
}

// enter calls KVM_RUN until an exit needs Go code or KVM_RUN fails. If gate is not nil, enter first
// waits at the gate.
//
// If block is set, enter gives up its processor (P) of the Go scheduler at once, because a vCPU may
// run its guest for hours. In an ordinary system call, the runtime takes the processor back only
// after up to 10 ms, and its monitor thread keeps waking up until then.
//
// Code between enterSyscall and exitSyscall must not grow the stack, allocate, or write a pointer:
// the goroutine has no processor then, and the garbage collector may be running.
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

// If the latest exit is an access to one of the registers, serveRegister handles the exit and
// returns true. If not, it returns false. The restrictions of enter apply to serveRegister too.
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
		word := (*uint32)(unsafe.Pointer(r.Word)) // the methods of r.Word might not be inlined
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

// Functions of the Go runtime that are called before and after a system call. The runtime keeps
// them available to other packages (go.dev/issue/67401). enterSyscallBlock gives up the processor
// of the Go scheduler.

//go:linkname enterSyscall runtime.entersyscall
func enterSyscall()

//go:linkname enterSyscallBlock runtime.entersyscallblock
func enterSyscallBlock()

//go:linkname exitSyscall runtime.exitsyscall
func exitSyscall()
