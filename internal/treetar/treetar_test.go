package treetar

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// open returns an os.Root. The file victim is outside of this root, and the test fails if the file
// is changed.
func open(t *testing.T) (root *os.Root, dir, victim string) {
	t.Helper()
	base := t.TempDir()
	dir, victim = filepath.Join(base, "in"), filepath.Join(base, "out")
	for _, d := range []string{dir, victim} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root, dir, victim
}

func write(t *testing.T, path, text string, mode fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func TestThereAndBack(t *testing.T) {
	from := t.TempDir()
	if err := os.MkdirAll(from+"/a/empty", 0o750); err != nil {
		t.Fatal(err)
	}
	write(t, from+"/a/tool", "#!/bin/sh\n", 0o755)
	write(t, from+"/a/secret", strings.Repeat("x", 100000), 0o600)
	if err := os.Symlink("../elsewhere", from+"/a/link"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(from+"/pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1234567890, 0)
	if err := os.Chtimes(from+"/a/tool", at, at); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := Pack(&archive, from); err != nil {
		t.Fatal(err)
	}
	root, dir, _ := open(t)
	write(t, dir+"/keep", "", 0o600)
	made := map[string]bool{}
	err := Unpack(&archive, Target{Root: root, Made: func(name string) error { made[name] = true; return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := os.Stat(dir + "/a/tool"); err != nil || s.Mode().Perm() != 0o755 || !s.ModTime().Equal(at) {
		t.Errorf("tool: %v, %v", s, err)
	}
	if p, err := os.ReadFile(dir + "/a/secret"); err != nil || len(p) != 100000 {
		t.Errorf("secret: %d bytes, %v", len(p), err)
	}
	if l, err := os.Readlink(dir + "/a/link"); err != nil || l != "../elsewhere" {
		t.Errorf("link: %q, %v", l, err)
	}
	if s, err := os.Stat(dir + "/a/empty"); err != nil || !s.IsDir() {
		t.Errorf("empty directory: %v", err)
	}
	if _, err := os.Lstat(dir + "/pipe"); err == nil {
		t.Error("a pipe came along")
	}
	if _, err := os.Stat(dir + "/keep"); err != nil {
		t.Errorf("what was there: %v", err)
	}
	if len(made) != 5 {
		t.Errorf("made %v", made)
	}
}

// With Bits, entries get the archive's permissions, but no other mode bits.
func TestBits(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	for _, exact := range []bool{false, true} {
		root, dir, _ := open(t)
		file := entry{tar.Header{Typeflag: tar.TypeReg, Name: "d/f", Mode: 0o4666}, "x"}
		err := Unpack(archive(t, entry{tar.Header{Typeflag: tar.TypeDir, Name: "d", Mode: 0o1777}, ""}, file),
			Target{Root: root, Bits: exact})
		if err != nil {
			t.Fatal(err)
		}
		wantDir, wantFile := fs.FileMode(0o700), fs.FileMode(0o600)
		if exact {
			wantDir, wantFile = 0o777, 0o666
		}
		for name, want := range map[string]fs.FileMode{"/d": wantDir | fs.ModeDir, "/d/f": wantFile} {
			if s, err := os.Stat(dir + name); err != nil || s.Mode() != want {
				t.Errorf("exact %v, %s: %v, %v; want %v", exact, name, s.Mode(), err, want)
			}
		}
	}
}

func TestPackOfAFile(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/f", "one", 0o644)
	var archive bytes.Buffer
	if err := Pack(&archive, dir+"/f"); err != nil {
		t.Fatal(err)
	}
	if h, err := tar.NewReader(&archive).Next(); err != nil || h.Name != "f" || h.Size != 3 {
		t.Errorf("%+v, %v", h, err)
	}
	if err := Pack(io.Discard, dir+"/none"); err == nil {
		t.Error("nothing was packed")
	}
}

// entry is an entry of a hostile archive.
type entry struct {
	tar.Header
	content string
}

func archive(t *testing.T, entries ...entry) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		e.Size, e.Format = int64(len(e.content)), tar.FormatPAX
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// A hostile archive cannot write outside of the directory.
func TestHostileArchives(t *testing.T) {
	file := func(name string) entry {
		return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o6777}, "evil"}
	}
	link := func(name, to string) entry {
		return entry{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}, ""}
	}
	hard := func(name, to string) entry {
		return entry{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}, ""}
	}
	for name, c := range map[string]struct {
		entries []entry
		refused bool
	}{
		"dots":                  {[]entry{file("../out/victim")}, true},
		"dots within":           {[]entry{file("a/../../out/victim")}, true},
		"an absolute name":      {[]entry{file("VICTIM/victim")}, false}, // the file is made inside the directory
		"a link and through it": {[]entry{link("l", "../out"), file("l/victim")}, true},
		"an absolute link":      {[]entry{link("l", "VICTIM"), file("l/victim")}, true},
		"a chain of links":      {[]entry{link("a", "."), link("a/b", ".."), file("b/out/victim")}, true},
		"a link as the file":    {[]entry{link("f", "../out/victim"), file("f")}, false}, // the link is replaced
		"a hard link out":       {[]entry{hard("h", "../out/victim")}, true},
		"a hard link by a link": {[]entry{link("l", "../out"), hard("h", "l/victim")}, true},
		"a directory by a link": {[]entry{link("l", "../out/new"), {tar.Header{Typeflag: tar.TypeDir, Name: "l/",
			Mode: 0o777}, ""}}, true},
		"a loop":                {[]entry{link("l", "l"), file("l/x")}, true},
		"a device":              {[]entry{{tar.Header{Typeflag: tar.TypeBlock, Name: "d", Devmajor: 8}, ""}}, false},
		"a pipe":                {[]entry{{tar.Header{Typeflag: tar.TypeFifo, Name: "p"}, ""}}, false},
		"an empty name":         {[]entry{file("")}, false},
		"a file for the root":   {[]entry{file(".")}, false},
		"a file as a directory": {[]entry{file("f"), file("f/g")}, true},
		"set-user-id":           {[]entry{file("s")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			root, dir, victim := open(t)
			write(t, victim+"/victim", "mine", 0o600)
			for i := range c.entries {
				c.entries[i].Name = strings.Replace(c.entries[i].Name, "VICTIM", victim, 1)
				c.entries[i].Linkname = strings.Replace(c.entries[i].Linkname, "VICTIM", victim, 1)
			}
			if err := Unpack(archive(t, c.entries...), Target{Root: root}); (err != nil) != c.refused {
				t.Errorf("%v; refused should be %v", err, c.refused)
			}
			if p, err := os.ReadFile(victim + "/victim"); err != nil || string(p) != "mine" {
				t.Errorf("the victim has %q, %v", p, err)
			}
			if list, err := os.ReadDir(victim); err != nil || len(list) != 1 {
				t.Errorf("beside the victim: %v, %v", list, err)
			}
			err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
				if err != nil {
					return err
				}
				if m := e.Type(); m != 0 && m != fs.ModeDir && m != fs.ModeSymlink {
					t.Errorf("%s was made: %v", path, m)
				}
				if i, err := e.Info(); err != nil || i.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0 {
					t.Errorf("%s: %v, %v", path, i.Mode(), err)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// If an entry of a few bytes claims a size above the bound, Unpack writes nothing.
func TestHugeClaim(t *testing.T) {
	root, dir, _ := open(t)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Size: math.MaxInt64 / 2,
		Format: tar.FormatPAX}); err != nil {
		t.Fatal(err)
	}
	if err := Unpack(&b, Target{Root: root}); err == nil || !strings.Contains(err.Error(), "GiB") {
		t.Errorf("%v", err)
	}
	if list, _ := os.ReadDir(dir); len(list) != 0 {
		t.Errorf("made %v", list)
	}
}

func FuzzUnpack(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: ".."})
	w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "l/f", Size: 1})
	w.Write([]byte("x"))
	w.Close()
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, p []byte) {
		root, _, victim := open(t)
		_ = Unpack(io.LimitReader(bytes.NewReader(p), 1<<16), Target{Root: root})
		if list, err := os.ReadDir(victim); err != nil || len(list) != 0 {
			t.Errorf("%v, %v", list, err)
		}
	})
}

