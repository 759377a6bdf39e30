package sandbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/proto/frame/frametest"
	"github.com/forkd/forkd/internal/proto/netproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

func setting(t *testing.T, mode string, allow ...string) *netclient.Setting {
	t.Helper()
	p, err := netproto.ParsePolicy(mode, allow, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &netclient.Setting{Policy: p}
}

func (w *world) vm(id string) *vmfake.VMM {
	w.vmms.Mu.Lock()
	defer w.vmms.Mu.Unlock()
	return w.vmms.Live[filepath.Join(w.dir, "run", id)]
}

// wantMode waits until the guest of a sandbox receives an answer under the given mode. It skips
// answers that the fake forkd-net sent before the policy changed.
func (w *world) wantMode(t *testing.T, id, mode string) {
	t.Helper()
	w.wantAnswer(t, id, mode)
	s, err := w.Get(id)
	if have := s.Info().Network.Policy.Mode.String(); err != nil || have != mode {
		t.Errorf("sandbox %s says it has mode %s, not %s", id, have, mode)
	}
}

// wantAnswer is like wantMode, but the answer must contain the values of secrets after the mode.
func (w *world) wantAnswer(t *testing.T, id, mode string) {
	t.Helper()
	var got []byte
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		v := w.vm(id)
		if v == nil {
			t.Fatalf("sandbox %s has no VM", id)
		}
		_ = v.Say([]byte("x")) // send the data again, because the socket may have been replaced
		for {
			answer, err := v.Hear()
			if err != nil || len(answer) == 0 {
				break
			}
			got = answer
		}
		if string(got) == mode+" x" {
			return
		}
	}
	t.Fatalf("sandbox %s: answer %q, want mode %s", id, got, mode)
}

func newOnline(t *testing.T) *world {
	roots := filepath.Join(t.TempDir(), "roots.pem") // replaces the host's root certificates, which some hosts lack
	if err := os.WriteFile(roots, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", roots)
	w := newWorld(t, 0)
	w.stop()
	w.online = true
	w.start(t, 0)
	return w
}

func (w *world) forkOne(t *testing.T, tag string, network *netclient.Setting) string {
	t.Helper()
	r, err := w.Fork(t.Context(), ForkRequest{Tag: tag, N: 1, Network: network})
	if err != nil {
		t.Fatal(err)
	}
	return r.Sandboxes[0].ID
}

// A policy belongs to its sandbox. The policy is in force from the first frame on, and stays in
// force through all operations on the sandbox. Branches inherit the policy.
func TestNetworkPolicyStaysWithTheSandbox(t *testing.T) {
	w := newOnline(t)
	w.bake.Network = setting(t, "", "pypi.org")
	mustBake(t, w)
	w.wantMode(t, w.forkOne(t, "p", nil), "allow")
	w.wantMode(t, w.forkOne(t, "p", setting(t, "none")), "none")
	id := w.forkOne(t, "p", setting(t, "public"))
	w.wantMode(t, id, "public")

	w.branch(t, id, "b", vm.BranchLive)
	child := w.forkOne(t, "b", nil)
	w.wantMode(t, child, "public")
	if _, err := w.SetNetwork(asAdmin(t), id, *setting(t, "open")); err != nil {
		t.Fatal(err)
	}
	w.wantMode(t, id, "open")
	w.wantMode(t, child, "public")

	before := w.net.PID()
	w.stop()
	w.start(t, 0)
	if n, err := w.Recover(); n != 4 || err != nil {
		t.Fatalf("recovered %d, %v", n, err)
	}
	w.net.Forget()
	if w.net.PID() != before {
		t.Errorf("forkd-net is process %d, was %d", w.net.PID(), before)
	}
	w.wantMode(t, id, "open")

	if _, err := w.Rollback(t.Context(), id, "p", unique.AsBefore); err != nil {
		t.Fatal(err)
	}
	w.wantMode(t, id, "open")
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := w.SetNetwork(t.Context(), id, *setting(t, "none")); err != nil {
		t.Fatal(err)
	}
	w.stop()
	w.start(t, 0)
	if n, err := w.Recover(); n != 4 || err != nil {
		t.Fatalf("recovered %d, %v", n, err)
	}
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.wantMode(t, id, "none")

	// If the VM is lost, the sandbox returns to its suspended state, but with the latest policy.
	if _, err := w.SetNetwork(asAdmin(t), id, *setting(t, "allow", "10.0.0.1")); err != nil {
		t.Fatal(err)
	}
	w.vm(id).End(vm.Exit{Reason: vm.ExitPanic})
	for s, _ := w.Get(id); s.Info().State != Exited; {
		time.Sleep(time.Millisecond)
	}
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.wantMode(t, id, "allow")
	if link, _ := w.Link(id); link == nil {
		t.Error("it has no network")
	} else if stats, err := link.Stats(t.Context()); err != nil {
		t.Error(stats, err)
	}
	w.KillAll()
	w.checkClean(t)
	pid := w.net.PID()
	w.stop()
	if err := syscall.Kill(pid, 0); err == nil {
		t.Error("forkd-net outlives the last sandbox and the daemon")
	}
}

// A rollback ends the guest's old connections, because the VM gets a new frame socket.
func TestRollbackHasANewFrameSocket(t *testing.T) {
	w := newOnline(t)
	defer w.stop()
	mustBake(t, w)
	id := w.forkOne(t, "p", nil)
	w.wantMode(t, id, "public")
	v := w.vm(id)
	if err := v.Say([]byte("late")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Rollback(t.Context(), id, "", unique.AsBefore); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if answer, err := v.Hear(); err == nil && slices.Contains([]string{"public late"}, string(answer)) {
			t.Fatal("an answer to a frame from before the rollback arrived after it")
		}
		time.Sleep(time.Millisecond)
	}
	w.wantMode(t, id, "public")
	w.KillAll()
}

// If no frame socket can be made for a rollback, the sandbox stays as it was, whether it runs or is
// paused.
func TestRollbackWithoutAFrameSocketChangesNothing(t *testing.T) {
	w := newOnline(t)
	defer w.stop()
	mustBake(t, w)
	id := w.forkOne(t, "p", nil)
	w.wantMode(t, id, "public")
	v := w.vm(id)
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	for _, state := range []State{Running, Paused} {
		if state == Paused {
			if _, err := w.Pause(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		v.NoFrames.Store(true)
		if _, err := w.Rollback(t.Context(), id, "", unique.Refuse); !errors.Is(err, syscall.EMFILE) {
			t.Errorf("%s: %v", state, err)
		}
		v.NoFrames.Store(false)
		s.mu.Lock()
		rec := s.record
		s.mu.Unlock()
		if s.Info().State != state || w.vm(id) != v || rec.Restoring || rec.RestoringTo != nil || rec.Strict {
			t.Errorf("the sandbox is %s and its record %+v", s.Info().State, rec)
		}
		w.wantMode(t, id, "public")
	}
	if _, err := w.Rollback(t.Context(), id, "", unique.AsBefore); err != nil {
		t.Fatal(err)
	}
	w.wantMode(t, id, "public")
	w.KillAll()
}

// If forkd-net exits during an operation on a sandbox, the sandbox loses its connections and
// nothing else.
func TestForkdNetDiesUnderSandboxes(t *testing.T) {
	w := newOnline(t)
	defer w.stop()
	mustBake(t, w)
	r, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 20})
	if err != nil {
		t.Fatal(err)
	}
	paused := r.Sandboxes[0].ID
	if _, err := w.Pause(t.Context(), paused); err != nil {
		t.Fatal(err)
	}
	w.wantMode(t, r.Sandboxes[1].ID, "public")
	if err := syscall.Kill(w.net.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	more, err := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 5, Network: setting(t, "none")})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range r.Sandboxes {
		w.wantMode(t, s.ID, "public")
	}
	for _, s := range more.Sandboxes {
		w.wantMode(t, s.ID, "none")
	}
	w.KillAll()
}

