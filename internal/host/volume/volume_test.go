package volume

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/invalid"
)

const mib = 1 << 20

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func create(t *testing.T, s *Store, name string) Info {
	t.Helper()
	v, err := s.Create(Request{Name: name, Owner: "token:ci", SizeMiB: 16, Labels: map[string]string{"a": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// isError reports whether err is an *Error with these fields.
func isError(err error, exists, unread bool) bool {
	var e *Error
	return errors.As(err, &e) && e.Exists == exists && e.Unread == unread
}

func TestLife(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	b, a := create(t, s, "b"), create(t, s, "a")
	if a.ID == b.ID || a.Owner != "token:ci" || a.SizeBytes != 16*mib || a.Labels["a"] != "b" || a.Created.IsZero() {
		t.Errorf("%+v", a)
	}
	if a.DiskBytes == 0 || a.DiskBytes > 2*mib {
		t.Errorf("an empty volume takes %d bytes", a.DiskBytes)
	}
	if _, err := s.Create(Request{Name: "a", Owner: "x", SizeMiB: 16}); !isError(err, true, false) {
		t.Errorf("a second volume with the name: %v", err)
	}
	again := open(t, dir)
	for _, s := range []*Store{s, again} {
		list := s.List(nil)
		if len(list) != 2 || list[0].ID != a.ID || list[1].ID != b.ID {
			t.Errorf("%+v", list)
		}
		if got, err := s.Get("a"); err != nil || got.Labels["a"] != "b" || !got.Created.Equal(a.Created) ||
			got.DiskBytes != a.DiskBytes {
			t.Errorf("%+v %v, want %+v", got, err, a)
		}
	}
	if err := again.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Get("a"); !isError(err, false, false) {
		t.Errorf("after its removal: %v", err)
	}
	if err := again.Remove(t.Context(), "a"); !isError(err, false, false) {
		t.Errorf("a second removal: %v", err)
	}
	if names := files(t, dir); !slices.Equal(names, []string{"b"}) {
		t.Errorf("%v are left", names)
	}
	if v := create(t, again, "a"); v.ID == a.ID {
		t.Error("a new volume has the id of a removed one")
	}
}

// The removal of a volume by its id does not remove a later volume with the same name.
func TestRemovalByID(t *testing.T) {
	s := open(t, t.TempDir())
	first := create(t, s, "data")
	if err := s.Remove(t.Context(), "data"); err != nil {
		t.Fatal(err)
	}
	second := create(t, s, "data")
	var missing *Error
	if err := s.RemoveID(t.Context(), "data", first.ID); !errors.As(err, &missing) || missing.Name != first.ID {
		t.Errorf("the id of the former volume: %v, want an *Error", err)
	}
	if i, err := s.Get("data"); err != nil || i.ID != second.ID {
		t.Errorf("the volume is %+v, %v", i, err)
	}
	if err := s.RemoveID(t.Context(), "data", second.ID); err != nil {
		t.Error(err)
	}
}

func TestBaseImageIsAFileSystem(t *testing.T) {
	tool, err := exec.LookPath("/usr/sbin/e2fsck")
	if err != nil {
		t.Skip("needs e2fsck, of the Debian package e2fsprogs")
	}
	dir := t.TempDir()
	s := open(t, dir)
	if _, err := s.Create(Request{Name: "a", Owner: "x", SizeMiB: 1024}); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(tool, "-fn", filepath.Join(dir, "a", baseFile)).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestRequestsAreChecked(t *testing.T) {
	s := open(t, t.TempDir())
	for field, req := range map[string]Request{
		"name":     {Name: "../a", SizeMiB: 16},
		"size_mib": {Name: "a", SizeMiB: MaxSize>>20 + 1},
		"labels":   {Name: "a", SizeMiB: 16, Labels: map[string]string{"": ""}},
	} {
		_, err := s.Create(req)
		if e := (*invalid.Error)(nil); !errors.As(err, &e) || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, size := range []uint64{0, 15, 1 << 44, 1<<44 + 16, 1<<64 - 1} {
		if _, err := s.Create(Request{Name: "a", Owner: "x", SizeMiB: size}); err == nil {
			t.Errorf("a volume of %d MiB was created", size)
		}
	}
	if list := s.List(nil); len(list) > 0 {
		t.Errorf("%+v", list)
	}
}

// TestCrash copies the files after every step of a creation and of a removal, as a killed daemon
// would leave them. A Store that opens the copy has the complete volume or none, and can go on.
func TestCrash(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "volumes")
	s := open(t, dir)
	other := create(t, s, "other")
	var steps []string
	s.step = func(done string) {
		steps = append(steps, done)
		copied := filepath.Join(t.TempDir(), "volumes")
		if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		next := open(t, copied)
		got, err := next.Get("a")
		if err != nil && !isError(err, false, false) {
			t.Fatalf("after %q: %v", done, err)
		}
		want := []string{"other"}
		if err == nil {
			want = []string{"a", "other"}
		}
		if names := files(t, copied); !slices.Equal(names, want) {
			t.Errorf("after %q: %v, want %v", done, names, want)
		}
		if err == nil && (got.SizeBytes != 16*mib || next.Remove(t.Context(), "a") != nil) {
			t.Errorf("after %q: %+v cannot be removed", done, got)
		}
		create(t, next, "a")
		if v, err := next.Get("other"); err != nil || v.ID != other.ID {
			t.Errorf("after %q: %+v %v", done, v, err)
		}
	}
	create(t, s, "a")
	if err := s.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if len(steps) != 7 {
		t.Errorf("the steps are %q", steps)
	}
}

// TestFullDisk fills the disk at different steps. A failed creation leaves nothing, and the name can
// be used again.
func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root mounts a file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Skipf("mount tmpfs: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	volumes, ballast := filepath.Join(dir, "volumes"), filepath.Join(dir, "ballast")
	s := open(t, volumes)
	refused := map[string]bool{}
	for free := 0; ; free += 4096 {
		var last string
		s.step = func(done string) { last = done }
		if err := os.WriteFile(ballast, make([]byte, 3*mib-free), 0o600); err != nil && !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		_, err := s.Create(Request{Name: "a", Owner: "x", SizeMiB: 128})
		if err == nil {
			break
		}
		if !errors.Is(err, unix.ENOSPC) || free > mib {
			t.Fatalf("with %d bytes free: %v", free, err)
		}
		refused[last] = true
		if _, err := s.Get("a"); !isError(err, false, false) {
			t.Fatalf("with %d bytes free: %v", free, err)
		}
		if names := files(t, volumes); len(names) > 0 {
			t.Fatalf("with %d bytes free, %v are left", free, names)
		}
	}
	if !refused["made the base image"] || !refused["wrote the base image"] {
		t.Errorf("the disk was full only after %v", refused)
	}
	if err := os.WriteFile(ballast, make([]byte, 3*mib), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), "a"); err != nil {
		t.Errorf("on a full disk: %v", err)
	}
}

// TestRefusedVolumes checks that a volume whose record or files are damaged is left alone, and keeps
// its name.
func TestRefusedVolumes(t *testing.T) {
	edit := func(old, new string) func(dir string) error {
		return func(dir string) error {
			path := filepath.Join(dir, recordFile)
			p, err := os.ReadFile(path)
			changed := bytes.Replace(p, []byte(old), []byte(new), 1)
			if err != nil || bytes.Equal(changed, p) {
				return errors.Join(err, errors.New("nothing was changed"))
			}
			return os.WriteFile(path, changed, 0o600)
		}
	}
	base := func(change func(path string) error) func(dir string) error {
		return func(dir string) error { return change(filepath.Join(dir, baseFile)) }
	}
	for name, damage := range map[string]func(dir string) error{
		"unknown-field": edit(`"id"`, `"writer":"sb-1","id"`),
		"later-version": edit(`"version":1`, `"version":2`),
		"no-version":    edit(`"version":1,`, ``),
		"no-owner":      edit(`"owner":"token:ci",`, ``),
		"other-name":    edit(`"name":"`, `"name":"x`),
		"other-size":    edit(`"size_bytes":16777216`, `"size_bytes":16777217`),
		"torn":          edit(`}`, ``),
		"no-record":     func(dir string) error { return os.Remove(filepath.Join(dir, recordFile)) },
		"no-base":       base(os.Remove),
		"short-base":    base(func(path string) error { return os.Truncate(path, mib) }),
		"long-base":     base(func(path string) error { return os.Truncate(path, 17*mib) }),
		"linked-base": base(func(path string) error {
			return errors.Join(os.Remove(path), os.Symlink("/dev/zero", path))
		}),
		"directory-base": base(func(path string) error {
			return errors.Join(os.Remove(path), os.Mkdir(path, 0o700))
		}),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			create(t, open(t, dir), name)
			if err := damage(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
			before := files(t, filepath.Join(dir, name))
			var log bytes.Buffer
			s, err := Open(Config{Dir: dir, Log: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Get(name); !isError(err, false, true) {
				t.Errorf("get: %v", err)
			}
			if err := s.Remove(t.Context(), name); !isError(err, false, true) {
				t.Errorf("remove: %v", err)
			}
			if _, err := s.Create(Request{Name: name, Owner: "x", SizeMiB: 16}); !isError(err, true, true) {
				t.Errorf("create: %v", err)
			}
			if len(s.List(nil)) > 0 || !slices.Equal(files(t, filepath.Join(dir, name)), before) {
				t.Errorf("%+v, files %v, want %v", s.List(nil), files(t, filepath.Join(dir, name)), before)
			}
			if !strings.Contains(log.String(), filepath.Join(dir, name)) {
				t.Errorf("the log does not name the file: %s", log.String())
			}
		})
	}
}

// A copy of a directory has the id of another volume, and cannot be used. Other files are ignored.
func TestForeignFiles(t *testing.T) {
	dir := t.TempDir()
	first := create(t, open(t, dir), "first")
	if err := os.CopyFS(filepath.Join(dir, "second"), os.DirFS(filepath.Join(dir, "first"))); err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(dir, "second", recordFile)
	p, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	p = bytes.Replace(p, []byte(`"first"`), []byte(`"second"`), 1)
	if err := errors.Join(os.WriteFile(record, p, 0o600), os.WriteFile(filepath.Join(dir, "-x"), nil, 0o600),
		os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	if list := s.List(nil); len(list) != 1 || list[0].ID != first.ID {
		t.Errorf("%+v", list)
	}
	for _, name := range []string{"second", "file"} {
		if _, err := s.Get(name); !isError(err, false, true) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if names := files(t, dir); !slices.Equal(names, []string{"-x", "file", "first", "second"}) {
		t.Errorf("%v", names)
	}
}

func TestQuota(t *testing.T) {
	s := open(t, t.TempDir())
	s.cfg.Most = 40 * mib
	req := Request{Owner: "token:ci", SizeMiB: 16}
	var made, refused atomic.Int32
	var group sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d"} {
		group.Go(func() {
			req := req
			req.Name = name
			_, err := s.Create(req)
			var e *admit.Error
			switch {
			case err == nil:
				made.Add(1)
			case errors.As(err, &e) && e.Code == admit.CodeVolumeQuota:
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	group.Wait()
	if made.Load() != 2 || refused.Load() != 2 {
		t.Errorf("%d volumes were made and %d refused, want 2 and 2", made.Load(), refused.Load())
	}
	if _, err := s.Create(Request{Name: "x", Owner: "another", SizeMiB: 40}); err != nil {
		t.Errorf("the quota of another owner: %v", err)
	}
	if err := s.Remove(t.Context(), s.List(nil)[0].Name); err != nil {
		t.Fatal(err)
	}
	req.Name = "after"
	if _, err := s.Create(req); err != nil {
		t.Errorf("after a removal: %v", err)
	}
}

func TestNumberIsLimited(t *testing.T) {
	s := open(t, t.TempDir())
	for i := range MaxPerOwner {
		if _, err := s.reserve(Request{Name: fmt.Sprint("v", i), SizeMiB: 16}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.Create(Request{Name: "one-more", SizeMiB: 16})
	if e := (*admit.Error)(nil); !errors.As(err, &e) || e.Code != admit.CodeVolumeQuota {
		t.Error(err)
	}
}

func TestNoRoomOnTheHost(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	full := &admit.Error{Code: admit.CodeHostDisk}
	s.cfg.Room = func(*os.File, uint64) error { return full }
	if _, err := s.Create(Request{Name: "a", Owner: "x", SizeMiB: 16}); !errors.Is(err, full) {
		t.Error(err)
	}
	if names := files(t, dir); len(names) > 0 {
		t.Errorf("%v are left", names)
	}
}

// Of several concurrent requests for one name, one succeeds.
func TestOneNameOnce(t *testing.T) {
	s := open(t, t.TempDir())
	var made atomic.Int32
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if _, err := s.Create(Request{Name: "a", Owner: "x", SizeMiB: 16}); err == nil {
				made.Add(1)
			} else if !isError(err, true, false) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if made.Load() != 1 {
		t.Errorf("%d volumes have one name", made.Load())
	}
}
