package atrest

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vault"
)

// If a client makes a branch while the parent is being encrypted, the branch is encrypted too.
func TestBranchesDuringTheEncryption(t *testing.T) {
	w := newWorld(t)
	w.make("parent", "")
	if err := w.store.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir() // the program of --kms-command waits there when it wraps the key
	program := filepath.Join(dir, "kms")
	script := "#!/bin/sh\ncase $1 in wrap) touch " + dir + "/begun; until test -e " + dir +
		"/go; do sleep 0.01; done;; esac\nexec cat\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	var err error
	w.vault, err = vault.Open(vault.Config{Dir: filepath.Join(w.state, "keys"), RAM: w.ram, Command: []string{program}})
	if err != nil {
		t.Fatal(err)
	}
	if w.store, err = store.Open(store.Config{Root: w.state, RAM: w.ram, Vault: w.vault}); err != nil {
		t.Fatal(err)
	}
	w.Crypter = New(Config{Store: w.store, Vault: w.vault, Log: slog.New(slog.DiscardHandler)})
	type result struct {
		Result
		err error
	}
	done := make(chan result)
	go func() {
		r, err := w.Encrypt(ctx, "parent")
		done <- result{r, err}
	}()
	for {
		if _, err := os.Stat(filepath.Join(dir, "begun")); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	w.make("late", "parent")
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.err != nil || len(r.Tags) != 2 {
		t.Errorf("encrypted %v: %v", r.Tags, r.err)
	}
	for _, tag := range []string{"parent", "late"} {
		if files := w.plain(tag); len(files) > 0 {
			t.Errorf("%s is in clear in %v", tag, files)
		}
		w.holds(tag)
	}
}

// If a daemon is killed after an encryption, it may leave unencrypted copies in RAM. The next
// daemon removes them.
func TestCopiesInRAMAfterAKill(t *testing.T) {
	w := newWorld(t)
	w.make("a", "")
	w.holds("a")
	d, err := w.store.Detail("a")
	if err != nil {
		t.Fatal(err)
	}
	layer, kept := filepath.Join(w.ram, d.ID), filepath.Join(t.TempDir(), "kept")
	if err := os.CopyFS(kept, os.DirFS(layer)); err != nil {
		t.Fatal(err)
	}
	w.encrypt("a", []string{"a"}, nil)
	if err := w.store.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(layer, os.DirFS(kept)); err != nil {
		t.Fatal(err)
	}
	if len(w.plain("a")) == 0 {
		t.Fatal("the test has made no copy in RAM")
	}
	w.open()
	if files := w.plain("a"); len(files) > 0 {
		t.Errorf("it is in clear in %v", files)
	}
	w.holds("a")
}

// Even if a snapshot has lost its EncryptionFile, for example in a backup, its data is still
// written only in encrypted form.
func TestLostEncryptionFile(t *testing.T) {
	w := newWorld(t)
	w.make("a", "")
	w.encrypt("a", []string{"a"}, nil)
	if err := os.Remove(filepath.Join(w.state, "snapshots", "a", store.EncryptionFile)); err != nil {
		t.Fatal(err)
	}
	w.reopen()
	w.holds("a")
	if _, err := w.store.AcquireInClear("a"); !errors.As(err, new(*store.EncryptedError)) {
		t.Errorf("a lease for a branch: %v", err)
	}
}

// A snapshot that arrives from another host cannot share encrypted files of this host. So these
// files count as missing.
func TestEncryptedLayersAreNotShared(t *testing.T) {
	w := newWorld(t)
	w.make("parent", "")
	w.make("a", "parent")
	for _, tag := range []string{"parent", "a"} {
		if err := w.store.Verify(ctx, tag); err != nil { // after this, its digests are known
			t.Fatal(err)
		}
	}
	w.reopen() // open files have the manifest without digests
	l, err := w.store.Acquire("a")
	if err != nil {
		t.Fatal(err)
	}
	m := artifact.Portable(l.Manifest())
	l.Release()
	shared := func() (list []string) {
		for n, has := range w.store.Shared(m) {
			if name := artifact.Parts(m)[n].Name; has && name != artifact.BasePart {
				list = append(list, name)
			}
		}
		return list
	}
	if len(shared()) != 2 {
		t.Errorf("in clear it shares %v", shared())
	}
	w.encrypt("parent", []string{"a", "parent"}, nil)
	if list := shared(); len(list) > 0 {
		t.Errorf("encrypted, it shares %v", list)
	}
}
