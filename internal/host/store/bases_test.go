package store

import (
	"bytes"
	"errors"
	"github.com/forkd/forkd/internal/host/fileid"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/filedigest"
)

func acquire(s *Store, tag string) error {
	lease, err := s.Acquire(tag)
	if err == nil {
		lease.Release()
	}
	return err
}

// A snapshot's base stays usable when the image is moved. When the last snapshot that needs the
// base is deleted, the store forgets the base.
func TestBaseSurvivesTheMoveOfItsImage(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "a", "")
	publish(t, s, d, "b", "a")
	if err := os.Remove(d.base); err != nil { // simulates cleaning the cache
		t.Fatal(err)
	}
	s.Close()
	s = d.open(t)
	for _, tag := range []string{"a", "b"} {
		if err := s.Verify(t.Context(), tag); err != nil {
			t.Error(err)
		}
	}
	for _, tag := range []string{"b", "a"} {
		if left, _ := os.ReadDir(s.bases()); len(left) != 2 {
			t.Errorf("%v: want link and record while %s needs them", left, tag)
		}
		if _, err := s.Delete(tag, DeleteSingle); err != nil {
			t.Fatal(err)
		}
	}
	if left, _ := os.ReadDir(s.bases()); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}

// If the store cannot link an image, it finds the image by its path. If the image has moved, the
// next bake from it records the new path.
func TestBaseOnAnotherFileSystem(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "a", "")
	digest := s.manifestOf("a").Disk.Base.Digest
	if err := os.Remove(s.baseLink(digest)); err != nil { // simulates that the image could not be linked
		t.Fatal(err)
	}
	if err := acquire(s, "a"); err != nil {
		t.Fatal(err)
	}
	s.byTag["a"].cool()
	moved := d
	moved.base += ".moved"
	if err := os.Rename(d.base, moved.base); err != nil {
		t.Fatal(err)
	}
	if err := acquire(s, "a"); err == nil || !strings.Contains(err.Error(), d.base) {
		t.Fatalf("with a moved image: %v", err)
	}
	publish(t, s, moved, "b", "")
	if err := acquire(s, "a"); err != nil {
		t.Errorf("after a bake from where it is now: %v", err)
	}
}

