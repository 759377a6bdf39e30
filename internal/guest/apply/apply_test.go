package apply

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/diffproto"
)

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// entry is a change in an archive. According to the archive, the change replaces the present file,
// or no file if absent is set.
type entry struct {
	name    string
	kind    byte // type of the entry in tar; 0 means a deletion
	content string
	absent  bool
	mode    int64
	xattrs  map[string]string
}

// archive returns an archive of changes for the tree in dir.
func archive(t *testing.T, dir string, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		state, err := stateOf(unix.AT_FDCWD, filepath.Join(dir, e.name))
		must(t, err)
		if e.absent {
			state = diffproto.State{}
		}
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Mode: max(e.mode, 0o600), Uid: os.Getuid(), Gid: os.Getgid(),
			Format: tar.FormatPAX, PAXRecords: map[string]string{diffproto.RecordOnto: state.String()}}
		for name, value := range e.xattrs {
			h.PAXRecords[xattrRecord+name] = value
		}
		switch e.kind {
		case 0:
			h.Typeflag, h.PAXRecords[diffproto.RecordDelete] = tar.TypeReg, "1"
		case tar.TypeReg:
			h.Size = int64(len(e.content))
		case tar.TypeSymlink, tar.TypeLink:
			h.Linkname = e.content
		}
		must(t, w.WriteHeader(h))
		if e.kind == tar.TypeReg {
			_, err = io.WriteString(w, e.content)
			must(t, err)
		}
	}
	must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader,
		PAXRecords: map[string]string{diffproto.RecordEnd: strconv.Itoa(len(entries))}}), w.Close())
	return b.Bytes()
}

// newTree returns a tree with the files a, d/x and d/y, a directory e, and a link l to a directory outside.
func newTree(t *testing.T) *Tree {
	t.Helper()
	fill := &Tree{Dir: t.TempDir()}
	fillTree(t, fill.Dir)
	return fill
}

func fillTree(t *testing.T, dir string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.MkdirAll(at("d"), 0o755), os.Mkdir(at("e"), 0o755), os.WriteFile(at("a"), []byte("old a"), 0o644),
		os.WriteFile(at("d/x"), []byte("old x"), 0o644), os.WriteFile(at("d/y"), []byte("old y"), 0o644),
		os.Symlink(t.TempDir(), at("l")))
}

// content describes all files of a tree. If exact is set, it includes inodes and times, and so
// shows every change.
func content(t *testing.T, dir string, exact bool) string {
	t.Helper()
	var list []string
	must(t, filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		must(t, err)
		rel, err := filepath.Rel(dir, p)
		must(t, err)
		text := rel
		if exact {
			st, err := stateOf(unix.AT_FDCWD, p)
			must(t, err)
			st.CTime = 0 // a rename changes CTime
			if e.IsDir() {
				st.MTime, st.Size = 0, 0
			}
			text += " " + st.String()
		}
		if e.Type().IsRegular() {
			bytes, err := os.ReadFile(p)
			must(t, err)
			text += "=" + string(bytes)
		}
		if e.Type() == fs.ModeSymlink && !exact {
			target, err := os.Readlink(p)
			must(t, err)
			text += "→" + filepath.Base(target)
		}
		list = append(list, text)
		return nil
	}))
	return strings.Join(list, "|")
}

