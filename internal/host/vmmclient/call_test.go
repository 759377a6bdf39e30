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

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// receive returns the next request that the client has sent, or fails the test.
func receive(t *testing.T, vmm *ctlsock.Conn) vmmproto.Kind {
	t.Helper()
	kind, _, fds, err := vmm.Receive()
	if err != nil {
		t.Fatal(err)
	}
	ctlsock.CloseAll(fds)
	return kind
}

// answerStats answers a Stats request. The reply has the given number of exits, by which the test
// recognizes it.
func answerStats(t *testing.T, vmm *ctlsock.Conn, exits uint64) {
	t.Helper()
	var w codec.Writer
	(&vmmproto.Stats{Exits: exits}).Append(&w)
	if err := vmm.Send(vmmproto.KindOK, w.Bytes()); err != nil {
		t.Fatal(err)
	}
}

// If a caller gives up a request, the connection stays usable, and the late reply is not mistaken
// for the reply to the next request.
func TestReplyToAnAbandonedRequestIsDropped(t *testing.T) {
	v, vmm := scripted(t)
	for round := range uint64(3) {
		ctx, cancel := context.WithCancel(t.Context())
		given := make(chan error, 1)
		go func() {
			_, err := v.Stats(ctx)
			given <- err
		}()
		receive(t, vmm)
		cancel()
		if err := <-given; !errors.Is(err, ErrNoAnswer) || !errors.Is(err, context.Canceled) {
			t.Fatalf("abandoned Stats = %v", err)
		}
		next := make(chan vm.Stats, 1)
		go func() {
			stats, err := v.Stats(context.Background())
			if err != nil {
				t.Error(err)
			}
			next <- stats
		}()
		answerStats(t, vmm, 1000+round)
		receive(t, vmm)
		answerStats(t, vmm, round)
		if got := <-next; got.Exits != round {
			t.Fatalf("round %d: got the reply %d", round, got.Exits)
		}
	}
}

// Each request to a VMM that hangs fails within a time limit. The client sends no further requests
// until the VMM has answered; afterwards the VMM can be used again.
func TestVMMThatHangsIsReported(t *testing.T) {
	v, vmm := scripted(t)
	v.limits.short = 10 * time.Millisecond
	within(t, "a request to a VMM that hangs", func() {
		for range 3 {
			if _, err := v.Stats(t.Context()); !errors.Is(err, ErrNoAnswer) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Stats = %v", err)
			}
		}
		if err := v.Pause(t.Context()); !errors.Is(err, ErrNoAnswer) {
			t.Errorf("Pause = %v", err)
		}
	})
	if kind := receive(t, vmm); kind != vmmproto.KindStats {
		t.Errorf("the first request is %d", kind)
	}
	v.limits = defaultLimits
	answerStats(t, vmm, 1)
	done := make(chan error, 1)
	go func() { done <- v.Resume(t.Context()) }()
	if kind := receive(t, vmm); kind != vmmproto.KindResume {
		t.Errorf("after the answer came request %d: those that were given up were sent", kind)
	}
	if err := vmm.Send(vmmproto.KindOK, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("Resume = %v", err)
	}
}

// A hostile VMM may answer a request before it was sent, and then hang up. The request's turn must
// be given back exactly once.
func TestAnAnswerBeforeTheRequestEndsItsTurnOnce(t *testing.T) {
	v, _ := scripted(t)
	for _, early := range []bool{true, false} {
		v.turn <- struct{}{}
		answer := make(chan reply, 1)
		v.replyTo(answer)
		if early && v.deliver(reply{}) != nil {
			t.Fatal("the early answer found no request")
		}
		within(t, "taking a request back", func() { v.withdraw(answer) })
		if len(v.turn) != 0 {
			t.Errorf("early answer %v: the turn was not given back", early)
		}
	}
}

