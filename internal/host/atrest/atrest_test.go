package atrest

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/crypt"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vault"
	"github.com/forkd/forkd/internal/proto/vm"
)

var ctx = context.Background()

// world is a store with a Crypter. The store's RAM is a real RAM file system.
type world struct {
	*Crypter
	t               *testing.T
	state, ram, key string
	store           *store.Store
	vault           *vault.Vault
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ram, err := os.MkdirTemp("/dev/shm", "forkd-atrest-")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { os.RemoveAll(ram) })
	w := &world{t: t, state: filepath.Join(t.TempDir(), "state"), ram: ram, key: filepath.Join(t.TempDir(), "key")}
	if err := os.WriteFile(w.key, bytes.Repeat([]byte("k"), 32), 0o600); err != nil {
		t.Fatal(err)
	}
	w.open()
	t.Cleanup(func() { w.store.Close() })
	return w
}

// open opens the store, as a starting daemon does.
func (w *world) open() {
	w.t.Helper()
	var err error
	w.vault, err = vault.Open(vault.Config{Dir: filepath.Join(w.state, "keys"), RAM: w.ram, KeyFile: w.key})
	if err != nil {
		w.t.Fatal(err)
	}
	if w.store, err = store.Open(store.Config{Root: w.state, RAM: w.ram, Vault: w.vault}); err != nil {
		w.t.Fatal(err)
	}
	w.Crypter = New(Config{Store: w.store, Vault: w.vault, Log: slog.New(slog.DiscardHandler)})
}

func (w *world) reopen() {
	w.t.Helper()
	if err := w.store.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.open()
}

// secretOf returns the text that is in the memory, the state and the disk of a snapshot.
func secretOf(tag string) string { return "secret of " + tag + " in every file" }