func TestApply(t *testing.T) {
	tree := newTree(t)
	n, err := tree.Apply(bytes.NewReader(archive(t, tree.Dir,
		entry{name: "a", kind: tar.TypeReg, content: "new a", mode: 0o4755, xattrs: map[string]string{"user.n": "v\x00="}},
		entry{name: "b", kind: tar.TypeLink, content: "a"},
		entry{name: "d"}, entry{name: "d/x"}, entry{name: "d/y"},
		entry{name: "e/", kind: tar.TypeDir, mode: 0o711, xattrs: map[string]string{"user.d": "1"}},
		entry{name: "e/fifo", kind: tar.TypeFifo},
		entry{name: "l", kind: tar.TypeDir, mode: 0o755},
		entry{name: "l/new", kind: tar.TypeSymlink, content: "../a"},
	)))
	if err != nil || n != 9 {
		t.Fatalf("%d changes, %v", n, err)
	}
	if got, want := content(t, tree.Dir, false), ".|a=new a|b=new a|e|e/fifo|l|l/new→a"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	a, err := os.Stat(filepath.Join(tree.Dir, "a"))
	must(t, err)
	b, err := os.Stat(filepath.Join(tree.Dir, "b"))
	must(t, err)
	e, err := os.Stat(filepath.Join(tree.Dir, "e"))
	must(t, err)
	value := make([]byte, 9)
	size, err := unix.Getxattr(filepath.Join(tree.Dir, "a"), "user.n", value)
	if !os.SameFile(a, b) || a.Mode() != 0o755|fs.ModeSetuid || e.Mode().Perm() != 0o711 || err != nil ||
		string(value[:size]) != "v\x00=" {
		t.Errorf("%v %v %v, %q, %v", a.Mode(), b.Mode(), e.Mode(), value[:size], err)
	}
}

// After every error, the tree has its old files, with their inodes and times, and nothing else.
func TestAllOrNothing(t *testing.T) {
	whole := func(t *testing.T, dir string) []byte {
		return archive(t, dir, entry{name: "a", kind: tar.TypeReg, content: "new a"}, entry{name: "d"},
			entry{name: "d/x"}, entry{name: "d/y"}, entry{name: "n", kind: tar.TypeReg, content: strings.Repeat("n", 4000)})
	}
	changed := (*ChangedError)(nil)
	for name, c := range map[string]struct {
		make func(t *testing.T, dir string) []byte
		then func(t *testing.T, dir string) // what a program does before the changes
		is   func(error) bool
	}{
		"cut off in a file": {make: func(t *testing.T, dir string) []byte { w := whole(t, dir); return w[:len(w)-4000] }},
		"cut off at an entry": {make: func(t *testing.T, dir string) []byte {
			w := whole(t, dir)
			return w[:bytes.Index(w, []byte(strings.Repeat("n", 4000)))+4096]
		}, is: func(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) }},
		"another number": {make: func(t *testing.T, dir string) []byte {
			return bytes.Replace(whole(t, dir), []byte("FORKD.end=5"), []byte("FORKD.end=4"), 1)
		}},
		"written": {make: whole, then: func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, "a"), []byte("odd a"), 0o644))
		}, is: func(err error) bool { return errors.As(err, &changed) && changed.Paths[0] == "/a" }},
		"added": {make: whole, then: func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, "n"), nil, 0o644))
		}, is: func(err error) bool { return errors.As(err, &changed) && changed.Paths[0] == "/n" }},
		"added in a removed directory": {make: whole, then: func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, "d/z"), nil, 0o644))
		}, is: func(err error) bool { return errors.As(err, &changed) && changed.Paths[0] == "/d" }},
		"fails after four changes": {make: func(t *testing.T, dir string) []byte {
			return archive(t, dir, entry{name: "a", kind: tar.TypeReg, content: "new a"}, entry{name: "d"},
				entry{name: "d/x"}, entry{name: "d/y"}, entry{name: "e/", kind: tar.TypeDir, mode: 0o700},
				entry{name: "n", kind: tar.TypeReg, content: "n"}, entry{name: "none/f", kind: tar.TypeReg, content: "f"})
		}, is: func(err error) bool { return errors.Is(err, unix.ENOENT) }},
		"through a link": {make: func(t *testing.T, dir string) []byte {
			return archive(t, dir, entry{name: "a", kind: tar.TypeReg, content: "new a"},
				entry{name: "l/f", kind: tar.TypeReg, content: "f", absent: true})
		}, is: func(err error) bool { return errors.Is(err, unix.ELOOP) }},
		"out of the tree": {make: func(t *testing.T, dir string) []byte {
			return archive(t, dir, entry{name: "../f", kind: tar.TypeReg, content: "f", absent: true})
		}},
		"an absolute path": {make: func(t *testing.T, dir string) []byte {
			return archive(t, dir, entry{name: "/f", kind: tar.TypeReg, content: "f", absent: true})
		}},
		"the root": {make: func(t *testing.T, dir string) []byte { return archive(t, dir, entry{name: "."}) }},
		"twice": {make: func(t *testing.T, dir string) []byte {
			return archive(t, dir, entry{name: "n", kind: tar.TypeReg}, entry{name: "n", kind: tar.TypeReg})
		}},
		"below a removed directory": {make: func(t *testing.T, dir string) []byte {
			return archive(t, dir, entry{name: "d"}, entry{name: "d/n", kind: tar.TypeReg})
		}},
		"a link to a file of the tree": {make: func(t *testing.T, dir string) []byte {
			return archive(t, dir, entry{name: "n", kind: tar.TypeLink, content: "a"})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			tree := newTree(t)
			packed := c.make(t, tree.Dir)
			if c.then != nil {
				c.then(t, tree.Dir)
			}
			before := content(t, tree.Dir, true)
			n, err := tree.Apply(bytes.NewReader(packed))
			if err == nil || n != 0 || c.is != nil && !c.is(err) {
				t.Errorf("%d changes, %v", n, err)
			}
			if after := content(t, tree.Dir, true); after != before {
				t.Errorf("the tree has changed\nfrom %s\nto   %s", before, after)
			}
		})
	}
}

