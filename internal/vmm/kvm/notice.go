package kvm

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Notice is a packet that tells another process that all vCPUs are about to enter their guests. The
// last vCPU thread that passes a gate sends the packet. If the thread that opens the gate sent it,
// the packet could be late: the woken threads often take the CPU of this thread, and it then runs
// again only after the guest's first exit.
type Notice struct {
	fd   int
	msg  unix.Msghdr
	iov  unix.Iovec
	left uint32 // number of threads that have not passed yet
	sent bool
}

// NewNotice returns a notice that is sent on fd, a non-blocking socket. The socket must stay open
// until all threads have passed the gate.
func NewNotice(fd int, packet []byte) *Notice {
	n := &Notice{fd: fd, iov: unix.Iovec{Base: unsafe.SliceData(packet), Len: uint64(len(packet))}}
	n.msg = unix.Msghdr{Iov: &n.iov, Iovlen: 1}
	return n
}

// Sent reports whether the packet was sent. It returns false for a nil notice. Call Sent only after
// Gate.WaitPassed has returned.
func (n *Notice) Sent() bool { return n != nil && n.sent }

// passed is called by each thread that passes the gate. The restrictions of VCPU.enter apply to
// passed too.
//
//go:nosplit
//go:norace
func (n *Notice) passed() {
	if n == nil || atomic.AddUint32(&n.left, ^uint32(0)) != 0 {
		return
	}
	_, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(n.fd), uintptr(unsafe.Pointer(&n.msg)), unix.MSG_NOSIGNAL)
	n.sent = errno == 0
}
