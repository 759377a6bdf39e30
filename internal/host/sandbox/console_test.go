package sandbox

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/format/console"
	"github.com/forkd/forkd/internal/host/conlog"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/proto/vm"
)

// vmOf returns the VM of a sandbox.
func (w *world) vmOf(t *testing.T, id string) *vmfake.VMM {
	t.Helper()
	w.vmms.Mu.Lock()
	defer w.vmms.Mu.Unlock()
	v := w.vmms.Live[w.vmDir(id)]
	if v == nil {
		t.Fatalf("sandbox %s has no VM", id)
	}
	return v
}

// readTo reads until it has read the given text, or until the log ends.
func readTo(t *testing.T, l *conlog.Log, want string) (got string, lost uint64) {
	t.Helper()
	for !strings.Contains(got, want) {
		p, n, err := l.Next(t.Context())
		if err != nil {
			t.Fatalf("%q, then %v; want %q", got, err, want)
		}
		got, lost = got+string(p), lost+n
	}
	return got, lost
}

// A follower of a console receives all output until the sandbox ends, through pauses, rollbacks and
// suspensions.
func TestLog(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	l, err := w.Follow(id)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if text, err := l.Begin(); err != nil || !strings.HasPrefix(string(text.Bytes), "hello\n") {
		t.Fatalf("%q, %v", text.Bytes, err)
	}
	w.vmOf(t, id).Print("one\n")
	if got, lost := readTo(t, l, "one\n"); got != "one\n" || lost != 0 {
		t.Errorf("%q, %d lost", got, lost)
	}
	if _, err := w.Rollback(t.Context(), id, "", unique.AsBefore); err != nil {
		t.Fatal(err)
	}
	w.vmOf(t, id).Print("two\n")
	readTo(t, l, "two\n")
	w.vmOf(t, id).Print("last words\n")
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	readTo(t, l, "last words\n") // written by a VM that has ended
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.vmOf(t, id).Print("again\n")
	if got, _ := readTo(t, l, "again\n"); !strings.HasPrefix(got, "hello\n") {
		t.Errorf("of the VM after the resumption: %q", got)
	}
	w.vmOf(t, id).Print(strings.Repeat("flood\n", 2*console.Size/6) + "over\n")
	if got, lost := readTo(t, l, "over\n"); len(got) != console.Size || lost < console.Size-100 {
		t.Errorf("of a flood: %d bytes, %d lost", len(got), lost)
	}
	v := w.vmOf(t, id)
	v.Print("dying\n")
	v.End(vm.Exit{Reason: vm.ExitReset})
	readTo(t, l, "dying\n")
	if p, _, err := l.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %q, %v", p, err)
	}
}

// A log that is being followed ends only when its sandbox is deleted, or when the follower closes
// the log.
func TestLogEnds(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	l, err := w.Follow(id)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	readTo(t, l, "bye\n")
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, _, err := l.Next(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("of somebody who left: %v", err)
	}
	ended := make(chan error)
	go func() { _, _, err := l.Next(t.Context()); ended <- err }()
	if err := w.Kill(id); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Errorf("of a deleted sandbox: %v", err)
	}

	id = forkOne(t, w, ForkRequest{})
	w.vmOf(t, id).End(vm.Exit{Reason: vm.ExitPanic})
	waitState(t, w, id, Exited)
	late, err := w.Follow(id)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if text, err := late.Begin(); err != nil || !strings.Contains(string(text.Bytes), "Kernel panic") {
		t.Errorf("of a sandbox that had ended: %q, %v", text.Bytes, err)
	}
	if _, _, err := late.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("after that: %v", err)
	}
	var unknown *NotFoundError
	if _, err := w.Follow("sb-none"); !errors.As(err, &unknown) {
		t.Errorf("of no sandbox: %v", err)
	}
}