// An image that has changed is no longer accepted as the base, neither by its path nor by the
// store's link.
func TestChangedBaseIsRefused(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "a", "")
	if err := os.Chmod(d.base, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.base, bytes.Repeat([]byte{1}, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	// The file system's clock may be too coarse to show the change.
	if err := os.Chtimes(d.base, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := acquire(s, "a"); err == nil || !strings.Contains(err.Error(), "was changed") {
		t.Fatalf("with a changed image: %v", err)
	}
	publish(t, s, d, "b", "")
	if a, b := s.manifestOf("a").Disk.Base, s.manifestOf("b").Disk.Base; a == b || acquire(s, "b") != nil {
		t.Errorf("bases %+v, %+v", a, b)
	}
}

// If a file was changed after its digest was computed, the file is not copied into the store under
// that digest.
func TestBaseIsCopiedWithItsDigest(t *testing.T) {
	d := newDirs(t)
	f, err := os.OpenFile(d.base, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	want, err := filedigest.Of(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "copy")
	if _, err := copyBase(t.Context(), name, f, want); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{42}, 0); err != nil {
		t.Fatal(err)
	}
	name += ".changed"
	if _, err := copyBase(t.Context(), name, f, want); err == nil || !strings.Contains(err.Error(), "was changed") {
		t.Errorf("a changed file: %v", err)
	}
	if _, err := os.Lstat(name); !os.IsNotExist(err) {
		t.Errorf("the copy of a changed file: %v", err)
	}
}

// If an image loses its name while it is being added, the store cannot find it again. So the store
// does not accept the image as a base, and records nothing.
func TestRemovedImageIsNoBase(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	for name, lose := range map[string]func() error{
		"removed": func() error { return os.Remove(d.base) },
		"replaced": func() error {
			return errors.Join(os.Remove(d.base), os.WriteFile(d.base, make([]byte, 8192), 0o600))
		},
	} {
		if err := errors.Join(os.RemoveAll(d.base), os.WriteFile(d.base, []byte(name), 0o600)); err != nil {
			t.Fatal(err)
		}
		g, err := s.Stage(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(d.base)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := lose(); err != nil {
			t.Fatal(err)
		}
		if err := g.UseBase(f); err != nil {
			t.Fatal(err)
		}
		if _, err := g.basing.wait(); err == nil || !strings.Contains(err.Error(), d.base) ||
			!strings.Contains(err.Error(), "build the image again") {
			t.Errorf("%s: %v", name, err)
		}
		if left, _ := os.ReadDir(s.bases()); len(left) != 0 {
			t.Errorf("%s: %v is recorded", name, left)
		}
		g.Discard()
	}
}

// The digest of an image is computed only once. A cancelled bake leaves nothing of its base behind.
func TestBaseIsDigestedOnce(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "a", "")
	f, err := os.Open(d.base)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	id, err := fileid.Of(f)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.knownDigest(id), s.manifestOf("a").Disk.Base.Digest; got != want {
		t.Errorf("known digest %q, want %q", got, want)
	}
	if _, err := s.Delete("a", DeleteSingle); err != nil {
		t.Fatal(err)
	}
	g, err := s.Stage("b")
	if err != nil {
		t.Fatal(err)
	}
	if err := g.UseBase(f); err != nil {
		t.Fatal(err)
	}
	<-g.basing.done
	if err := s.dropBases(); err != nil { // deleting another snapshot must not drop the base of a running bake
		t.Fatal(err)
	}
	if _, err := s.openBase(g.basing.base); err != nil {
		t.Error(err)
	}
	g.Discard()
	if left, _ := os.ReadDir(s.bases()); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}

// If a manifest cannot be read, its base is unknown, so all bases are kept.
func TestBasesOfDamagedSnapshotsAreKept(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "a", "")
	path := s.file("a", snapshot.ManifestFile)
	s.Close()
	kept, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.open(t).Close()
	if err := os.WriteFile(path, kept, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := acquire(d.open(t), "a"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(d.root, "bases")); err != nil {
		t.Error(err)
	}
}

// The first release wrote the records of bases without a version. These records can still be read.
// A record of a later version is refused, and the error names the file and the fix.
func TestRecordsOfBasesHaveAVersion(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "a", "")
	path := s.baseRecord(s.byTag["a"].manifest.Disk.Base.Digest)
	p, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(p), `{"version":1,`) {
		t.Fatalf("%s, %v", p, err)
	}
	for head, want := range map[string]string{
		`{`: "", `{"version":2,`: "version: 2", `{"version":1,"later":1,`: "later: unknown",
	} {
		changed := strings.Replace(string(p), `{"version":1,`, head, 1)
		if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		s.byTag["a"].cool()
		lease, err := s.Acquire("a")
		switch {
		case err == nil:
			lease.Release()
		case want == "" || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path):
			t.Errorf("%s: %v", head, err)
		}
		if want != "" && err == nil {
			t.Errorf("%s was read", head)
		}
	}
}

// The list names the base of a snapshot that is being made, so that clients know which image the
// snapshot needs. For a branch, the list has the base from the beginning. For a bake, it has the
// base as soon as the store has the image.
func TestUnfinishedSnapshotsHaveABase(t *testing.T) {
	d := newDirs(t)
	s := d.open(t)
	publish(t, s, d, "a", "")
	want := s.manifestOf("a").Disk.Base
	lease, err := s.Acquire("a")
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	branch, err := s.Stage("branch")
	if err != nil {
		t.Fatal(err)
	}
	defer branch.Discard()
	branch.For("a", lease)
	bake, err := s.Stage("bake")
	if err != nil {
		t.Fatal(err)
	}
	defer bake.Discard()
	if i, err := s.Info("bake"); err != nil || i.Base != (snapshot.Base{}) {
		t.Errorf("a bake without an image: %+v, %v", i, err)
	}
	f, err := os.Open(d.base)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := bake.UseBase(f); err != nil {
		t.Fatal(err)
	}
	if _, err := bake.basing.wait(); err != nil {
		t.Fatal(err)
	}
	for _, i := range s.List() {
		if i.Base != want || s.BaseImage(i.Base) != d.base {
			t.Errorf("%s: base %+v, image %q", i.Tag, i.Base, s.BaseImage(i.Base))
		}
	}
}
