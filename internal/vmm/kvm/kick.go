package kvm

import "golang.org/x/sys/unix"

// kickSignal interrupts a thread in Run. The Go runtime has a handler for every real-time signal.
// Unless a program uses os/signal, the handler does nothing, so the only effect is that the system
// call returns. Signals 34 and below are used by libc and the runtime.
const kickSignal = unix.Signal(48)

// Kick makes the thread tid of this process return from Run. Call SetImmediateExit first, because a
// signal that arrives between two calls of Run has no effect.
func Kick(tid int) error { return unix.Tgkill(unix.Getpid(), tid, kickSignal) }
