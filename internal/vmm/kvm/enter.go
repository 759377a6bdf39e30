package kvm

import (
	_ "unsafe" // for go:linkname

	"golang.org/x/sys/unix"
)

// enter calls KVM_RUN. It gives the processor of the Go scheduler away before, because a vCPU may
// stay in its guest for hours. In an ordinary system call the runtime takes the processor back by
// itself, but only after up to 10 ms, through which its monitor thread wakes up all the time.
//
//go:nosplit
func enter(vcpu uintptr) unix.Errno {
	enterSyscallBlock()
	_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, vcpu, ioRun, 0)
	exitSyscall()
	return errno
}

// enterSyscallBlock says that this goroutine will be in a system call for long, exitSyscall that it
// has come back. The runtime keeps both for packages outside it (go.dev/issue/67401). Between
// them nothing may run that could grow the stack.
//
//go:linkname enterSyscallBlock runtime.entersyscallblock
func enterSyscallBlock()

//go:linkname exitSyscall runtime.exitsyscall
func exitSyscall()
