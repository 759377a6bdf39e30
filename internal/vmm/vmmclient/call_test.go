package vmmclient

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/vmm/ctlsock"
	"github.com/forkd/forkd/internal/vmm/vmmproto"
	"github.com/forkd/forkd/internal/wire"
)

// receive returns the next request that the client sent, or ends the test.
func receive(t *testing.T, vmm *ctlsock.Conn) vmmproto.Kind {
	t.Helper()
	kind, _, fds, err := vmm.Receive()
	if err != nil {
		t.Fatal(err)
	}
	ctlsock.CloseAll(fds)
	return kind
}

// answerStats answers a Stats request with a figure by which the test knows the reply.
func answerStats(t *testing.T, vmm *ctlsock.Conn, exits uint64) {
	t.Helper()
	var w wire.Writer
	(&vmmproto.Stats{Exits: exits}).Append(&w)
	if err := vmm.Send(vmmproto.KindOK, w.Bytes()); err != nil {
		t.Fatal(err)
	}
}

// A request that was given up must not cost the connection, and its late reply must not be taken for the next one's.
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
		next := make(chan vmmproto.Stats, 1)
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

// A VMM that hangs fails every request in bounded time, is sent no more of them, and recovers when it answers.
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

// Requests that wait for a hung VMM end with it.
func TestKillEndsRequestsOfAHungVMM(t *testing.T) {
	v, vmm := scripted(t)
	errs := make(chan error, 2)
	for range cap(errs) {
		go func() { errs <- v.Pause(context.Background()) }()
	}
	receive(t, vmm)
	_ = vmm.Close() // as the kernel does with its process
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
