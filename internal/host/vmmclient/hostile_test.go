package vmmclient

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/process"
	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// sleeper starts a process that runs until it is killed.
func sleeper(t *testing.T) *process.Process {
	t.Helper()
	dir := t.TempDir()
	bin := filepath.Join(dir, "sleeper")
	if err := os.WriteFile(bin, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	p, err := process.Start(process.Spec{Name: "sleeper", Bin: bin, Record: filepath.Join(dir, "pid")})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// scripted returns a client whose VMM is simulated by the test. The VMM's process is a sleeper.
func scripted(t *testing.T) (*VMM, *ctlsock.Conn) { return scriptedIn(t, sleeper(t), nil) }

// scriptedIn is like scripted, for a VMM with a given process in a cgroup.
func scriptedIn(t *testing.T, p *process.Process, leaf *cgroup.Leaf) (*VMM, *ctlsock.Conn) {
	t.Helper()
	dir := t.TempDir()
	listener, err := ctlsock.Listen(dir + "/" + ControlSocket)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listener)
	ctl, err := ctlsock.Dial(dir + "/" + ControlSocket)
	if err != nil {
		t.Fatal(err)
	}
	v := newVMM("test", dir, p, leaf, ctl)
	vmm, err := ctlsock.Accept(listener)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = vmm.Close() // simulates the end of a real VMM's process
		if err := v.Kill(); err != nil {
			t.Error(err)
		}
	})
	return v, vmm
}

// within fails the test if f does not return in time. Without this check, a deadlock would appear
// only as a timeout of the whole test program.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s hangs", what)
	}
}

// A compromised VMM may send any messages. The daemon must still be able to kill it.
func TestUnaskedMessagesDoNotBlockTheClient(t *testing.T) {
	v, vmm := scripted(t)
	var branched codec.Writer
	v.expect(1)
	(&vmmproto.Branched{Serial: 1}).Append(&branched)
	for range 5 {
		for _, kind := range []vmmproto.Kind{vmmproto.KindBranched, vmmproto.KindExit, 200} {
			_ = vmm.Send(kind, branched.Bytes()) // fails when the client has hung up because of an invalid message
		}
	}
	for range 5 {
		_ = vmm.Send(vmmproto.KindOK, nil) // an answer without a request
	}
	within(t, "end of a hostile VMM", func() {
		if err := v.proc.Kill(); err != nil {
			t.Error(err)
		}
		_ = vmm.Close()
		<-v.Done()
	})
}

// If a VMM hangs up but its process continues, requests fail, even if their context never ends.
func TestRequestFailsWhenTheConnectionIsLost(t *testing.T) {
	v, vmm := scripted(t)
	v.limits.hangUp = time.Millisecond
	go func() {
		_, _, _, _ = vmm.Receive()
		vmm.Shutdown()
	}()
	within(t, "request to a VMM that hung up", func() {
		if err := v.Pause(context.Background()); !errors.Is(err, ErrGone) {
			t.Errorf("Pause = %v", err)
		}
		v.expect(1)
		if _, err := v.WaitCopied(context.Background(), 1); !errors.Is(err, ErrGone) {
			t.Errorf("WaitCopied = %v", err)
		}
	})
}

// When a VMM has ended, another file may soon have the number that the descriptor of the control
// socket had. No request may be sent to that file.
func TestRequestsAfterTheEndGoNowhere(t *testing.T) {
	v, vmm := scripted(t)
	_ = vmm.Close()
	if err := v.proc.Kill(); err != nil {
		t.Fatal(err)
	}
	<-v.Done()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ctlsock.CloseAll(pair[:])
	if err := v.Pause(t.Context()); !errors.Is(err, ErrGone) {
		t.Errorf("Pause = %v", err)
	}
	v.ctl.Shutdown()
	for _, fd := range pair {
		if n, err := unix.Read(fd, make([]byte, 16)); err != unix.EAGAIN {
			t.Errorf("descriptor %d got %d bytes, %v", fd, n, err)
		}
	}
}

// A guest can open each stream of a boot once. If the VMM says that the guest has opened a stream a
// second time, or a stream that does not exist, the VMM is killed.
func TestStreamsOfABoot(t *testing.T) {
	for name, second := range map[string]uint32{"twice": 1, "one too many": vmmproto.GuestStreams} {
		t.Run(name, func(t *testing.T) {
			v, vmm := scripted(t)
			kernel, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			defer kernel.Close()
			opened := make(chan int, 1)
			said := func(stream uint32) {
				var w codec.Writer
				(&vmmproto.GuestConn{Port: 7, Stream: stream}).Append(&w)
				if err := vmm.Send(vmmproto.KindConn, w.Bytes()); err != nil {
					t.Error(err)
				}
			}
			go func() {
				_, _, fds, err := vmm.Receive()
				if err != nil || len(fds) != 1+vmmproto.GuestStreams { // the first descriptor is the kernel
					t.Errorf("%d descriptors, %v", len(fds), err)
				} else if _, err := unix.Write(fds[2], []byte("ready")); err != nil {
					t.Error(err)
				}
				_ = vmm.Send(vmmproto.KindOK, nil)
				opened <- len(fds)
			}()
			if err := v.Boot(t.Context(), vmmproto.Boot{}, BootFiles{Kernel: kernel}); err != nil {
				t.Fatal(err)
			}
			<-opened
			said(1)
			c := <-v.Conns()
			defer c.Conn.Close()
			got := make([]byte, 5)
			if _, err := io.ReadFull(c.Conn, got); err != nil || c.Port != 7 || string(got) != "ready" {
				t.Errorf("port %d: %q, %v", c.Port, got, err)
			}
			said(second)
			ended(t, v)
		})
	}
}
