package workspace

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmfake"
)

// world is a Set of workspaces with a manager of fake sandboxes. The manager has the snapshot "p".
type world struct {
	*Set
	manager *sandbox.Manager
	store   *store.Store
	vmms    *vmfake.VMMs
	dir     string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{dir: t.TempDir(), vmms: &vmfake.VMMs{}}
	w.start(t)
	file := filepath.Join(w.dir, "file")
	if err := os.WriteFile(file, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	baker := bake.New(bake.Config{Store: w.store, VMMs: w.vmms, Guest: func(string) bake.Guest {
		return vmfake.Guest{All: w.vmms}
	},
		RunDir: filepath.Join(w.dir, "run"), Template: "host", Accel: "kvm", Log: slog.New(slog.DiscardHandler)})
	if _, err := baker.Bake(t.Context(), bake.Request{Tag: "p", Kernel: file, Initrd: file, Rootfs: file}); err != nil {
		t.Fatal(err)
	}
	return w
}

// start opens the Set and the manager on the existing files, as a daemon does.
func (w *world) start(t *testing.T) {
	t.Helper()
	var err error
	if w.store, err = store.Open(store.Config{Root: filepath.Join(w.dir, "state"),
		RAM: filepath.Join(w.dir, "ram")}); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(w.dir, "data")
	log := slog.New(slog.DiscardHandler)
	w.manager, err = sandbox.New(sandbox.Config{
		Store: w.store, VMMs: w.vmms, Guest: func(string, string) sandbox.Guest { return vmfake.Guest{All: w.vmms} },
		NewTop: disklayer.Format, RunDir: filepath.Join(w.dir, "run"), DataDir: data, Observer: metrics{}, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.manager.Recover(); err != nil {
		t.Fatal(err)
	}
	if w.Set, err = Open(filepath.Join(data, "workspaces"), w.manager, log); err != nil {
		t.Fatal(err)
	}
}

func (w *world) stop() {
	w.manager.Close(false)
	w.store.Close()
}

// metrics is an Observer that counts nothing.
type metrics struct{}

func (metrics) Refused(string)                         {}
func (metrics) ForkDone(sandbox.ForkResult, error)     {}
func (metrics) ChildReady(sandbox.Timing)              {}
func (metrics) PoolRefilled(time.Duration)             {}
func (metrics) ConfirmFailed()                         {}
func (metrics) BranchDone(sandbox.BranchResult, error) {}
func (metrics) RollbackDone(error)                     {}
func (metrics) SandboxExited(string)                   {}

func TestWorkspace(t *testing.T) {
	w := newWorld(t)
	var werr *Error
	if _, err := w.Create(t.Context(), "ws", sandbox.ForkRequest{Tag: "missing"}); err == nil {
		t.Fatal("created over a missing snapshot")
	}
	info, err := w.Create(t.Context(), "ws", sandbox.ForkRequest{Tag: "p"})
	if err != nil || info.State != sandbox.Running {
		t.Fatalf("%+v, %v", info, err)
	}
	if _, err := w.Create(t.Context(), "ws", sandbox.ForkRequest{Tag: "p"}); !errors.As(err, &werr) || !werr.Exists {
		t.Errorf("twice: %v", err)
	}
	if info, err = w.Suspend(t.Context(), "ws"); err != nil || info.State != sandbox.Suspended || info.StateTag == "" {
		t.Fatalf("%+v, %v", info, err)
	}
	w.stop()
	w.start(t)
	defer w.stop()
	if info, err = w.Resume(t.Context(), "ws"); err != nil || info.State != sandbox.Running {
		t.Fatalf("%+v, %v", info, err)
	}
	if list := w.List(); len(list) != 1 || list[0].Name != "ws" {
		t.Errorf("%+v", list)
	}
	if err := w.Delete("ws"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Get("ws"); !errors.As(err, &werr) {
		t.Errorf("after deleting: %v", err)
	}
	if n := w.vmms.Count(); n != 0 {
		t.Errorf("%d VMs are left", n)
	}
	if _, err := os.Stat(w.Set.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of records is left: %v", err)
	}
}

// Requests to delete one sandbox or all sandboxes do not delete the sandbox of a workspace. The
// sandbox may be running or suspended, before or after a restart. Only the deletion of the
// workspace deletes its sandbox.
func TestWorkspaceIsNotKilled(t *testing.T) {
	w := newWorld(t)
	info, err := w.Create(t.Context(), "ws", sandbox.ForkRequest{Tag: "p"})
	if err != nil {
		t.Fatal(err)
	}
	refused := func() {
		t.Helper()
		w.manager.KillAll()
		var held *failure.HeldError
		if err := w.manager.Kill(info.SandboxID); !errors.As(err, &held) || held.Workspace != "ws" {
			t.Errorf("kill: %v", err)
		}
	}
	refused()
	if _, err := w.Suspend(t.Context(), "ws"); err != nil {
		t.Fatal(err)
	}
	refused()
	w.stop()
	w.start(t)
	defer w.stop()
	refused()
	if info, err := w.Resume(t.Context(), "ws"); err != nil || info.State != sandbox.Running {
		t.Fatalf("%+v, %v", info, err)
	}
	refused()
	if err := w.Delete("ws"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.manager.Get(info.SandboxID); err == nil || w.vmms.Count() != 0 {
		t.Errorf("its sandbox is left: %v, %d VMs", err, w.vmms.Count())
	}
}

// meddler implements Sandboxes. It calls a function of the test at the first Release.
type meddler struct {
	Sandboxes
	meddle func()
}

func (m *meddler) Release(id string) error {
	if f := m.meddle; f != nil {
		m.meddle = nil
		f()
	}
	return m.Sandboxes.Release(id)
}

// A workspace is deleted by two concurrent calls, and created again under the same name between the
// two deletions. The second deletion does not release the new workspace's sandbox. If it did, the
// sandbox would belong to a workspace that does not exist, and could never be deleted.
func TestDeletedTwiceAndMadeAgain(t *testing.T) {
	w := newWorld(t)
	defer w.stop()
	create := func() {
		if _, err := w.Create(t.Context(), "ws", sandbox.ForkRequest{Tag: "p"}); err != nil {
			t.Fatal(err)
		}
	}
	create()
	w.sandboxes = &meddler{w.sandboxes, func() {
		if err := w.Delete("ws"); err != nil {
			t.Fatal(err)
		}
		create()
	}}
	if err := w.Delete("ws"); err != nil {
		t.Fatal(err)
	}
	if info, err := w.Get("ws"); err != nil || info.State != sandbox.Running {
		t.Errorf("the new workspace: %+v, %v", info, err)
	}
	if err := w.Delete("ws"); err != nil || w.vmms.Count() != 0 {
		t.Errorf("%v, %d VMs are left", err, w.vmms.Count())
	}
}

// Records of workspaces can be read even if the records have no version yet. If the record of a
// workspace cannot be read, the workspace keeps its name and its record.
func TestRecords(t *testing.T) {
	w := newWorld(t)
	info, err := w.Create(t.Context(), "ws", sandbox.ForkRequest{Tag: "p"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Suspend(t.Context(), "ws"); err != nil {
		t.Fatal(err)
	}
	w.stop()
	golden, err := os.ReadFile("../../format/record/testdata/workspace.v0.json")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(w.dir, "data", "workspaces", "ws.json")
	v0 := strings.Replace(string(golden), "sb-xf7fuss3aofzm6y274yssrolum", info.SandboxID, 1)
	for _, c := range []struct {
		name, text string
		read       bool
	}{
		{"another version", strings.Replace(v0, "{", `{"version":2,`, 1), false},
		{"an unknown field", strings.Replace(v0, "{", `{"later":true,`, 1), false},
		{"another name", strings.Replace(v0, `"ws"`, `"other"`, 1), false},
		{"no sandbox", strings.Replace(v0, info.SandboxID, "", 1), false},
		{"torn", v0[:len(v0)-1], false},
		{"version 0", v0, true},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		w.start(t)
		if i, err := w.Get("ws"); c.read != (err == nil) || err == nil &&
			(i.SandboxID != info.SandboxID || i.ID != "ws-cnmucn3eufmtxzm2ktgh7nkdgm" || i.State != sandbox.Suspended) {
			t.Errorf("%s: %+v, %v", c.name, i, err)
		}
		var taken *Error
		if _, err := w.Create(t.Context(), "ws", sandbox.ForkRequest{Tag: "p"}); !errors.As(err, &taken) ||
			taken.Unread == c.read {
			t.Errorf("%s: created again: %v", c.name, err)
		}
		if now, err := os.ReadFile(path); err != nil || string(now) != c.text {
			t.Errorf("%s: the record is %s, %v", c.name, now, err)
		}
		if !c.read {
			w.stop()
		}
	}
	defer w.stop()
	if i, err := w.Resume(t.Context(), "ws"); err != nil || i.State != sandbox.Running {
		t.Errorf("%+v, %v", i, err)
	}
	if err := w.Delete("ws"); err != nil {
		t.Fatal(err)
	}
}

// A record that a killed daemon did not complete is removed.
func TestIncompleteRecordsAreRemoved(t *testing.T) {
	w := newWorld(t)
	if _, err := w.Create(t.Context(), "ws", sandbox.ForkRequest{Tag: "p"}); err != nil {
		t.Fatal(err)
	}
	w.stop()
	left := filepath.Join(w.dir, "data", "workspaces", ".ws.json.new-123")
	if err := os.WriteFile(left, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.start(t)
	defer w.stop()
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the incomplete record: %v", err)
	}
	if _, err := w.Get("ws"); err != nil {
		t.Error(err)
	}
}

// While the record of one workspace is being written to a slow disk, other workspaces can be
// listed, created and deleted.
func TestASlowRecordStopsItsWorkspaceOnly(t *testing.T) {
	w := newWorld(t)
	defer w.stop()
	for _, name := range []string{"slow", "other"} {
		if _, err := w.Create(t.Context(), name, sandbox.ForkRequest{Tag: "p"}); err != nil {
			t.Fatal(err)
		}
	}
	w.mu.Lock()
	e := w.byName["slow"]
	w.mu.Unlock()
	e.file.Lock() // simulates a write that never ends
	suspended := make(chan error)
	go func() {
		_, err := w.Suspend(t.Context(), "slow")
		suspended <- err
	}()
	for info, err := w.Get("slow"); info.State != sandbox.Suspended; info, err = w.Get("slow") {
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	if list := w.List(); len(list) != 2 {
		t.Errorf("%+v", list)
	}
	if _, err := w.Create(t.Context(), "third", sandbox.ForkRequest{Tag: "p"}); err != nil {
		t.Error(err)
	}
	if err := w.Delete("other"); err != nil {
		t.Error(err)
	}
	select {
	case err := <-suspended:
		t.Errorf("it did not wait for its record: %v", err)
	default:
	}
	e.file.Unlock()
	if err := <-suspended; err != nil {
		t.Error(err)
	}
}
