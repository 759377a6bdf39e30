package sandbox

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/vm"
)

const takenOverMiB = 64 // memory of the guests

// withTakenOver returns a world whose snapshot "p" was made by a working VMM. All later VMMs are
// compromised by their guests.
func withTakenOver(t testing.TB) (*world, *takenOver) {
	t.Helper()
	w := newWorld(t, 0)
	w.bake.MemoryMiB = takenOverMiB
	if _, err := w.Bake(context.Background(), w.bake); err != nil {
		t.Fatal(err)
	}
	w.stop()
	h := &takenOver{bin: filepath.Join(w.dir, "sleeper")}
	if err := os.WriteFile(h.bin, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.hosts = h
	w.start(t, 0)
	w.writers = 0
	return w, h
}

// attack forks a sandbox with a compromised VMM, and uses the sandbox. The given bytes choose the
// operations and the VMM's answers. Whatever the VMM answers, each operation must end, each
// snapshot in the list must be usable, no file may become longer than the guest's memory, and
// nothing may be left over.
func attack(t *testing.T, w *world, h *takenOver, drawn []byte) {
	t.Helper()
	ops := words{left: drawn}
	asked := make([]byte, 8)
	for i := range asked {
		asked[i] = ops.byte()
	}
	h.mu.Lock()
	h.words = ops
	h.mu.Unlock()
	ended := make(chan struct{})
	guard := time.AfterFunc(2*time.Minute, func() {
		select {
		case <-ended:
		default:
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
			panic("an operation hangs")
		}
	})
	defer guard.Stop()
	defer close(ended)
	ctx := t.Context()
	f, err := w.Fork(ctx, ForkRequest{Tag: "p", N: 1})
	if err == nil {
		id := f.Sandboxes[0].ID
		for _, op := range asked {
			use(ctx, w, id, op)
			if over := layersOver(w.dir, takenOverMiB<<20+1<<20); over != nil {
				t.Errorf("beyond the guest's memory: %s", strings.Join(over, ", "))
			}
		}
	}
	for _, i := range w.Snapshots().List() {
		if i.Writing || i.Damage != "" {
			continue
		}
		lease, err := w.Snapshots().Acquire(i.Tag)
		if err != nil {
			t.Errorf("a snapshot was published that cannot be opened: %v", err)
			continue
		}
		lease.Release()
	}
	w.KillAll()
	w.background.Wait()
	w.Snapshots().Quiesce()
	for _, i := range w.Snapshots().List() {
		if i.Tag != "p" {
			_ = w.DeleteSnapshot(i.Tag, store.DeleteForce)
		}
	}
	h.lives.Wait()
	w.checkClean(t)
}

// use performs one operation on a sandbox. The operation may fail.
func use(ctx context.Context, w *world, id string, op byte) {
	switch op % 10 {
	case 0, 1, 2:
		mode := []vm.BranchMode{vm.BranchLive, vm.BranchDiff, vm.BranchFull}[op%10]
		_, _ = w.Branch(ctx, id, BranchRequest{Mode: mode})
	case 3:
		_, _ = w.Branch(ctx, id, BranchRequest{Mode: vm.BranchLive, NoWait: true})
	case 4:
		_, _ = w.Rollback(ctx, id, "", unique.AsBefore)
	case 5:
		_, _ = w.Suspend(ctx, id)
	case 6, 7:
		_, _ = w.Resume(ctx, id)
	case 8:
		_, _ = w.Pause(ctx, id)
	case 9:
		if s, err := w.Get(id); err == nil {
			_, _ = w.Stats(ctx, s.id)
		}
	}
}

// Compromised VMMs give the manager random answers.
func TestVMMsThatWereTakenOver(t *testing.T) {
	const seed, rounds = 22, 60
	t.Logf("seed %d", seed)
	w, h := withTakenOver(t)
	defer w.stop()
	r := rand.New(rand.NewPCG(seed, 0))
	for round := range rounds {
		drawn := make([]byte, r.IntN(200))
		for i := range drawn {
			if drawn[i] = byte(r.Uint32()); r.IntN(3) > 0 { // most answers are correct, so that some attacks begin late
				drawn[i] %= 8
			}
		}
		attack(t, w, h, drawn)
		if t.Failed() {
			t.Fatalf("round %d: %q", round, drawn)
		}
	}
}

// FuzzVMMsThatWereTakenOver is TestVMMsThatWereTakenOver with inputs that the fuzzer chooses.
func FuzzVMMsThatWereTakenOver(f *testing.F) {
	w, h := withTakenOver(f)
	f.Cleanup(w.stop)
	for op := range byte(10) {
		f.Add([]byte{op, 5, 6, op, 8, op, 7, 0})
	}
	f.Fuzz(func(t *testing.T, drawn []byte) { attack(t, w, h, drawn[:min(len(drawn), 1<<12)]) })
}
