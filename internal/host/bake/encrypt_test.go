package bake

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/vault"
)

// names returns the names of the files below a directory of the kitchen.
func (w *kitchen) names(t *testing.T, dir string) (list []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(w.dir, dir, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		list = append(list, filepath.Base(path))
	}
	return list
}

func (w *kitchen) keys(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir(filepath.Join(w.dir, "state", "keys"))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// The disk of a parent that will be encrypted is in RAM while the parent runs. Afterwards the
// host's disk has only its encrypted files. A failed bake leaves no key.
func TestEncryptedBake(t *testing.T) {
	w := newKitchen(t)
	w.request.Encrypt, w.request.Commands = true, []string{"true"}
	var running, inRAM []string
	code := 1
	w.vmms.Exec = func(context.Context) agentclient.ExecResult {
		running, inRAM = w.names(t, "state/staging"), w.names(t, "ram")
		return agentclient.ExecResult{Outcome: agentclient.Exited, ExitCode: code}
	}
	if _, err := w.Bake(t.Context(), w.request); err == nil {
		t.Error("the warm-up fails, and the bake does not")
	}
	if w.checkClean(t); w.keys(t) != 0 {
		t.Errorf("a failed bake leaves %d keys", w.keys(t))
	}
	code = 0
	r, err := w.Bake(t.Context(), w.request)
	if err != nil || !r.Info.Encrypted {
		t.Fatalf("%+v, %v", r.Info, err)
	}
	if !slices.Equal(running, []string{"encryption.json"}) || !slices.Contains(inRAM, snapshot.DiskLayerFile) {
		t.Errorf("while the parent runs, the disk has %q of it, and RAM %q", running, inRAM)
	}
	for _, name := range w.names(t, "state/snapshots") {
		if !strings.HasSuffix(name, ".enc") && name != "encryption.json" && name != snapshot.ManifestFile {
			t.Errorf("the snapshot has the file %s", name)
		}
	}
	if w.checkClean(t); w.keys(t) != 1 {
		t.Errorf("%d keys", w.keys(t))
	}
	lease, err := w.cfg.Store.Acquire("p")
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
}

// If a guest writes more to its disk than fits into RAM, only its own bake ends.
func TestEncryptedBakeFillsTheRAM(t *testing.T) {
	w := newKitchen(t)
	ram := filepath.Join(w.dir, "ram")
	const room = 2 << 20 // bytes beyond the reserve of the store
	if err := unix.Mount("tmpfs", ram, "tmpfs", 0, "size=258m,mode=700"); err != nil {
		t.Skip("cannot mount a tmpfs: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(ram, 0); err != nil {
			t.Error(err)
		}
	})
	w.request.Encrypt, w.request.Commands = true, []string{"true"}
	w.vmms.Exec = func(ctx context.Context) agentclient.ExecResult {
		tops, err := filepath.Glob(filepath.Join(ram, "*", snapshot.DiskLayerFile))
		if err == nil && len(tops) == 1 {
			err = os.WriteFile(tops[0], make([]byte, room), 0o600)
		}
		if err != nil || len(tops) != 1 {
			t.Error(tops, err)
			return agentclient.ExecResult{}
		}
		<-ctx.Done()
		return agentclient.ExecResult{}
	}
	var full *vault.RoomError
	if _, err := w.Bake(t.Context(), w.request); !errors.As(err, &full) {
		t.Errorf("bake: %v", err)
	}
	if w.checkClean(t); w.keys(t) != 0 {
		t.Errorf("%d keys are left", w.keys(t))
	}
}
