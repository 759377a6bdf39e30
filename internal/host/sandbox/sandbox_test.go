package sandbox

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

func mustBake(t *testing.T, w *world) {
	t.Helper()
	if _, err := w.Bake(context.Background(), w.bake); err != nil {
		t.Fatal(err)
	}
}

func TestBakeForkKill(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	mustBake(t, w)
	w.checkClean(t)
	r, err := w.Fork(context.Background(), ForkRequest{Tag: "p", N: 20, Env: map[string]string{"A": "b"}})
	if err != nil || len(r.Sandboxes) != 20 {
		t.Fatalf("fork: %d sandboxes, %v", len(r.Sandboxes), err)
	}
	seen := map[string]bool{}
	for _, f := range w.vmms.Forked[1:] { // the first guest is the parent
		for _, secret := range []string{string(f.Entropy), f.Hostname} {
			if seen[secret] || secret == "" {
				t.Errorf("two children were given the same identity %q", secret)
			}
			seen[secret] = true
		}
		if len(f.Entropy) < 32 || f.Env["A"] != "b" || f.RealtimeNanos == 0 {
			t.Errorf("identity %+v", f)
		}
	}
	for _, s := range r.Sandboxes {
		if !vmpool.IsID(s.ID) || s.State != Running {
			t.Errorf("sandbox %+v", s)
		}
	}
	var inUse *store.InUseError
	if err := w.DeleteSnapshot("p", store.DeleteSingle); !errors.As(err, &inUse) {
		t.Errorf("delete of a snapshot in use: %v", err)
	}
	w.KillAll()
	w.checkClean(t)
	if err := w.DeleteSnapshot("p", store.DeleteSingle); err != nil {
		t.Error(err)
	}
}

func TestForkIsAllOrNothing(t *testing.T) {
	for name, breakIt := range map[string]func(*vmfake.VMMs){
		"restore": func(f *vmfake.VMMs) {
			f.RestoreErr = func(n int) error {
				if n == 3 {
					return errors.New("wrong CPU template")
				}
				return nil
			}
		},
		"confirm": func(f *vmfake.VMMs) {
			f.ForkedErr = func(n int) error {
				if n == 3 {
					return errors.New("wrong CPU template")
				}
				return nil
			}
		},
		"spawn": func(f *vmfake.VMMs) { f.SpawnErr = errors.New("wrong CPU template") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 0)
			defer w.stop()
			mustBake(t, w)
			breakIt(w.vmms)
			_, err := w.Fork(context.Background(), ForkRequest{Tag: "p", N: 5})
			var failed *failure.ForkError
			if !errors.As(err, &failed) || !strings.Contains(err.Error(), "wrong CPU template") {
				t.Fatalf("fork: %v", err)
			}
			if name == "confirm" && (failed.Unconfirmed == 0 || w.count.unconfirmed == 0) {
				t.Error("the unconfirmed child was not counted")
			}
			if len(w.List()) != 0 {
				t.Error("children were kept")
			}
			w.checkClean(t)
		})
	}
}

func TestPartialForkKeepsTheRest(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	mustBake(t, w)
	w.vmms.ForkedErr = func(n int) error {
		if n%2 == 0 {
			return errors.New("no")
		}
		return nil
	}
	r, err := w.Fork(context.Background(), ForkRequest{Tag: "p", N: 10, AllowPartial: true})
	if err != nil || len(r.Sandboxes)+r.Failed != 10 || r.Failed != r.Unconfirmed || r.Failed != 5 {
		t.Fatalf("%d started, %d failed, %d unconfirmed, %v", len(r.Sandboxes), r.Failed, r.Unconfirmed, err)
	}
	if n := w.vmms.Count(); n != 5 {
		t.Errorf("%d VMs live, want 5", n)
	}
	w.KillAll()
	w.checkClean(t)
}

