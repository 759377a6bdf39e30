package kvm

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Notice is a packet that tells that all vCPUs are about to enter their guests. The last of their
// threads to pass a gate sends it. Whoever opened the gate could do so only when the kernel lets it
// run again, which may be after the guest's first exit: a thread that is woken often takes the
// processor of the one that has woken it.
type Notice struct {
	fd   int
	msg  unix.Msghdr
	iov  unix.Iovec
	left uint32 // threads that have not passed yet
	sent bool
}

// NewNotice returns a notice that is sent through a socket in non-blocking mode, which must stay
// open until all threads have passed.
func NewNotice(fd int, packet []byte) *Notice {
	n := &Notice{fd: fd, iov: unix.Iovec{Base: unsafe.SliceData(packet), Len: uint64(len(packet))}}
	n.msg = unix.Msghdr{Iov: &n.iov, Iovlen: 1}
	return n
}

// Sent reports whether the packet has been sent; of no notice it has not. It is valid after
// Gate.WaitPassed.
func (n *Notice) Sent() bool { return n != nil && n.sent }

// passed is called by each thread that passes. See VCPU.enter for what it must not do.
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
