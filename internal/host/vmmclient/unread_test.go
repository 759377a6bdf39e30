package vmmclient

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// A VMM that answers requests and leaves them in its socket breaks the protocol. When the socket has
// no room, the next request fails: to wait for room would last until the VMM is killed.
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

// What is left of a VMM's connection when its process has ended, such as a copy of its descriptor in
// the socket of another process, does not delay its end.
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
