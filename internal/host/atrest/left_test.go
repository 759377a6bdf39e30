package atrest

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vault"
)

// If a snapshot without a readable manifest is deleted, its key is destroyed. If another snapshot
// also has the key, the key is kept.
func TestDeletionOfADamagedSnapshot(t *testing.T) {
	w := newWorld(t)
	w.make("parent", "")
	w.make("a", "parent")
	w.encrypt("parent", []string{"a", "parent"}, nil)
	for n, tag := range []string{"a", "parent"} {
		left := 1 - n
		w.holds("parent")
		damage := filepath.Join(w.state, "snapshots", tag, snapshot.ManifestFile)
		if err := os.WriteFile(damage, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		w.reopen()
		if _, err := w.store.Delete(tag, store.DeleteForce); err != nil || w.keys() != left {
			t.Errorf("after the deletion of %s %d keys are left, want %d: %v", tag, w.keys(), left, err)
		}
	}
}

// If the record of keys is lost, a snapshot still works and its key is still found. If the record
// is damaged, the snapshot cannot be used, and its deletion destroys the key.
func TestLostRecordOfKeys(t *testing.T) {
	w := newWorld(t)
	w.make("a", "")
	w.make("b", "")
	w.encrypt("a", []string{"a"}, nil)
	w.encrypt("b", []string{"b"}, nil)
	file := filepath.Join(w.state, "snapshots", "a", store.EncryptionFile)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	w.reopen()
	w.holds("a")
	if i, err := w.store.Info("a"); err != nil || !i.Encrypted {
		t.Errorf("%+v, %v", i, err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.reopen()
	var damaged *store.DamagedError
	if _, err := w.store.Acquire("a"); !errors.As(err, &damaged) || !strings.Contains(err.Error(), store.EncryptionFile) {
		t.Errorf("with a damaged record: %v", err)
	}
	if _, err := w.store.Delete("a", store.DeleteForce); err != nil || w.keys() != 1 {
		t.Errorf("after the deletion of a damaged snapshot %d keys are left: %v", w.keys(), err)
	}
	w.holds("b")
	if err := os.Remove(filepath.Join(w.state, "snapshots", "b", store.EncryptionFile)); err != nil {
		t.Fatal(err)
	}
	w.reopen()
	if _, err := w.store.Delete("b", store.DeleteForce); err != nil || w.keys() != 0 {
		t.Errorf("%d keys are left: %v", w.keys(), err)
	}
}

// A snapshot in a renamed directory cannot be used until the directory gets its name back. The key
// is kept until the snapshot is deleted.
func TestKeyOfARenamedSnapshot(t *testing.T) {
	w := newWorld(t)
	w.make("parent", "")
	w.make("a", "parent")
	w.encrypt("parent", []string{"a", "parent"}, nil)
	if err := w.store.Close(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(w.state, "snapshots")
	err := errors.Join(os.Rename(filepath.Join(dir, "parent"), filepath.Join(dir, "old")),
		os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, ".deleted-x")))
	if err != nil {
		t.Fatal(err)
	}
	w.open()
	if w.keys() != 1 {
		t.Errorf("with a renamed snapshot, %d keys are left", w.keys())
	}
	if _, err := w.store.Delete("old", store.DeleteForce); err != nil || w.keys() != 0 {
		t.Errorf("after its deletion, %d keys are left: %v", w.keys(), err)
	}
}

// If a daemon is killed while it deletes, encrypts or decrypts a snapshot, it leaves a directory.
// The next daemon destroys the directory's key if no snapshot has this key.
func TestKeysOfInterruptedChanges(t *testing.T) {
	for _, left := range []string{"snapshots/.deleted-x", "staging/rewrite-x"} {
		w := newWorld(t)
		w.make("parent", "")
		w.make("a", "parent")
		w.encrypt("parent", []string{"a", "parent"}, nil)
		for n, tag := range []string{"a", "parent"} {
			want := 1 - n
			if err := w.store.Close(); err != nil {
				t.Fatal(err)
			}
			err := os.Rename(filepath.Join(w.state, "snapshots", tag), filepath.Join(w.state, left))
			if err != nil {
				t.Fatal(err)
			}
			w.open()
			if _, err := os.Lstat(filepath.Join(w.state, left)); !errors.Is(err, os.ErrNotExist) || w.keys() != want {
				t.Errorf("%s of %s: %d keys are left, want %d; %v", left, tag, w.keys(), want, err)
			}
		}
	}
}

// A daemon that takes over a VM leases its snapshot without the key, because the VM has the decrypted
// files. The lease keeps the snapshot and its key.
func TestTakeOverWithoutTheKey(t *testing.T) {
	w := newWorld(t)
	w.make("a", "")
	w.encrypt("a", []string{"a"}, nil)
	l, err := w.store.Acquire("a")
	if err != nil {
		t.Fatal(err)
	}
	id := l.Manifest().ID
	l.Release()
	secret, err := os.ReadFile(w.key)
	if err == nil {
		err = os.WriteFile(w.key, bytes.Repeat([]byte("x"), 32), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.reopen()
	if l, err = w.store.AcquireRunning("a", id); err != nil || l.Manifest().ID != id {
		t.Fatal(err)
	}
	if _, err := w.store.Acquire("a"); !errors.As(err, new(*vault.KeyError)) {
		t.Errorf("a fork without the key: %v", err)
	}
	if _, err := w.store.AcquireInClear("a"); !errors.As(err, new(*store.EncryptedError)) {
		t.Errorf("a branch: %v", err)
	}
	var used *store.InUseError
	if _, err := w.store.Delete("a", store.DeleteForce); !errors.As(err, &used) {
		t.Errorf("deleted although a VM runs from it: %v", err)
	}
	if _, err := w.Shred(ctx, "a"); !errors.As(err, &used) {
		t.Errorf("shredded although a VM runs from it: %v", err)
	}
	if err := os.WriteFile(w.key, secret, 0o600); err != nil {
		t.Fatal(err)
	}
	w.holds("a")
	l.Release()
	if _, err := w.store.AcquireRunning("a", snapshot.NewID()); !errors.As(err, new(*store.ReplacedError)) {
		t.Errorf("with another ID: %v", err)
	}
	if _, err := w.store.Delete("a", store.DeleteForce); err != nil || w.keys() != 0 {
		t.Errorf("%d keys are left: %v", w.keys(), err)
	}
}