// Unpack refuses names that no file system can have, and names that would make it slow to walk the
// tree.
func TestNamesOfNoFileSystem(t *testing.T) {
	for name, c := range map[string]string{
		"a long name":       strings.Repeat("abc/", 1100) + "f",
		"a long part":       "a/" + strings.Repeat("b", 256),
		"a deep name":       strings.Repeat("a/", 255) + "b",
		"a name of slashes": strings.Repeat("/", 5000) + "a",
	} {
		for _, typ := range []byte{tar.TypeReg, tar.TypeDir, tar.TypeSymlink} {
			root, _, _ := open(t)
			h := tar.Header{Typeflag: typ, Name: c, Mode: 0o755, Linkname: "x"}
			if err := Unpack(archive(t, entry{h, ""}), Target{Root: root}); err == nil ||
				!strings.Contains(err.Error(), "want at most") {
				t.Errorf("%s, type %q: %v", name, typ, err)
			}
		}
	}
}

// Directories can be made through a link that stays inside the tree. Made is called once for each
// directory.
func TestDirectoriesByALink(t *testing.T) {
	root, dir, _ := open(t)
	var made []string
	deep := strings.Repeat("d/", 200)
	err := Unpack(archive(t,
		entry{tar.Header{Typeflag: tar.TypeDir, Name: "b/", Mode: 0o755}, ""},
		entry{tar.Header{Typeflag: tar.TypeSymlink, Name: "a/l", Linkname: "../b"}, ""},
		entry{tar.Header{Typeflag: tar.TypeReg, Name: "a/l/new/" + deep + "f", Mode: 0o644}, "text"},
	), Target{Root: root, Made: func(name string) error { made = append(made, name); return nil }})
	if p, err2 := os.ReadFile(dir + "/b/new/" + deep + "f"); err != nil || err2 != nil || string(p) != "text" {
		t.Errorf("%q, %v, %v", p, err, err2)
	}
	if want := 4 + 200 + 1; len(made) != want || made[3] != "a/l/new" || made[4] != "a/l/new/d" {
		t.Errorf("%d were made, want %d: %.40q…", len(made), want, made)
	}
}
