package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// If the host crashes while a sandbox runs, the sandbox returns to its latest suspended state.
func TestLostVMIsSuspendedAgain(t *testing.T) {
	t.Run("ended", func(t *testing.T) {
		testLostVM(t, func(w *world) {
			w.vmms.Mu.Lock()
			clear(w.vmms.Live)
			w.vmms.Mu.Unlock()
		})
	})
	// A killed process still accepts connections while the kernel frees its memory.
	t.Run("ending", func(t *testing.T) {
		testLostVM(t, func(w *world) { w.vmms.StatsErr = vmmclient.ErrGone })
	})
}

// If a suspended sandbox cannot be taken over, its snapshot is kept.
func TestLeftAloneKeepsItsSnapshot(t *testing.T) {
	w := newWorld(t, 0)
	mustBake(t, w)
	id := forkOne(t, w, ForkRequest{})
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(w.cfg.DataDir, id, ledger.SuspendedFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, content := range [][]byte{[]byte("{"), text} {
		w.stop()
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		w.start(t, 0)
		if _, err := w.Recover(); err != nil {
			t.Fatal(err)
		}
		w.Snapshots().Quiesce()
		if left := w.LeftAlone(); len(left) != 1-len(w.List()) {
			t.Errorf("left alone: %+v", left)
		}
	}
	defer w.stop()
	if i, err := w.Resume(t.Context(), id); err != nil || i.State != Running {
		t.Errorf("%+v, %v", i, err)
	}
	w.KillAll()
	w.checkClean(t)
}

// A VMM of another version is left alone, because it could misunderstand requests of this daemon.
func TestVMMOfAnotherVersionIsLeftAlone(t *testing.T) {
	w := newWorld(t, 0)
	id := w.source(t)
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.live.dir, ledger.File)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	w.stop()
	other := bytes.Replace(text, fmt.Appendf(nil, `"protocol":%d`, vmmproto.Version), []byte(`"protocol":1`), 1)
	if err := os.WriteFile(path, other, 0o600); err != nil || bytes.Equal(text, other) {
		t.Fatal(err, string(text))
	}
	w.start(t, 0)
	defer w.stop()
	if n, err := w.Recover(); n != 0 || err != nil || w.vmms.Count() != 1 {
		t.Errorf("recovered %d, %v; %d VMs live", n, err, w.vmms.Count())
	}
	if left := w.LeftAlone(); len(left) != 1 || left[0].ID != id || left[0].PID != os.Getpid() ||
		!strings.Contains(left[0].Reason, "protocol 1,") {
		t.Errorf("left alone: %+v", left)
	}
	for _, v := range w.vmms.All() {
		v.Kill()
	}
	if left := w.LeftAlone(); len(left) != 1 || left[0].PID != 0 || !strings.Contains(left[0].Reason, "ended") {
		t.Errorf("after its end: %+v", left)
	}
}

func testLostVM(t *testing.T, lose func(*world)) {
	w := newWorld(t, 0)
	id := w.source(t)
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.stop()
	lose(w)
	w.start(t, 0)
	defer w.stop()
	if n, err := w.Recover(); n != 1 || err != nil {
		t.Fatalf("recovered %d, %v", n, err)
	}
	s, err := w.Get(id)
	if err != nil || s.Info().State != Suspended {
		t.Fatalf("%+v, %v", s, err)
	}
	w.vmms.StatsErr = nil
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Error(err)
	}
	w.KillAll()
	w.checkClean(t)
}

// If the VM of a sandbox ends by itself, the sandbox can be resumed from its latest suspended
// state, if it has one.
func TestEndedVMIsResumedFromItsSuspendedState(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	id := w.source(t)
	r, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	other := r.Sandboxes[0].ID // was never suspended
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for round := range 2 {
		if i, err := w.Resume(t.Context(), id); err != nil || i.State != Running || i.ID != id {
			t.Fatalf("round %d: %+v, %v", round, i, err)
		}
		for _, v := range w.vmms.All() {
			v.End(vm.Exit{Reason: vm.ExitReset})
		}
		w.awaitExit(t, id)
	}
	w.awaitExit(t, other)
	var state *StateError
	if err := w.Use(t.Context(), id, "use", nothing); !errors.As(err, &state) || state.State != Exited {
		t.Errorf("a request to it: %v", err)
	}
	if _, err := w.Resume(t.Context(), other); !errors.As(err, &state) || state.State != Exited {
		t.Errorf("resume without a suspended state: %v", err)
	}
	w.KillAll()
	w.Snapshots().Quiesce()
	if list := w.Snapshots().List(); len(list) != 1 {
		t.Errorf("left: %+v", list)
	}
	w.checkClean(t)
}

// awaitExit waits until the manager has noticed that the VM of a sandbox has ended.
func (w *world) awaitExit(t *testing.T, id string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if s, err := w.Get(id); err == nil && s.Info().State == Exited {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("its end was not noticed")
		}
	}
}