func TestBadRequestsNameTheField(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	for field, req := range map[string]ForkRequest{
		"snapshot_tag": {Tag: "../p", N: 1}, "n": {Tag: "p"}, "env": {Tag: "p", N: 1, Env: map[string]string{"": "x"}},
		"hostname_prefix": {Tag: "p", N: 1, HostnamePrefix: "A b"},
	} {
		var invalid *invalid.Error
		if _, err := w.Fork(context.Background(), req); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	var missing *store.NotFoundError
	if _, err := w.Fork(context.Background(), ForkRequest{Tag: "p", N: 1}); !errors.As(err, &missing) {
		t.Errorf("unknown tag: %v", err)
	}
	w.checkClean(t)
}

func waitState(t *testing.T, w *world, id string, want State) Info {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		s, err := w.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		if i := s.Info(); i.State == want {
			return i
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("sandbox did not become %v", want)
	return Info{}
}

func TestADyingVMIsNoticed(t *testing.T) {
	w := newWorld(t, 0)
	defer w.stop()
	mustBake(t, w)
	r, err := w.Fork(context.Background(), ForkRequest{Tag: "p", N: 2})
	if err != nil {
		t.Fatal(err)
	}
	id := r.Sandboxes[0].ID
	blocked := make(chan error)
	go func() {
		blocked <- w.Use(context.Background(), id, "exec in", func(ctx context.Context, _ agentclient.DialFunc) error {
			<-ctx.Done()
			return errors.New("connection reset")
		})
	}()
	w.vmms.Mu.Lock()
	v := w.vmms.Live[w.vmDir(id)]
	w.vmms.Mu.Unlock()
	v.End(vm.Exit{Reason: vm.ExitReset, Detail: "guest"})
	if err := <-blocked; err == nil || !strings.Contains(err.Error(), "reset") {
		t.Errorf("exec in a dying VM: %v", err)
	}
	info := waitState(t, w, id, Exited)
	if info.ExitReason != "reset" || info.PID != 0 {
		t.Errorf("info %+v", info)
	}
	if console, err := w.Console(id); err != nil || !bytes.Contains(console.Bytes, []byte("Kernel panic")) {
		t.Errorf("console of an exited sandbox: %q, %v", console.Bytes, err)
	}
	var state *StateError
	if err := w.Use(context.Background(), id, "use", nothing); !errors.As(err, &state) {
		t.Errorf("ping: %v", err)
	}
	if i := waitState(t, w, r.Sandboxes[1].ID, Running); i.ExitReason != "" {
		t.Error("the sibling was touched")
	}
	w.KillAll()
	w.checkClean(t)
	var missing *NotFoundError
	if err := w.Kill(id); !errors.As(err, &missing) {
		t.Errorf("kill twice: %v", err)
	}
}

func TestRestartTakesOverWhatLives(t *testing.T) {
	w := newWorld(t, 0)
	mustBake(t, w)
	r, err := w.Fork(context.Background(), ForkRequest{Tag: "p", N: 3})
	if err != nil {
		t.Fatal(err)
	}
	w.stop()
	dead := r.Sandboxes[0].ID
	w.vmms.Mu.Lock()
	v := w.vmms.Live[w.vmDir(dead)]
	w.vmms.Mu.Unlock()
	v.End(vm.Exit{Reason: vm.ExitPowerOff})
	// Leave an empty VM behind, as a daemon that is killed during a fork does.
	if _, err := vmpool.Spawn(context.Background(), w.vmms, w.cfg.RunDir, vm.Shape{}); err != nil {
		t.Fatal(err)
	}
	w.start(t, 0)
	defer w.stop()
	n, err := w.Recover()
	if err != nil || n != 2 || len(w.List()) != 2 {
		t.Fatalf("recovered %d, list %d, %v", n, len(w.List()), err)
	}
	if _, err := w.Get(dead); err == nil {
		t.Error("a dead sandbox was recovered")
	}
	if n := w.vmms.Count(); n != 2 {
		t.Errorf("%d VMs live, want 2", n)
	}
	w.KillAll()
	w.checkClean(t)
}

func TestPoolFeedsForksAndIsDrained(t *testing.T) {
	w := newWorld(t, 3)
	defer w.stop()
	mustBake(t, w)
	if _, err := w.Fork(context.Background(), ForkRequest{Tag: "p", N: 1}); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if w.PoolSize() == 3 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	r, err := w.Fork(context.Background(), ForkRequest{Tag: "p", N: 5})
	if err != nil {
		t.Fatal(err)
	}
	pooled := 0
	for _, s := range r.Sandboxes {
		if s.Timing.Pooled {
			pooled++
		}
	}
	if pooled != 3 {
		t.Errorf("%d of 5 came from a pool of 3", pooled)
	}
	w.KillAll()
	if err := w.DeleteSnapshot("p", store.DeleteSingle); err != nil {
		t.Fatal(err)
	}
	for range 1000 { // repeat, because a shell that was being started must also end
		if w.vmms.Count() == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	w.checkClean(t)
}

// If a VMM in the pool ends, the pool notices before the next fork. Nothing of the VMM is left, and
// the pool starts another VMM.
func TestPooledVMMThatDies(t *testing.T) {
	w := newWorld(t, 1)
	defer w.stop()
	mustBake(t, w)
	w.fork(t, "p")
	w.KillAll()
	pooled := func() *vmfake.VMM {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if all := w.vmms.All(); w.PoolSize() == 1 && len(all) == 1 {
				return all[0]
			}
		}
		t.Fatal("the pool is not filled")
		return nil
	}
	first := pooled()
	first.End(vm.Exit{Reason: vm.ExitInternal, Detail: "killed"})
	if second := pooled(); second == first {
		t.Error("the dead one is still there")
	}
	if dirs, err := os.ReadDir(w.cfg.RunDir); err != nil || len(dirs) != 1 {
		t.Errorf("%d directories of VMMs, want that of the second: %v", len(dirs), err)
	}
}

func TestConfirmTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &Manager{cfg: Config{Confirm: time.Second, Observer: &counter{}, VMMs: &vmfake.VMMs{}}}
		shell, err := vmpool.Spawn(t.Context(), m.cfg.VMMs, t.TempDir(), vm.Shape{})
		if err != nil {
			t.Fatal(err)
		}
		v := &liveVM{dir: shell.Dir, vmm: shell.VMM, guest: hangingGuest{}}
		err = m.confirm(context.Background(), v, &ledger.Record{})
		if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, new(*failure.UnconfirmedError)) {
			t.Errorf("confirm: %v", err)
		}
	})
}

// hangingGuest never answers.
type hangingGuest struct{ vmfake.Guest }

func (hangingGuest) Forked(ctx context.Context, _ agentproto.Forked) (*agentproto.Unique, error) {
	<-ctx.Done()
	return nil, errors.New("broken pipe")
}

// nothing is a function for Use that makes no requests.
func nothing(context.Context, agentclient.DialFunc) error { return nil }
