package kvm

import "golang.org/x/sys/unix"

// kickSignal interrupts a thread in Run. The Go runtime has a handler for every real-time signal,
// which does nothing unless a program uses os/signal, so the signal only ends the system call.
// Signals 34 and below belong to libc and the runtime.
const kickSignal = unix.Signal(48)

// Kick makes the thread tid of this process leave Run. Set the vCPU's immediate exit first: a
// signal that arrives between two Runs is lost.
func Kick(tid int) error { return unix.Tgkill(unix.Getpid(), tid, kickSignal) }