// staged returns a stage with the changes of an archive.
func staged(t *testing.T, tree *Tree, entries ...entry) *stage {
	t.Helper()
	root, err := unix.Open(tree.Dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	s, err := newStage(root)
	must(t, err, s.unpack(bytes.NewReader(archive(t, tree.Dir, entries...))), s.verify())
	t.Cleanup(func() { must(t, unix.Close(s.dir), unix.Close(root)) })
	return s
}

// write writes a file in place. The file gets the time of another day, so that tests do not depend
// on the clock.
func write(t *testing.T, name, content string) {
	t.Helper()
	day := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	must(t, os.WriteFile(name, []byte(content), 0o644), os.Chtimes(name, day, day))
}

// save writes a file as an editor does: it renames a new file over the old one.
func save(t *testing.T, name, content string) {
	t.Helper()
	write(t, name+".new", content)
	must(t, os.Rename(name+".new", name))
}

// Apply finds a write below a directory that it removes or replaces, even after the first
// comparison.
func TestWrittenBelowRemoved(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, d string){
		"in place":     func(t *testing.T, d string) { write(t, d+"/x", "precious") },
		"saved deeper": func(t *testing.T, d string) { save(t, d+"/sub/z", "precious") },
		"added deeper": func(t *testing.T, d string) { write(t, d+"/sub/other", "precious") },
		"removed":      func(t *testing.T, d string) { must(t, os.Remove(d+"/sub/z")) },
	} {
		for what, d := range map[string]entry{"removed": {name: "d"}, "replaced": {name: "d", kind: tar.TypeReg}} {
			t.Run(name+", "+what, func(t *testing.T) {
				tree := newTree(t)
				at := filepath.Join(tree.Dir, "d")
				must(t, os.Mkdir(at+"/sub", 0o755), os.WriteFile(at+"/sub/z", []byte("old z"), 0o644))
				s := staged(t, tree, entry{name: "a", kind: tar.TypeReg, content: "new a"}, d, entry{name: "d/sub"},
					entry{name: "d/sub/z"}, entry{name: "d/x"}, entry{name: "d/y"})
				change(t, at)
				before := content(t, at, true)
				err := s.commit()
				if changed := (*ChangedError)(nil); !errors.As(err, &changed) || !strings.HasPrefix(changed.Paths[0], "/d/") {
					t.Errorf("%v", err)
				}
				a, err := os.ReadFile(filepath.Join(tree.Dir, "a"))
				if after := content(t, at, true); after != before || err != nil || string(a) != "old a" {
					t.Errorf("a is %q, %v; d has changed\nfrom %s\nto   %s", a, err, before, after)
				}
			})
		}
	}
}

