package kvm

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Gate lets vCPUs into their guests together. A thread that waits at one holds no processor of the
// Go scheduler, and goes on into the guest without one: a child's first entry waits for nobody but
// the kernel. A new gate is shut.
//
// The order is: threads wait, WaitArrived, Open, WaitPassed, Shut, and again from the start.
type Gate struct {
	open    uint32 // 1 or 0
	arrived uint32 // threads that have come since it was last opened
	passed  uint32 // threads that have passed since then
	asked   uint32 // 1 while somebody may wait for one of these two to grow

	notice *Notice // nil: none
}

// WaitArrived returns when n threads wait, and none of them holds a processor of the Go scheduler.
func (g *Gate) WaitArrived(n int) {
	g.waitFor(&g.arrived, uint32(n), waitInGo)
}

// Open lets all pass who wait or come, and wakes them. The notice, if it is not nil, is sent by the
// last of the n threads that wait.
func (g *Gate) Open(n int, notice *Notice) {
	if notice != nil {
		notice.left = uint32(n)
	}
	g.notice = notice
	atomic.StoreUint32(&g.arrived, 0)
	atomic.StoreUint32(&g.passed, 0)
	atomic.StoreUint32(&g.open, 1)
	futex(&g.open, futexWake, futexAll)
}

// WaitPassed returns when n threads have passed. They are awake and need nothing of this process
// for it, so that the Go runtime is not told of the waiting.
func (g *Gate) WaitPassed(n int) {
	wait := waitRaw
	if serveNone {
		wait = waitInGo
	}
	g.waitFor(&g.passed, uint32(n), wait)
}

// Shut holds back who comes from now on.
func (g *Gate) Shut() { atomic.StoreUint32(&g.open, 0) }

// waitFor returns when a count has grown to n.
func (g *Gate) waitFor(count *uint32, n uint32, wait func(word *uint32, value uint32)) {
	atomic.StoreUint32(&g.asked, 1)
	for {
		now := atomic.LoadUint32(count)
		if now >= n {
			break
		}
		wait(count, now)
	}
	atomic.StoreUint32(&g.asked, 0)
}

// pass waits until the gate is open. See VCPU.enter for what it must not do.
//
//go:nosplit
//go:norace
func (g *Gate) pass() {
	g.add(&g.arrived)
	for atomic.LoadUint32(&g.open) == 0 {
		futex(&g.open, futexWait, 0)
	}
	g.notice.passed()
	g.add(&g.passed)
}

// passInGo is pass for a thread that has a processor of the Go scheduler.
func (g *Gate) passInGo() {
	g.add(&g.arrived)
	for atomic.LoadUint32(&g.open) == 0 {
		waitInGo(&g.open, 0)
	}
	g.notice.passed()
	g.add(&g.passed)
}

// add counts a thread.
//
//go:nosplit
//go:norace
func (g *Gate) add(count *uint32) {
	atomic.AddUint32(count, 1)
	if atomic.LoadUint32(&g.asked) != 0 {
		futex(count, futexWake, futexAll)
	}
}

// Operations of futex(2) on words that other processes do not have (include/uapi/linux/futex.h).
const (
	futexWait = 0 | 128 // FUTEX_WAIT_PRIVATE
	futexWake = 1 | 128 // FUTEX_WAKE_PRIVATE
	futexAll  = 1<<31 - 1
)

// futex returns nothing: who has waited looks at the word again, whatever woke it.
//
//go:nosplit
//go:norace
func futex(word *uint32, op uintptr, value uint32) {
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), op, uintptr(value), 0, 0, 0)
}

// waitRaw waits while the word has the value, or for less.
func waitRaw(word *uint32, value uint32) { futex(word, futexWait, value) }

// waitInGo is waitRaw in a call of which the Go runtime is told.
func waitInGo(word *uint32, value uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(value), 0, 0, 0)
}
