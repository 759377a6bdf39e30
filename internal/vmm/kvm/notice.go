package kvm

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Notice is a packet that tells another process that all vCPUs are about to enter their guests. The
// last vCPU thread that passes a gate sends the packet. If the thread that opens the gate sent it,
// the packet could be late, because the woken threads often take the CPU of the opening thread.
// That thread would then run again only after the guest's first exit.
type Notice struct {
	fd     int
	packet []byte
	left   uint32 // number of threads that have not passed yet
	sent   bool
}

// NewNotice returns a notice that is sent on fd, a non-blocking socket. The socket must stay open
// until all threads have passed the gate.
func NewNotice(fd int, packet []byte) *Notice {
	return &Notice{fd: fd, packet: packet}
}

// Sent reports whether the packet was sent. It returns false for a nil notice. Call Sent only after
// Gate.WaitPassed has returned.
func (n *Notice) Sent() bool { return n != nil && n.sent }

// passed is called by each thread that passes the gate. The restrictions of VCPU.enter also apply
// here.
//
//go:nosplit
//go:norace
func (n *Notice) passed() {
	if n == nil || atomic.AddUint32(&n.left, ^uint32(0)) != 0 {
		return
	}
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(n.fd), uintptr(unsafe.Pointer(unsafe.SliceData(n.packet))),
		uintptr(len(n.packet)), unix.MSG_NOSIGNAL, 0, 0)
	n.sent = errno == 0
}
