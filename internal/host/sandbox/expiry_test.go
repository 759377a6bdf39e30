package sandbox

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/proto/vm"
)

// soon is a lifetime that ends during the test, and far is a lifetime that does not end during the
// test.
const (
	soon = 50 * time.Millisecond
	far  = time.Hour
)

// waitFor polls a sandbox until the given function returns true for its Info.
func (w *world) waitFor(t *testing.T, id string, is func(Info, error) bool) {
	t.Helper()
	for t.Context().Err() == nil {
		s, err := w.Get(id)
		info := Info{}
		if err == nil {
			info = s.Info()
		}
		if is(info, err) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func gone(_ Info, err error) bool       { return err != nil }
func suspendedNow(i Info, _ error) bool { return i.State == Suspended }
func forkOne(t *testing.T, w *world, req ForkRequest) string {
	t.Helper()
	req.Tag, req.N = "p", 1
	r, err := w.Fork(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return r.Sandboxes[0].ID
}

func TestExpiry(t *testing.T) {
	w := newWorld(t, 0)
	if _, err := w.Bake(t.Context(), w.bake); err != nil {
		t.Fatal(err)
	}
	extended := forkOne(t, w, ForkRequest{TTL: far})
	if _, err := w.setExpiry(t, extended, Expiry{At: time.Now().Add(soon)}); err != nil {
		t.Fatal(err)
	}
	if i, err := w.setExpiry(t, extended, Expiry{At: time.Now().Add(2 * far)}); err != nil {
		if n := (*NotFoundError)(nil); !errors.As(err, &n) { // the host was so slow that the sandbox has expired
			t.Fatal(err)
		}
	} else if time.Until(i.Expires) < far {
		t.Errorf("extended to %v", i.Expires)
	}
	shortened := forkOne(t, w, ForkRequest{TTL: far})
	if _, err := w.setExpiry(t, shortened, Expiry{At: time.Now().Add(soon)}); err != nil {
		t.Fatal(err)
	}
	w.waitFor(t, shortened, gone)
	if _, err := w.setExpiry(t, shortened, Expiry{}); err == nil {
		t.Error("an expired sandbox was given more time")
	}
	endless := forkOne(t, w, ForkRequest{TTL: far})
	if i, err := w.setExpiry(t, endless, Expiry{}); err != nil || !i.Expires.IsZero() {
		t.Errorf("%v, %v", i.Expires, err)
	}
	w.KillAll()
	w.stop()
	w.checkClean(t)
}

// A sandbox that is suspended on expiry keeps its data, even under the next daemon.
func TestExpirySuspends(t *testing.T) {
	w := newWorld(t, 0)
	if _, err := w.Bake(t.Context(), w.bake); err != nil {
		t.Fatal(err)
	}
	id := forkOne(t, w, ForkRequest{TTL: soon, ExpirySuspends: true, Annotation: json.RawMessage(`{"a":"b"}`)})
	w.waitFor(t, id, suspendedNow)
	w.stop()
	w.start(t, 0)
	if _, err := w.Recover(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.setExpiry(t, id, Expiry{At: time.Now().Add(far), Suspends: true}); err != nil {
		t.Fatal(err)
	}
	if i, err := w.Resume(t.Context(), id); err != nil || i.State != Running || string(i.Annotation) != `{"a":"b"}` ||
		!i.ExpirySuspends || time.Until(i.Expires) < far/2 {
		t.Errorf("%+v, %v", i, err)
	}
	w.KillAll()
	w.stop()
	w.checkClean(t)
}

// Close waits for a suspension that a timer has started, because files that the suspension uses are
// closed after Close.
func TestCloseWaitsForTimers(t *testing.T) {
	w := newWorld(t, 0)
	mustBake(t, w)
	begun, end := make(chan struct{}), make(chan struct{})
	w.vmms.Killing = sync.OnceFunc(func() { close(begun); <-end })
	forkOne(t, w, ForkRequest{TTL: soon, ExpirySuspends: true})
	<-begun
	closed := make(chan struct{})
	go func() { w.Close(false); close(closed) }()
	select {
	case <-closed:
		t.Error("closed amid a suspension")
	case <-time.After(20 * time.Millisecond):
	}
	close(end)
	<-closed
	w.Snapshots().Close()
}

// Before the daemon ends, it flushes its snapshots, even if a VMM does not answer.
func TestCloseDoesNotWaitForASilentVMM(t *testing.T) {
	w := newWorld(t, 0)
	id := w.source(t)
	w.vmms.Copying = make(chan struct{})
	if _, err := w.Branch(t.Context(), id, BranchRequest{Tag: "b", Mode: vm.BranchLive, NoWait: true}); err != nil {
		t.Fatal(err)
	}
	w.closeWithin(time.Millisecond)
	if err := w.Snapshots().Close(); err != nil {
		t.Error(err)
	}
	close(w.vmms.Copying) // the branch cannot be published any more
	w.background.Wait()
}

// The client that resumes a suspended sandbox sets its new expiry. A client that finds the sandbox
// already running does not change the expiry, because another client may have set it since.
func TestBringBackSetsTheTimeOnce(t *testing.T) {
	w := newWorld(t, 0)
	mustBake(t, w)
	id := forkOne(t, w, ForkRequest{TTL: far, ExpirySuspends: true})
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for _, lasts := range []time.Duration{3 * far, soon} {
		i, err := w.bringBackFor(t, id, lasts)
		if err != nil || i.State != Running || !i.ExpirySuspends || time.Until(i.Expires) < 2*far {
			t.Errorf("brought back for %v: %+v, %v", lasts, i, err)
		}
	}
	if _, err := w.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if i, err := w.bringBackFor(t, id, soon); err != nil || i.State != Paused || time.Until(i.Expires) < 2*far {
		t.Errorf("paused by an operator: %+v, %v", i, err)
	}
	w.KillAll()
	w.stop()
	w.checkClean(t)
}

// A sandbox is suspended and loses its expiry in one step. A client that changes the expiry at the
// same time finds the sandbox suspended. If the suspension fails, the sandbox has its old expiry
// again.
func TestSuspendingAndItsTimeAreOneStep(t *testing.T) {
	w := newWorld(t, 0)
	mustBake(t, w)
	id := forkOne(t, w, ForkRequest{TTL: far, ExpirySuspends: true})
	info := func() Info {
		s, err := w.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		return s.Info()
	}
	w.vmms.BranchErr = errors.New("no space left on device")
	if _, err := w.SuspendWith(t.Context(), id, Suspension{Timeless: true}); err == nil {
		t.Fatal("a failed save suspended it")
	}
	if i := info(); i.State != Running || !i.ExpirySuspends || time.Until(i.Expires) < far/2 {
		t.Errorf("after a suspension that failed: %+v", i)
	}
	w.vmms.BranchErr = nil
	found, saved := make(chan State, 1), make(chan error, 1)
	err := w.With(t.Context(), id, func(*Held) error {
		go func() { _, err := w.SuspendWith(t.Context(), id, Suspension{Timeless: true}); saved <- err }()
		time.Sleep(20 * time.Millisecond) // time for this call to wait for the lock
		go func() {
			err := w.With(t.Context(), id, func(h *Held) error {
				found <- h.Info().State
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}()
		time.Sleep(20 * time.Millisecond) // time for this call to enter the queue after the first call
		return nil
	})
	if err := errors.Join(err, <-saved); err != nil {
		t.Fatal(err)
	}
	if state := <-found; state != Suspended {
		t.Errorf("the time of a sandbox was changed amid its suspension, when it was %v", state)
	}
	if i := info(); i.State != Suspended || !i.Expires.IsZero() {
		t.Errorf("suspended without an end: %+v", i)
	}
	later := Expiry{At: time.Now().Add(far)}
	if i, err := w.resumeUntil(t, id, later); err != nil || i.State != Running || time.Until(i.Expires) < far/2 {
		t.Errorf("brought back: %+v, %v", i, err)
	}
	w.KillAll()
	w.stop()
	w.checkClean(t)
}

// If a sandbox is resumed after its expiry has passed, its expiry is removed, and the next daemon
// does not bring the expiry back.
func TestResumeAfterItsTimeHasPassed(t *testing.T) {
	w := newWorld(t, 0)
	mustBake(t, w)
	id := forkOne(t, w, ForkRequest{TTL: soon, ExpirySuspends: true})
	w.waitFor(t, id, suspendedNow)
	i, err := w.Resume(t.Context(), id)
	if err != nil || i.State != Running || !i.Expires.IsZero() || !i.ExpirySuspends {
		t.Errorf("%+v, %v", i, err)
	}
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	for _, read := range []func() (ledger.Record, error){
		func() (ledger.Record, error) { return ledger.Read(s.live.dir) },
		func() (ledger.Record, error) { return ledger.ReadSuspended(s.data) },
	} {
		if r, err := read(); err != nil || !r.Expires.IsZero() {
			t.Errorf("it is written that it ends at %v, %v", r.Expires, err)
		}
	}
	w.KillAll()
	w.stop()
	w.checkClean(t)
}

// If a sandbox has expired and is about to be deleted, it cannot be resumed.
func TestResumeBeforeADeletion(t *testing.T) {
	w := newWorld(t, 0)
	mustBake(t, w)
	id := forkOne(t, w, ForkRequest{TTL: far})
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	s.mu.Lock()
	s.record.Expires = now // the sandbox's timer is about to fire
	s.mu.Unlock()
	if i, err := w.Resume(t.Context(), id); err != nil || !i.Expires.Equal(now) {
		t.Fatalf("%+v, %v", i, err)
	}
	w.expire(s)
	w.waitFor(t, id, gone)
	w.stop()
	w.checkClean(t)
}

// A sandbox does not expire while it is being suspended, but its record keeps the expiry. If the
// daemon is killed before the sandbox is suspended, the sandbox still expires.
func TestTimeAmidASuspension(t *testing.T) {
	w := newWorld(t, 0)
	s, v := w.torn(t)
	end := time.Now().Add(far)
	if _, err := w.setExpiry(t, s.id, Expiry{At: end}); err != nil {
		t.Fatal(err)
	}
	var found ledger.Record
	v.branch = func() (err error) {
		found, err = ledger.Read(s.live.dir)
		s.mu.Lock()
		s.record.Expires = time.Now() // simulates a suspension that lasts until the expiry
		s.mu.Unlock()
		w.expire(s)
		return err
	}
	i, err := w.SuspendWith(t.Context(), s.id, Suspension{Timeless: true})
	if err != nil || i.State != Suspended || !i.Expires.IsZero() {
		t.Fatalf("%+v, %v", i, err)
	}
	if !found.Expires.Equal(end) {
		t.Errorf("the record says %v amid the suspension, want %v", found.Expires, end)
	}
	if r, err := ledger.ReadSuspended(s.data); err != nil || !r.Expires.IsZero() {
		t.Errorf("the suspended state has %v, %v", r.Expires, err)
	}
	w.KillAll()
	w.stop()
	w.checkClean(t)
}

// The expiry of a resumed sandbox is counted from the moment when the sandbox runs, even on a full
// disk, where its suspended state cannot be updated.
func TestTimeOfASandboxThatIsBroughtBack(t *testing.T) {
	for name, resume := range map[string]func(*world, string) (Info, error){
		"by a client": func(w *world, id string) (Info, error) {
			return w.resumeUntil(t, id, Expiry{At: time.Now().Add(far)})
		},
		"by a request": func(w *world, id string) (Info, error) { return w.bringBackFor(t, id, far) },
	} {
		w := newWorld(t, 0)
		mustBake(t, w)
		id := forkOne(t, w, ForkRequest{})
		if _, err := w.Suspend(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		s, err := w.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		state := filepath.Join(s.data, ledger.SuspendedFile)
		var confirmed time.Time
		w.vmms.ForkedErr = func(int) error {
			time.Sleep(time.Millisecond)
			confirmed = time.Now()
			return errors.Join(os.Rename(state, state+".aside"), os.Mkdir(state, 0o700))
		}
		i, err := resume(w, id)
		if err != nil || i.State != Running || i.Expires.Before(confirmed.Add(far)) {
			t.Errorf("%s: %+v, %v; want the time to pass %v after %v", name, i, err, far, confirmed)
		}
		if r, err := ledger.Read(s.live.dir); err != nil || !r.Expires.Equal(i.Expires) {
			t.Errorf("%s: the record has %v, %v", name, r.Expires, err)
		}
		if err := errors.Join(os.Remove(state), os.Rename(state+".aside", state)); err != nil {
			t.Fatal(err)
		}
		if i, err = w.setExpiry(t, id, Expiry{At: time.Now().Add(soon)}); err == nil {
			w.waitFor(t, id, gone)
		}
		w.stop()
		w.checkClean(t)
	}
}

func TestAnnotationIsBounded(t *testing.T) {
	w := newWorld(t, 0)
	_, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1, Annotation: make([]byte, ledger.MaxAnnotation+1)})
	if bad := (*invalid.Error)(nil); !errors.As(err, &bad) {
		t.Errorf("%v", err)
	}
	w.stop()
}

// The sandbox of a workspace does not expire, even if its fork has set an expiry. It also cannot
// get an expiry later.
func TestNoExpiryOfAWorkspace(t *testing.T) {
	w := newWorld(t, 0)
	mustBake(t, w)
	held, other := forkOne(t, w, ForkRequest{}), forkOne(t, w, ForkRequest{})
	at := time.Now().Add(2 * time.Second) // late enough for Hold to be called before, even on a busy host
	for _, id := range []string{held, other} {
		if _, err := w.setExpiry(t, id, Expiry{At: at}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Hold(held, "desk"); err != nil {
		t.Fatal(err)
	}
	refused := (*failure.HeldError)(nil)
	if _, err := w.setExpiry(t, held, Expiry{At: time.Now()}); !errors.As(err, &refused) {
		t.Errorf("a new expiry of a workspace's sandbox: %v", err)
	}
	w.waitFor(t, other, gone)
	if _, err := w.Get(held); err != nil {
		t.Errorf("the sandbox of a workspace: %v", err)
	}
	w.KillAll()
	if err := w.Release(held); err != nil {
		t.Fatal(err)
	}
	w.KillAll()
	w.stop()
	w.checkClean(t)
}