// make makes a snapshot with secretOf(tag) in every file. If from is not empty, the new snapshot is
// a branch of that snapshot.
func (w *world) make(tag, from string) {
	w.t.Helper()
	s := w.store
	g, err := s.Stage(tag)
	if err != nil {
		w.t.Fatal(err)
	}
	defer g.Discard()
	m := &snapshot.Manifest{Machine: snapshot.Machine{MemoryBytes: 64 << 20, VCPUs: 1, Template: "t"},
		Disk: &snapshot.Disk{SizeBytes: 8192}}
	page := bytes.Repeat([]byte(secretOf(tag)+"."), vm.PageSize)[:2*vm.PageSize]
	sizes := map[string]int64{snapshot.MemoryLayerFile: 32 << 20, snapshot.StateFile: 1 << 16, "top": 16 << 10}
	for name, size := range sizes {
		f, err := g.Create(name)
		if err == nil {
			err = f.Truncate(size) // most of it is a hole
		}
		if err == nil {
			_, err = f.WriteAt(page, 0)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			w.t.Fatal(err)
		}
	}
	var lower []*os.File
	if from == "" {
		w.useBase(g)
	} else {
		l, err := s.AcquireInClear(from)
		if err != nil {
			w.t.Fatal(err)
		}
		defer l.Release()
		p := l.Manifest()
		m.Parent, m.Memory = &snapshot.Ref{ID: p.ID, Tag: from}, slices.Clone(p.Memory)
		m.Disk.Base, m.Disk.Layers = p.Disk.Base, slices.Clone(p.Disk.Layers)
		lower = l.Disk()[1:]
		m.Branch = &snapshot.Branch{SandboxID: "sb", Mode: "diff"}
	}
	top, err := os.Open(g.Path("top"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer top.Close()
	// The layers consist of whole pages. The last layer is this snapshot's own.
	extent := []vm.Extent{{GPA: 0, Length: 2 * vm.PageSize, Layer: uint32(len(m.Memory)), Offset: 0}}
	if _, err := g.Publish(m, extent, append(slices.Clone(lower), top)); err != nil {
		w.t.Fatal(err)
	}
	if err := s.WaitFlushed(ctx, tag); err != nil {
		w.t.Fatal(err)
	}
	os.Remove(g.Path("top"))
	os.Remove(filepath.Join(w.state, "snapshots", tag, "top")) // a sandbox also removes its own link to the layer
}

// useBase adds a base image to a snapshot that is being made.
func (w *world) useBase(g *store.Staging) {
	w.t.Helper()
	base := filepath.Join(w.t.TempDir(), "base")
	if err := os.WriteFile(base, make([]byte, 8192), 0o400); err != nil {
		w.t.Fatal(err)
	}
	f, err := os.Open(base)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { f.Close() })
	if err := g.UseBase(f); err != nil {
		w.t.Fatal(err)
	}
}

// plain returns the files below the state directory and RAM that contain the secret of a snapshot.
func (w *world) plain(tag string) (files []string) {
	w.t.Helper()
	for _, dir := range []string{w.state, w.ram} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			p, err := os.ReadFile(path)
			if bytes.Contains(p, []byte(secretOf(tag))) {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	return files
}

// holds checks that a snapshot can be used, and that it contains its secret.
func (w *world) holds(tag string) {
	w.t.Helper()
	l, err := w.store.Acquire(tag)
	if err != nil {
		w.t.Error(err)
		return
	}
	defer l.Release()
	for _, f := range []*os.File{l.State(), l.Layers()[len(l.Layers())-1], l.Disk()[len(l.Disk())-1]} {
		p := make([]byte, 100)
		if _, err := f.ReadAt(p, 0); err != nil || !strings.HasPrefix(string(p), secretOf(tag)) {
			w.t.Errorf("%s of %s: %.40q, %v", f.Name(), tag, p, err)
		}
	}
}

func (w *world) encrypt(tag string, want, others []string) {
	w.t.Helper()
	r, err := w.Encrypt(ctx, tag)
	slices.Sort(r.Tags)
	if err != nil || !slices.Equal(r.Tags, want) || !slices.Equal(r.Others, others) {
		w.t.Fatalf("encrypted %v, in clear %v: %v; want %v, %v", r.Tags, r.Others, err, want, others)
	}
}

func (w *world) keys() int {
	w.t.Helper()
	list, err := os.ReadDir(filepath.Join(w.state, "keys"))
	if err != nil {
		w.t.Fatal(err)
	}
	return len(list)
}

func TestEncryptAndShred(t *testing.T) {
	w := newWorld(t)
	w.make("parent", "")
	w.make("a", "parent")
	w.make("a1", "a")
	w.make("b", "parent")
	if len(w.plain("a")) == 0 || len(w.plain("parent")) == 0 {
		t.Fatal("the test finds no plain data before the encryption")
	}
	w.encrypt("a", []string{"a", "a1"}, []string{"parent"})
	for range 2 { // also after a restart
		for _, tag := range []string{"a", "a1"} {
			if files := w.plain(tag); len(files) > 0 {
				t.Errorf("%s is in clear in %v", tag, files)
			}
			w.holds(tag)
			if files := w.plain(tag); len(files) > 0 {
				t.Errorf("after a use, %s is in clear in %v", tag, files)
			}
			if err := w.store.Verify(ctx, tag); err != nil {
				t.Error(err)
			}
			if i, err := w.store.Info(tag); err != nil || !i.Encrypted {
				t.Errorf("%s: %+v, %v", tag, i, err)
			}
		}
		w.holds("parent")
		w.holds("b")
		w.reopen()
	}
	w.encrypt("a", nil, []string{"parent"}) // nothing to do
	var secret *store.EncryptedError
	if _, err := w.store.AcquireInClear("a"); !errors.As(err, &secret) {
		t.Errorf("a lease for a branch: %v", err)
	}
	if _, err := w.store.Export(ctx, "a"); !errors.As(err, &secret) {
		t.Errorf("export: %v", err)
	}
	if _, err := w.Shred(ctx, "a1"); !errors.As(err, &secret) {
		t.Errorf("a key that other snapshots have was destroyed: %v", err)
	}
	if _, err := w.Shred(ctx, "b"); !errors.As(err, &secret) {
		t.Errorf("a snapshot in clear was shredded: %v", err)
	}
	w.holds("a1")
	r, err := w.Shred(ctx, "a")
	if slices.Sort(r.Tags); err != nil || !slices.Equal(r.Tags, []string{"a", "a1"}) || w.keys() != 0 {
		t.Errorf("shredded %v, %d keys are left: %v", r.Tags, w.keys(), err)
	}
	var none *store.NotFoundError
	if _, err := w.store.Acquire("a"); !errors.As(err, &none) {
		t.Errorf("a shredded snapshot: %v", err)
	}
	w.reopen()
	w.holds("parent")
	w.holds("b")
}

// If a parent is encrypted after one of its branches, all of its branches are then completely
// encrypted.
func TestEncryptParentLater(t *testing.T) {
	w := newWorld(t)
	w.make("parent", "")
	w.make("a", "parent")
	w.make("b", "parent")
	w.encrypt("a", []string{"a"}, []string{"parent"})
	w.encrypt("parent", []string{"a", "b", "parent"}, nil)
	for _, tag := range []string{"parent", "a", "b"} {
		if files := w.plain(tag); len(files) > 0 {
			t.Errorf("%s is in clear in %v", tag, files)
		}
		w.holds(tag)
	}
	one := func(tag, name string) uint64 {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(w.state, "snapshots", tag, name+crypt.Suffix), &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	d, err := w.store.Detail("parent")
	if err != nil {
		t.Fatal(err)
	}
	if one("parent", "memory.layer") != one("a", "memory.layer."+d.ID) {
		t.Error("the encrypted layer is not shared")
	}
	if _, err := w.Decrypt(ctx, "a"); err == nil {
		t.Error("layers of an encrypted snapshot were decrypted with its branch")
	}
	if r, err := w.Decrypt(ctx, "parent"); err != nil || len(r.Tags) != 3 || w.keys() != 0 {
		t.Errorf("decrypted %v, %d keys are left: %v", r.Tags, w.keys(), err)
	}
	for _, tag := range []string{"parent", "a", "b"} {
		w.holds(tag)
		if err := w.store.Verify(ctx, tag); err != nil {
			t.Error(err)
		}
		if i, err := w.store.Info(tag); err != nil || i.Encrypted {
			t.Errorf("%s: %+v, %v", tag, i, err)
		}
	}
	w.make("c", "a") // branches are possible again
}

func TestSnapshotsInUse(t *testing.T) {
	w := newWorld(t)
	w.make("parent", "")
	w.make("a", "parent")
	l, err := w.store.Acquire("a")
	if err != nil {
		t.Fatal(err)
	}
	var used *store.InUseError
	if _, err := w.Encrypt(ctx, "parent"); !errors.As(err, &used) {
		t.Errorf("encrypted although a sandbox runs from a branch: %v", err)
	}
	l.Release()
	w.encrypt("parent", []string{"a", "parent"}, nil)
	if l, err = w.store.Acquire("a"); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(context.Context, string) (Result, error){"decrypt": w.Decrypt, "shred": w.Shred} {
		if _, err := f(ctx, "parent"); !errors.As(err, &used) {
			t.Errorf("%s: %v", name, err)
		}
	}
	l.Release()
	w.holds("a")
	unpin, err := w.store.Pin("a") // as a suspended sandbox does
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Shred(ctx, "parent"); !errors.As(err, &used) {
		t.Errorf("shredded the state of a suspended sandbox: %v", err)
	}
	unpin()
	if _, err := w.store.Delete("parent", store.DeleteCascade); err != nil || w.keys() != 0 {
		t.Errorf("%d keys are left after the deletion: %v", w.keys(), err)
	}
}

// If a file has a link that the store does not know about, the encryption fails, because the link
// would keep the unencrypted content.
func TestForeignLink(t *testing.T) {
	w := newWorld(t)
	w.make("a", "")
	extra := filepath.Join(w.state, "link")
	if err := os.Link(filepath.Join(w.state, "snapshots", "a", snapshot.DiskLayerFile), extra); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Encrypt(ctx, "a"); err == nil || !strings.Contains(err.Error(), "link") {
		t.Errorf("encrypted: %v", err)
	}
	if w.holds("a"); w.keys() != 0 {
		t.Error("a key is left")
	}
}

func TestDamage(t *testing.T) {
	w := newWorld(t)
	w.make("a", "")
	w.make("b", "")
	w.encrypt("a", []string{"a"}, nil)
	w.encrypt("b", []string{"b"}, nil)
	file := func(tag, name string) string { return filepath.Join(w.state, "snapshots", tag, name) }
	for name, damage := range map[string]func(p []byte) []byte{
		snapshot.StateFile:       func(p []byte) []byte { p[len(p)/2] ^= 1; return p },
		snapshot.MemoryLayerFile: func(p []byte) []byte { return p[:len(p)-1] },
		snapshot.MemoryMapFile:   func(p []byte) []byte { return nil },
		snapshot.DiskLayerFile: func([]byte) []byte {
			p, _ := os.ReadFile(file("b", snapshot.DiskLayerFile+crypt.Suffix))
			return p
		},
	} {
		path := file("a", name+crypt.Suffix)
		old, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, damage(bytes.Clone(old)), 0o600); err != nil {
			t.Fatal(err)
		}
		var damaged *store.DamagedError
		if _, err := w.store.Acquire("a"); !errors.As(err, &damaged) || !errors.Is(err, crypt.ErrChanged) {
			t.Errorf("damaged %s: %v", name, err)
		}
		if err := os.WriteFile(path, old, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.holds("a")
	// Without the key, or with another key, the snapshot stays listed, but cannot be used.
	list, err := filepath.Glob(filepath.Join(w.state, "keys", "*"))
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	if err := os.WriteFile(w.key, bytes.Repeat([]byte("x"), 32), 0o600); err != nil {
		t.Fatal(err)
	}
	w.reopen()
	var no *vault.KeyError
	if _, err := w.store.Acquire("a"); !errors.As(err, &no) {
		t.Errorf("with another key file: %v", err)
	}
	for _, path := range list {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.store.Acquire("a"); !errors.Is(err, vault.ErrDestroyed) {
		t.Errorf("without the key: %v", err)
	}
	if _, err := w.Shred(ctx, "a"); err != nil { // completes an interrupted call
		t.Error(err)
	}
}

// A snapshot with volumes cannot be encrypted. The layers of its volumes are also files of the
// volumes themselves, which stay unencrypted.
func TestSnapshotsWithVolumesAreRefused(t *testing.T) {
	m := &snapshot.Manifest{ID: "a", Memory: []snapshot.File{{Owner: "a"}}, Volumes: []snapshot.Volume{{Name: "data"}}}
	w := &work{family: []store.Member{{Tag: "a", ID: "a", Manifest: m}}}
	var refused *store.EncryptedError
	if err := w.count(""); !errors.As(err, &refused) || !strings.Contains(err.Error(), "volumes") {
		t.Errorf("%v, want the refusal of volumes", err)
	}
}
