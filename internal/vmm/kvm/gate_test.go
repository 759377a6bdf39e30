package kvm

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// Threads pass a gate only while it is open, and wait again after it is shut. WaitPassed returns
// when all threads have passed.
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
		g.Open(threads, nil)
		g.WaitPassed(threads)
		g.Shut()
		threadsDone.Wait()
	}
}

// The last thread to pass sends the notice, once. Sent then reports whether the send has succeeded.
func TestNotice(t *testing.T) {
	const threads = 4
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	pass := func() *Notice {
		var g Gate
		var threadsDone sync.WaitGroup
		for range threads {
			threadsDone.Go(func() {
				runtime.LockOSThread()
				passLikeVCPU(&g)
			})
		}
		g.WaitArrived(threads)
		n := NewNotice(ends[0], []byte("entered"))
		g.Open(threads, n)
		g.WaitPassed(threads)
		threadsDone.Wait()
		return n
	}
	for range 20 {
		if !pass().Sent() {
			t.Fatal("it was not sent")
		}
		p := make([]byte, 100)
		if n, err := unix.Read(ends[1], p); err != nil || string(p[:n]) != "entered" {
			t.Fatalf("received %q, %v", p[:max(n, 0)], err)
		}
		if _, err := unix.Read(ends[1], p); err != unix.EAGAIN {
			t.Fatalf("another packet: %v", err)
		}
	}
	unix.Close(ends[1])
	if pass().Sent() {
		t.Error("sent to nobody")
	}
	var none *Notice
	if none.Sent() {
		t.Error("nothing was sent")
	}
}

// passLikeVCPU passes a gate as VCPU.RunAt does.
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