// A file below a removed directory may have a hard link elsewhere. Apply accepts an archive in
// which another change removes or replaces this link.
func TestLinkBelowRemoved(t *testing.T) {
	tree := newTree(t)
	for _, name := range []string{"b", "c"} {
		must(t, os.Link(filepath.Join(tree.Dir, "d/x"), filepath.Join(tree.Dir, name)))
	}
	n, err := tree.Apply(bytes.NewReader(archive(t, tree.Dir, entry{name: "b"}, entry{name: "c", kind: tar.TypeReg},
		entry{name: "d"}, entry{name: "d/x"}, entry{name: "d/y"})))
	if err != nil || n != 5 {
		t.Fatalf("%d changes, %v", n, err)
	}
	if got, want := content(t, tree.Dir, false), ".|a=old a|c=|e|l→"; !strings.HasPrefix(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
}

// An undo leaves a path alone if a program has written there since the changes, and keeps the old
// file of this path in the stage.
func TestUndoKeepsWrites(t *testing.T) {
	at := func(tree *Tree, name string) string { return filepath.Join(tree.Dir, name) }
	for name, c := range map[string]struct {
		change func(t *testing.T, tree *Tree)
		left   []string
		want   map[string]string
	}{
		"no write": {change: func(*testing.T, *Tree) {}, want: map[string]string{"a": "old a", "d/x": "old x"}},
		"saved": {change: func(t *testing.T, tree *Tree) {
			save(t, at(tree, "a"), "saved")
			save(t, at(tree, "n"), "saved too")
		}, left: []string{"/n", "/a"}, want: map[string]string{"a": "saved", "n": "saved too", "d/x": "old x"}},
		"written in place": {change: func(t *testing.T, tree *Tree) {
			write(t, at(tree, "a"), "written")
		}, left: []string{"/a"}, want: map[string]string{"a": "written", "d/x": "old x"}},
		"made at a removed path": {change: func(t *testing.T, tree *Tree) {
			write(t, at(tree, "d/x"), "again")
		}, left: []string{"/d/x"}, want: map[string]string{"a": "old a", "d/x": "again"}},
		"added in a new directory": {change: func(t *testing.T, tree *Tree) {
			write(t, at(tree, "new/other"), "added")
			write(t, at(tree, "l/other"), "added")
		}, left: []string{"/new", "/l"}, want: map[string]string{"a": "old a", "new/other": "added", "l/other": "added"}},
		"attributes of a directory": {change: func(t *testing.T, tree *Tree) {
			must(t, os.Chmod(at(tree, "e"), 0o750))
		}, left: []string{"/e"}, want: map[string]string{"a": "old a", "d/x": "old x"}},
		"another directory": {change: func(t *testing.T, tree *Tree) {
			must(t, os.Rename(at(tree, "e"), at(tree, "f")), os.Mkdir(at(tree, "e"), 0o711))
		}, left: []string{"/e"}, want: map[string]string{"a": "old a", "d/x": "old x"}},
	} {
		t.Run(name, func(t *testing.T) {
			tree := newTree(t)
			before := content(t, tree.Dir, true)
			s := staged(t, tree, entry{name: "a", kind: tar.TypeReg, content: "new a"}, entry{name: "d/x"},
				entry{name: "e", kind: tar.TypeDir, mode: 0o711}, entry{name: "l", kind: tar.TypeDir, mode: 0o755},
				entry{name: "l/f", kind: tar.TypeReg}, entry{name: "n", kind: tar.TypeReg, content: "new n"},
				entry{name: "new", kind: tar.TypeDir, mode: 0o755}, entry{name: "new/f", kind: tar.TypeReg})
			must(t, s.commit())
			c.change(t, tree)
			cause := errors.New("the next change fails")
			err := s.undo(len(s.steps), cause)
			incomplete := (*IncompleteError)(nil)
			if !errors.Is(err, cause) || errors.As(err, &incomplete) != (c.left != nil) {
				t.Fatalf("%v", err)
			}
			if c.left != nil && !slices.Equal(incomplete.Paths, c.left) {
				t.Errorf("%q are left, want %q", incomplete.Paths, c.left)
			}
			for name, want := range c.want {
				if got, err := os.ReadFile(at(tree, name)); err != nil || string(got) != want {
					t.Errorf("%s is %q, want %q: %v", name, got, want, err)
				}
			}
			if old, err := os.ReadFile(at(tree, s.name+"/0")); slices.Contains(c.left, "/a") && string(old) != "old a" {
				t.Errorf("the old file is %q, %v", old, err)
			}
			if c.left == nil {
				must(t, os.RemoveAll(at(tree, s.name)))
				if after := content(t, tree.Dir, true); after != before {
					t.Errorf("the tree has changed\nfrom %s\nto   %s", before, after)
				}
			}
		})
	}
}

// zeros is an endless hole.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A file with a huge hole, which few bytes of an archive describe, does not occupy the guest for longer than the limit.
func TestHugeHoleEnds(t *testing.T) {
	tree := newTree(t)
	s := staged(t, tree)
	s.until = time.Now()
	if err := s.file("0", 1<<60, zeros{}); !errors.Is(err, errTooLong) {
		t.Errorf("%v", err)
	}
	s.until = time.Now().Add(unpackTime)
	must(t, s.file("1", 1<<20, zeros{}))
}

// On a full disk nothing changes.
func TestFullDisk(t *testing.T) {
	tree := &Tree{Dir: t.TempDir()}
	if err := unix.Mount("tmpfs", tree.Dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("mount a small file system: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(tree.Dir, 0)) })
	fillTree(t, tree.Dir)
	before := content(t, tree.Dir, true)
	_, err := tree.Apply(bytes.NewReader(archive(t, tree.Dir, entry{name: "a", kind: tar.TypeReg, content: "new a"},
		entry{name: "n", kind: tar.TypeReg, content: strings.Repeat("n", 1<<20)})))
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v", err)
	}
	if after := content(t, tree.Dir, true); after != before {
		t.Errorf("the tree has changed\nfrom %s\nto   %s", before, after)
	}
}

// Apply does not wait for another call of Apply, and changes nothing if Hold fails.
func TestBusyAndHeld(t *testing.T) {
	tree := newTree(t)
	packed := archive(t, tree.Dir, entry{name: "a", kind: tar.TypeReg, content: "new a"})
	r, w := io.Pipe()
	first := make(chan error, 1)
	go func() {
		_, err := tree.Apply(r)
		first <- err
	}()
	_, err := w.Write(packed[:512])
	must(t, err)
	if _, err := tree.Apply(bytes.NewReader(packed)); !errors.Is(err, ErrBusy) {
		t.Errorf("%v", err)
	}
	must(t, w.CloseWithError(errors.New("the client has left")))
	if err := <-first; err == nil {
		t.Error("a cut off archive was applied")
	}
	frozen := fmt.Errorf("frozen")
	tree.Hold = func() (func(), error) { return nil, frozen }
	if _, err := tree.Apply(bytes.NewReader(packed)); !errors.Is(err, frozen) {
		t.Errorf("%v", err)
	}
	released := 0
	tree.Hold = func() (func(), error) { return func() { released++ }, nil }
	if n, err := tree.Apply(bytes.NewReader(packed)); err != nil || n != 1 || released != 1 {
		t.Errorf("%d changes, %d releases, %v", n, released, err)
	}
}

// No archive makes Apply panic or leave files behind outside of the tree's own paths.
func FuzzApply(f *testing.F) {
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, packed []byte) {
		tree := &Tree{Dir: t.TempDir()}
		if _, err := tree.Apply(bytes.NewReader(packed)); err != nil {
			if left, _ := os.ReadDir(tree.Dir); len(left) != 0 {
				t.Errorf("%v: %v is left", err, left)
			}
		}
	})
}
