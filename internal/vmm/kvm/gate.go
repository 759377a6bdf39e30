package kvm

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Gate lets the threads of several vCPUs enter their guests at the same time. A thread that waits
// at a gate holds no processor of the Go scheduler, and needs none to enter the guest. So when the
// gate opens, only the kernel delays a guest's first instruction. A new gate is shut.
//
// In one cycle of a gate, the threads of vCPUs arrive and wait. Another thread calls WaitArrived,
// Open, WaitPassed and Shut, in this order.
type Gate struct {
	open    uint32 // 1 if the gate is open, otherwise 0
	arrived uint32 // number of threads that have arrived since the gate was last opened
	passed  uint32 // number of threads that have passed since the gate was last opened
	asked   uint32 // 1 while a thread may be waiting for arrived or passed to grow

	notice *Notice // sent by the last thread to pass; may be nil
}

// WaitArrived waits until n threads are waiting at the gate, without their processors of the Go
// scheduler.
func (g *Gate) WaitArrived(n int) {
	g.waitFor(&g.arrived, uint32(n), waitInGo)
}

// Open opens the gate and wakes the n waiting threads. If notice is not nil, the last thread to
// pass sends it.
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

// WaitPassed waits until n threads have passed. It blocks without informing the Go runtime, because
// the threads are already awake and pass without any further help.
func (g *Gate) WaitPassed(n int) {
	wait := waitRaw
	if serveNone {
		wait = waitInGo
	}
	g.waitFor(&g.passed, uint32(n), wait)
}

// Shut shuts the gate: threads that arrive from now on wait.
func (g *Gate) Shut() { atomic.StoreUint32(&g.open, 0) }

// waitFor waits until *count is at least n. It calls wait(word, value), which blocks while *word
// equals value.
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

// pass waits until the gate is open. The restrictions of VCPU.enter also apply to it.
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

// passInGo is like pass, for a thread that holds a processor of the Go scheduler.
func (g *Gate) passInGo() {
	g.add(&g.arrived)
	for atomic.LoadUint32(&g.open) == 0 {
		waitInGo(&g.open, 0)
	}
	g.notice.passed()
	g.add(&g.passed)
}

// add counts one more thread in *count, and wakes the goroutine that waits for this count.
//
//go:nosplit
//go:norace
func (g *Gate) add(count *uint32) {
	atomic.AddUint32(count, 1)
	if atomic.LoadUint32(&g.asked) != 0 {
		futex(count, futexWake, futexAll)
	}
}

// Operations of futex(2) on words that are private to this process (include/uapi/linux/futex.h).
const (
	futexWait = 0 | 128 // FUTEX_WAIT_PRIVATE
	futexWake = 1 | 128 // FUTEX_WAKE_PRIVATE
	futexAll  = 1<<31 - 1
)

// futex makes the system call futex(2). It returns no error, because a waiter checks the word again
// in any case.
//
//go:nosplit
//go:norace
func futex(word *uint32, op uintptr, value uint32) {
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), op, uintptr(value), 0, 0, 0)
}

// waitRaw waits while *word equals value. It may return too early.
func waitRaw(word *uint32, value uint32) { futex(word, futexWait, value) }

// waitInGo is like waitRaw, but informs the Go runtime of the system call.
func waitInGo(word *uint32, value uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(value), 0, 0, 0)
}
