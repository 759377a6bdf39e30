package vmmclient

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/host/process"
	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// A VMM that answers requests without reading them violates the protocol. When the socket is full,
// the next request fails immediately, and the VMM is killed.
func TestAnswersToUnreadRequestsEndTheVMM(t *testing.T) {
	v, vmm := scripted(t)
	var w codec.Writer
	(&vmmproto.Stats{}).Append(&w)
	go func() {
		for answered := (chan reply)(nil); ; time.Sleep(time.Microsecond) {
			v.mu.Lock()
			asked := v.answer
			v.mu.Unlock()
			if asked == nil || asked == answered {
				continue
			}
			answered = asked
			if vmm.Send(vmmproto.KindOK, w.Bytes()) != nil {
				return
			}
		}
	}()
	within(t, "a request to a VMM that reads none", func() {
		for {
			if _, err := v.Stats(context.Background()); err != nil {
				if !errors.Is(err, ErrHostile) {
					t.Errorf("got %v", err)
				}
				return
			}
		}
	})
	ended(t, v)
}

// A connection can outlive the VMM's process, for example because another process has a copy of its
// descriptor. The daemon notices the end of the VMM nevertheless.
func TestTheEndOfTheProcessEndsTheConnection(t *testing.T) {
	v, vmm := scripted(t)
	var w codec.Writer
	(&vmmproto.Exit{Reason: 1, Detail: "the last words"}).Append(&w)
	if err := vmm.Send(vmmproto.KindExit, w.Bytes()); err != nil {
		t.Fatal(err)
	}
	v.limits.end = 5 * time.Second
	within(t, "the end of a VMM whose connection is held elsewhere", func() {
		if err := v.Kill(); err != nil {
			t.Error(err)
		}
	})
	if x := v.Exit(); x.Detail != "the last words" {
		t.Errorf("it exited with %+v", x)
	}
}

// If a VMM has closed its listening socket, no daemon can connect to it. A daemon that tries to
// take over such a VMM kills it.
func TestAttachKillsAVMMThatDoesNotListen(t *testing.T) {
	dir := t.TempDir()
	listener, err := ctlsock.Listen(filepath.Join(dir, ControlSocket))
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "sleeper")
	if err := os.WriteFile(bin, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	p, err := process.Start(process.Spec{Name: "sleeper", Bin: bin, Record: filepath.Join(dir, pidFile)})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	if err := unix.Close(listener); err != nil {
		t.Fatal(err)
	}
	if _, err := Attach(nil, "test", dir); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("Attach = %v", err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("its process lives on")
		_ = p.Kill()
		<-ended
	}
}

// If the daemon or its user lacks a resource, the daemon does not conclude that a VMM has ended.
func TestAShortageIsNoEnd(t *testing.T) {
	dir := t.TempDir()
	listener, err := ctlsock.Listen(filepath.Join(dir, ControlSocket))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listener)
	bin := filepath.Join(dir, "sleeper")
	if err := os.WriteFile(bin, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	p, err := process.Start(process.Spec{Name: "sleeper", Bin: bin, Record: filepath.Join(dir, pidFile)})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	for range 10000 { // fills the queue of connections that the VMM has not accepted
		c, err := ctlsock.Dial(filepath.Join(dir, ControlSocket))
		if err != nil {
			break
		}
		defer c.Close()
	}
	if _, err := Attach(nil, "test", dir); !IsShortage(err) {
		t.Errorf("Attach = %v", err)
	}
	select {
	case err := <-ended:
		t.Errorf("its process has ended: %v", err)
	default:
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
		<-ended
	}
	for _, err := range []error{unix.ENOBUFS, unix.ETOOMANYREFS, unix.EMFILE} {
		if !IsShortage(fmt.Errorf("send: %w", err)) {
			t.Errorf("%v is taken for the end of a VMM", err)
		}
	}
	if IsShortage(unix.EPIPE) || IsShortage(unix.ECONNREFUSED) || IsShortage(nil) {
		t.Error("the end of a VMM is taken for a shortage")
	}
}