// If this version of forkd does not know the network setting of a snapshot, a fork of the snapshot
// fails. The children do not start with a different policy instead.
func TestSnapshotWithAnUnknownPolicy(t *testing.T) {
	if _, err := netclient.FromSnapshot((&netclient.Setting{}).ForSnapshot()); err == nil {
		t.Error("a policy without a mode was accepted")
	}
	want := *setting(t, "allow", "*.a.b:22", "10.0.0.0/8")
	want.Limits.Connections = 3
	got, err := netclient.FromSnapshot(want.ForSnapshot())
	if err != nil || got.Policy.Allow[0] != want.Policy.Allow[0] || got.Limits != want.Limits ||
		got.Policy.Mode != want.Policy.Mode {
		t.Errorf("%+v became %+v, %v", want, got, err)
	}
}

// If a sandbox is deleted before its rollback connects it to the network again, the rollback leaves no
// connection behind.
func TestDeletionDuringARollbackLeavesNoLink(t *testing.T) {
	w := newOnline(t)
	defer w.stop()
	mustBake(t, w)
	s, err := w.Get(w.fork(t, "p"))
	if err != nil {
		t.Fatal(err)
	}
	v, rec := s.live, s.record
	if err := s.transition(rollBackOp, Restoring, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Kill(s.id); err != nil {
		t.Fatal(err)
	}
	var end openEnd
	link, err := w.net.Join(rec.ID, rec.Network, &end, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	v.link = link
	link.Ready()
	_, err = link.Stats(t.Context())
	for errors.Is(err, netclient.ErrDown) { // forkd-net is being started
		time.Sleep(time.Millisecond)
		_, err = link.Stats(t.Context())
	}
	if err != nil {
		t.Fatalf("the sandbox is not connected: %v", err)
	}
	var cut *CutOffError
	if err := w.endRolledBack(s, v, "p", errors.New("its VM has ended")); !errors.As(err, &cut) {
		t.Errorf("%v", err)
	}
	if _, err := link.Stats(t.Context()); err == nil {
		t.Error("a deleted sandbox is connected to the network")
	}
	w.KillAll()
}

// openEnd is a VM's end of a frame socket. It stays open. It implements netclient.VM.
type openEnd struct{ *os.File }

func (e *openEnd) DialFrames() (other *os.File, err error) {
	e.File, other, err = frametest.Pair()
	return other, err
}

func (*openEnd) SetNet(context.Context, bool) error { return nil }

func (*openEnd) Condemn(error) {}
