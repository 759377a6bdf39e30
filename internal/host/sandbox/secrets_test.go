package sandbox

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/netproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

// told records the messages that guests have received.
type told struct {
	mu  sync.Mutex
	ops []agentproto.Op
}

func (l *told) hear(r agentproto.Request) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ops = append(l.ops, r.Op)
	if r.Op == agentproto.OpTrust && !strings.Contains(r.Certificate, "BEGIN CERTIFICATE") {
		return errors.New("no certificate")
	}
	return nil
}

// wait waits until guests have received the operation op n times.
func (l *told) wait(t *testing.T, op agentproto.Op, n int) {
	t.Helper()
	var have int
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		have = 0
		l.mu.Lock()
		for _, o := range l.ops {
			if o == op {
				have++
			}
		}
		l.mu.Unlock()
		if have == n {
			return
		}
	}
	t.Fatalf("guests were told %s %d times, want %d", op, have, n)
}

func withSecret(s *netclient.Setting, value string) *netclient.Setting {
	s.Secrets = []netproto.Secret{{Host: "api.example.com", Header: "Authorization", Value: netproto.Hidden(value)}}
	return s
}

// filesWith returns the files below dir that contain a text, with their permissions.
func filesWith(t *testing.T, dir, text string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // the store drops unused layers if its disk is nearly full
			return nil
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		p, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !bytes.Contains(p, []byte(text)) {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode() != 0o600 {
			t.Errorf("%s has mode %o", path, info.Mode())
		}
		found = append(found, filepath.Base(path))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A secret stays with its sandbox through all operations. It is in exactly one file, which is
// deleted with the sandbox. Branches do not contain it.
func TestSecretsStayWithTheSandbox(t *testing.T) {
	w := newOnline(t)
	guests := &told{}
	w.vmms.Told = guests.hear
	mustBake(t, w)
	plain := w.forkOne(t, "p", setting(t, "public"))
	id := w.forkOne(t, "p", withSecret(setting(t, "public"), "s3cr3t"))
	w.wantAnswer(t, id, "public s3cr3t")
	w.wantAnswer(t, plain, "public")
	guests.wait(t, agentproto.OpTrust, 1)

	w.branch(t, id, "b", vm.BranchLive)
	w.wantAnswer(t, w.forkOne(t, "b", nil), "public")
	w.stop()
	w.start(t, 0)
	if _, err := w.Recover(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(w.net.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.wantAnswer(t, id, "public s3cr3t")

	if _, err := w.Rollback(t.Context(), id, "p", unique.AsBefore); err != nil {
		t.Fatal(err)
	}
	w.wantAnswer(t, id, "public s3cr3t")
	if _, err := w.Suspend(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if found := filesWith(t, w.dir, "s3cr3t"); len(found) != 1 || found[0] != ledger.SecretsFile {
		t.Errorf("the secret is in %q", found)
	}
	w.stop()
	w.start(t, 0)
	if _, err := w.Recover(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.wantAnswer(t, id, "public s3cr3t")
	w.vm(id).End(vm.Exit{Reason: vm.ExitPanic})
	for s, _ := w.Get(id); s.Info().State != Exited; {
		time.Sleep(time.Millisecond)
	}
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.wantAnswer(t, id, "public s3cr3t")
	guests.wait(t, agentproto.OpTrust, 4)

	w.KillAll()
	w.checkClean(t)
	if found := filesWith(t, w.dir, "s3cr3t"); len(found) > 0 {
		t.Errorf("the secret is left in %q", found)
	}
	w.stop()
}

// A client that changes the policy of a sandbox can keep a secret without knowing its value. The
// client can also replace the secret, or omit it and thus remove it. If the sandbox is paused, its
// guest receives the message when the sandbox runs again.
func TestSetSecrets(t *testing.T) {
	w := newOnline(t)
	defer w.stop()
	guests := &told{}
	w.vmms.Told = guests.hear
	mustBake(t, w)
	id := w.forkOne(t, "p", nil)
	for _, c := range []struct{ value, want string }{{"one", "open one"}, {"", "open one"}, {"two", "open two"}} {
		if _, err := w.SetNetwork(asAdmin(t), id, *withSecret(setting(t, "open"), c.value)); err != nil {
			t.Fatal(err)
		}
		w.wantAnswer(t, id, c.want)
	}
	guests.wait(t, agentproto.OpTrust, 3)
	if _, err := w.SetNetwork(asAdmin(t), id, *setting(t, "open")); err != nil {
		t.Fatal(err)
	}
	w.wantAnswer(t, id, "open")
	if found := filesWith(t, filepath.Join(w.dir, "data"), "two"); len(found) > 0 {
		t.Errorf("the secret is left in %q", found)
	}
	wrong := withSecret(setting(t, "open"), "")
	_, forked := w.Fork(t.Context(), ForkRequest{Tag: "p", N: 1, Network: wrong})
	_, set := w.SetNetwork(t.Context(), id, *wrong)
	for field, err := range map[string]error{"network.secrets[0].value": forked, "secrets[0].value": set} {
		var e *invalid.Error
		if !errors.As(err, &e) || e.Field != field {
			t.Errorf("%v, want an error of %s", err, field)
		}
	}

	if _, err := w.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := w.SetNetwork(t.Context(), id, *withSecret(setting(t, "public"), "three")); err != nil {
		t.Fatal(err)
	}
	guests.wait(t, agentproto.OpTrust, 3)
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	guests.wait(t, agentproto.OpTrust, 4)
	w.KillAll()
}

// If a guest refuses the CA, its programs cannot use secrets, so the fork fails.
func TestForkOfAGuestThatDoesNotTrust(t *testing.T) {
	w := newOnline(t)
	defer w.stop()
	w.vmms.Told = func(agentproto.Request) error { return errors.New("read-only file system") }
	mustBake(t, w)
	_, err := w.Fork(asAdmin(t), ForkRequest{Tag: "p", N: 1, Network: withSecret(setting(t, "open"), "s3cr3t")})
	if err == nil || !strings.Contains(err.Error(), "read-only") || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("%v", err)
	}
	w.checkClean(t)
}

// If forkd-net is replaced while a guest is paused, the daemon tells the guest to close its
// connections. The daemon does this as soon as the guest runs again.
func TestAPausedGuestIsToldOfANewForkdNet(t *testing.T) {
	w := newOnline(t)
	defer w.stop()
	guests := &told{}
	var still sync.Mutex
	paused := true
	w.vmms.Told = func(r agentproto.Request) error {
		still.Lock()
		defer still.Unlock()
		if paused {
			return errors.New("no answer")
		}
		return guests.hear(r)
	}
	mustBake(t, w)
	id := w.forkOne(t, "p", nil)
	w.wantMode(t, id, "public")
	if _, err := w.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(w.net.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.wantMode(t, id, "public") // an answer shows that the VM has the new frame socket
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	for owed := 0; owed == 0; time.Sleep(time.Millisecond) {
		owed = s.live.debts.Count()
	}
	still.Lock()
	paused = false
	still.Unlock()
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	guests.wait(t, agentproto.OpReset, 1)
	w.KillAll()
}

// However often the network of a paused sandbox changes, its guest gets only one message when the
// sandbox runs again. This message is about the latest change. The daemon stores no other messages.
func TestAPausedGuestIsToldOnce(t *testing.T) {
	w := newOnline(t)
	defer w.stop()
	guests := &told{}
	w.vmms.Told = guests.hear
	mustBake(t, w)
	id := w.forkOne(t, "p", nil)
	if _, err := w.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if _, err := w.SetNetwork(t.Context(), id, *withSecret(setting(t, "public"), "s3cr3t")); err != nil {
			t.Fatal(err)
		}
	}
	s, err := w.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	owed := s.live.debts.Count()
	if owed != 1 {
		t.Errorf("%d things are kept to be told, want 1", owed)
	}
	if _, err := w.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	guests.wait(t, agentproto.OpTrust, 1)
	w.KillAll()
}
