package kvm

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// Threads pass a gate when it is open and not before, as often as it is opened, and whoever opens
// it learns that all have.
func TestGate(t *testing.T) {
	const threads, rounds = 4, 50
	var g Gate
	for range rounds {
		var opened atomic.Bool
		var threadsDone sync.WaitGroup
		for range threads {
			threadsDone.Go(func() {
				runtime.LockOSThread()
				passLikeVCPU(&g)
				if !opened.Load() {
					t.Error("passed before the gate was open")
				}
			})
		}
		g.WaitArrived(threads)
		opened.Store(true)
		g.Open()
		g.WaitPassed(threads)
		g.Shut()
		threadsDone.Wait()
	}
}

// passLikeVCPU passes as VCPU.RunAt does.
//
//go:nosplit
//go:norace
func passLikeVCPU(g *Gate) {
	if serveNone {
		g.passInGo()
		return
	}
	enterSyscallBlock()
	g.pass()
	exitSyscall()
}