// When a hung VMM ends, requests that wait for it fail.
func TestKillEndsRequestsOfAHungVMM(t *testing.T) {
	v, vmm := scripted(t)
	errs := make(chan error, 2)
	for range cap(errs) {
		go func() { errs <- v.Pause(context.Background()) }()
	}
	receive(t, vmm)
	_ = vmm.Close() // simulates the end of the process, at which the kernel closes the socket
	within(t, "the end of a hung VMM", func() {
		if err := v.Kill(); err != nil {
			t.Error(err)
		}
		for range cap(errs) {
			if err := <-errs; !errors.Is(err, ErrGone) {
				t.Errorf("Pause = %v", err)
			}
		}
	})
}

// An error of a VMM is identified by its code and not by its text, even if the text quotes a
// different error.
func TestErrorsKeepTheirCode(t *testing.T) {
	v, vmm := scripted(t)
	for _, c := range []struct {
		err  error
		is   []error
		isNo []error
	}{
		{fmt.Errorf("branch: %w", vm.ErrCopying), []error{vm.ErrCopying}, []error{vm.ErrOther, unix.ENOSPC}},
		{&os.PathError{Op: "write", Path: "x", Err: unix.ENOSPC}, []error{unix.ENOSPC, vm.ErrNoSpace},
			[]error{vm.ErrCopying}},
		{vm.WithCode(vm.ErrShape, errors.New("two vCPUs")), []error{vm.ErrShape}, []error{vm.ErrBadState}},
		{vm.WithCode(vm.ErrBadState, fmt.Errorf("x: %w", vm.WithCode(vm.ErrCPU, errors.New("y")))), []error{vm.ErrCPU},
			[]error{vm.ErrBadState}},
		{errors.New("the guest says: no space left on device, still being copied"), []error{vm.ErrOther},
			[]error{unix.ENOSPC, vm.ErrNoSpace, vm.ErrCopying}},
	} {
		var w codec.Writer
		vmmproto.ErrorOf(c.err).Append(&w)
		failed := make(chan error, 1)
		go func() { failed <- v.Pause(t.Context()) }()
		receive(t, vmm)
		if err := vmm.Send(vmmproto.KindError, w.Bytes()); err != nil {
			t.Fatal(err)
		}
		answer := <-failed
		v.expect(1)
		var end codec.Writer
		(&vmmproto.Branched{Serial: 1, Failed: vmmproto.ErrorOf(c.err)}).Append(&end)
		if err := vmm.Send(vmmproto.KindBranched, end.Bytes()); err != nil {
			t.Fatal(err)
		}
		_, copied := v.WaitCopied(t.Context(), 1)
		for name, err := range map[string]error{"reply": answer, "end of a copy": copied} {
			if err == nil || err.Error() != c.err.Error() {
				t.Fatalf("%s: %v, want %v", name, err, c.err)
			}
			for _, want := range c.is {
				if !errors.Is(err, want) {
					t.Errorf("%s %v: is not %q", name, err, want)
				}
			}
			for _, not := range c.isNo {
				if errors.Is(err, not) {
					t.Errorf("%s %v: is %q", name, err, not)
				}
			}
		}
	}
	failed := make(chan error, 1)
	go func() { failed <- v.Pause(t.Context()) }()
	receive(t, vmm)
	if err := vmm.Send(vmmproto.KindError, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err == nil {
		t.Error("an error without a body is none")
	}
}

// A VMM receives files of other VMs only for reading.
func TestFilesOfOthersAreReadOnly(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var files [2]*os.File
	for i, flag := range []int{os.O_RDONLY, os.O_RDWR} {
		var err error
		if files[i], err = os.OpenFile(name, flag, 0); err != nil {
			t.Fatal(err)
		}
		defer files[i].Close()
	}
	reads, writes := files[0], files[1]
	for _, c := range []struct {
		disks [][]*os.File
		files []*os.File
		ok    bool
	}{
		{[][]*os.File{{reads, writes}, {writes}, nil}, []*os.File{reads, nil}, true},
		{[][]*os.File{{reads, writes}, {writes, writes}}, nil, false},
		{nil, []*os.File{reads, writes}, false},
	} {
		if err := readOnly(c.disks, c.files...); (err == nil) != c.ok {
			t.Errorf("%v, %v: %v", c.disks, c.files, err)
		}
	}
}
