package difftree

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/diffproto"
)

// trees are two directories to compare.
type trees [2]string

func newTrees(t *testing.T) trees {
	t.Helper()
	return trees{t.TempDir(), t.TempDir()}
}

// compare compares the trees. If no changes are given, all inodes may differ.
func (tr trees) compare(t *testing.T, req diffproto.Request, changed *changes) (list []*diffproto.Entry,
	done diffproto.Done, err error) {
	t.Helper()
	var roots [2]int
	for i, dir := range tr {
		if roots[i], err = unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
			t.Fatal(err)
		}
	}
	defer closeAll(roots)
	if changed == nil {
		changed = &changes{}
	}
	if req.Path == "" {
		req.Path = "/"
	}
	var wire bytes.Buffer
	daemon := diffproto.NewReader(&wire, req.Path)
	done, err = compare(roots, req, changed, func(e *diffproto.Entry) error {
		if err := diffproto.WriteEntry(&wire, e); err != nil {
			return err
		}
		got, _, err := daemon.Next() // checks that the daemon accepts the entry
		list = append(list, got)
		return err
	})
	return list, done, err
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// The variable all is a request for all differences, with patches.
var all = diffproto.Request{Patch: true, MaxEntries: 1000, MaxPatch: 1 << 20}

// describe returns an entry as text.
func describe(e *diffproto.Entry) string {
	text := fmt.Sprintf("%q %d:%o:%d→%d:%o:%d", e.Path, e.Old.Type, e.Old.Mode, e.Old.Size, e.New.Type, e.New.Mode,
		e.New.Size)
	if e.Content {
		text += " content"
	}
	if len(e.Xattrs) > 0 {
		text += fmt.Sprintf(" %v", e.Xattrs)
	}
	if e.Omitted != 0 {
		text += fmt.Sprintf(" omitted %d", e.Omitted)
	}
	if len(e.Patch) > 0 {
		text += fmt.Sprintf(" +%d -%d %q", e.LinesAdded, e.LinesDeleted, e.Patch)
	}
	return text
}

func TestWalk(t *testing.T) {
	tr := newTrees(t)
	for i, dir := range tr {
		at := func(name string) string { return filepath.Join(dir, name) }
		write := func(name, text string) { must(t, os.WriteFile(at(name), []byte(text), 0o644)) }
		must(t, os.Chmod(dir, 0o755), os.MkdirAll(at("same/below"), 0o755), os.Symlink("x", at("same/link")))
		write("same/below/file", "text")
		write("text", []string{"a\nb\n", "a\nc\n"}[i])
		write("binary", []string{"\x00", "\x01"}[i])
		write("latin", []string{"\xff", "ok"}[i])
		write("large", strings.Repeat([]string{"x", "y"}[i], maxText+1))
		write("mode", "m")
		write("line\nend", []string{"", "x"}[i])
		must(t, os.Symlink([]string{"old", "new"}[i], at("link")), os.Chmod(at("mode"), []os.FileMode{0o600,
			0o4711 &^ 0o4000}[i]))
		must(t, unix.Mkfifo(at("fifo"), 0o600))
		if i == 0 {
			must(t, os.MkdirAll(at("gone/below"), 0o700))
			write("gone/below/file", "bye\n")
			write("kind", "file")
		} else {
			must(t, os.MkdirAll(at("kind/below"), 0o750), unix.Mkfifo(at("new"), 0o600))
		}
	}
	want := `"/binary" 1:644:1→1:644:1 content omitted 1
"/fifo-not-here"
"/gone" 2:700:0→0:0:0 content
"/gone/below" 2:700:0→0:0:0 content
"/gone/below/file" 1:644:4→0:0:0 content +0 -1 "@@ -1 +0,0 @@\n-bye\n"
"/kind" 1:644:4→2:750:0 content +0 -1 "@@ -1 +0,0 @@\n-file\n\\ No newline at end of file\n"
"/kind/below" 0:0:0→2:750:0 content
"/large" 1:644:1048577→1:644:1048577 content omitted 2
"/latin" 1:644:1→1:644:2 content omitted 1
"/line\nend" 1:644:0→1:644:1 content +1 -0 "@@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n"
"/link" 3:777:3→3:777:3 content
"/mode" 1:600:1→1:711:1
"/new" 0:0:0→6:600:0 content
"/text" 1:644:4→1:644:4 content +1 -1 "@@ -1,2 +1,2 @@\n a\n-b\n+c\n"`
	wants := slices.DeleteFunc(strings.Split(want, "\n"), func(l string) bool { return l == `"/fifo-not-here"` })
	list, done, err := tr.compare(t, all, nil)
	must(t, err)
	var got []string
	for _, e := range list {
		got = append(got, describe(e))
	}
	if !slices.Equal(got, wants) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(wants, "\n"))
	}
	if w := (diffproto.Done{Added: 2, Changed: 8, Deleted: 3, LinesAdded: 2, LinesDeleted: 3}); done != w {
		t.Errorf("%+v, want %+v", done, w)
	}
	for path, want := range map[string]int{"/same": 0, "/gone/below": 2, "/kind/below": 1, "/text": 1} {
		list, _, err := tr.compare(t, diffproto.Request{Path: path, Patch: true, MaxEntries: 10, MaxPatch: 100}, nil)
		if err != nil || len(list) != want || len(list) > 0 && list[0].Path != path {
			t.Errorf("%s: %d entries, %v, want %d", path, len(list), err, want)
		}
	}
	for _, path := range []string{"/none", "/none/x", "/text/x", "/link/x", "/same/below/.."} {
		var refused *diffproto.RefusedError
		if _, _, err := tr.compare(t, diffproto.Request{Path: path}, nil); !errors.As(err, &refused) ||
			refused.Field != "path" {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// After MaxEntries entries, further differences are only counted. After MaxPatch bytes of patches,
// further patches are omitted.
func TestLimitsOfARequest(t *testing.T) {
	tr := newTrees(t)
	for i := range 5 {
		must(t, os.WriteFile(filepath.Join(tr[1], fmt.Sprint(i)), []byte("text\n"), 0o600))
	}
	must(t, os.Chmod(tr[0], 0o755), os.Chmod(tr[1], 0o755))
	const patch = len("@@ -0,0 +1 @@\n+text\n")
	list, done, err := tr.compare(t, diffproto.Request{Patch: true, MaxEntries: 3, MaxPatch: uint64(patch)}, nil)
	if err != nil || len(list) != 3 || done.Added != 5 || len(list[0].Patch) != patch ||
		list[1].Omitted != diffproto.Limit || len(list[1].Patch) != 0 {
		t.Errorf("%d entries, %+v, %v", len(list), done, err)
	}
	list, done, err = tr.compare(t, diffproto.Request{MaxEntries: 1}, nil)
	if err != nil || len(list) != 1 || done.Added != 5 || list[0].Omitted != diffproto.NotAsked {
		t.Errorf("%d entries, %+v, %v", len(list), done, err)
	}
	if list, _, err := tr.compare(t, diffproto.Request{}, nil); err != nil || len(list) != 0 {
		t.Errorf("%d entries, %v", len(list), err)
	}
}

// A file whose inode does not differ is not read. A directory whose inode does not differ is still
// searched.
func TestUnchangedInodesAreNotRead(t *testing.T) {
	tr := newTrees(t)
	must(t, os.MkdirAll(filepath.Join(tr[0], "dir"), 0o755))
	for _, name := range []string{"dir/a", "dir/b"} {
		must(t, os.WriteFile(filepath.Join(tr[0], name), []byte("old"), 0o644))
	}
	// Hard links have the same inode on both sides, as on the disks of one family.
	must(t, os.MkdirAll(filepath.Join(tr[1], "dir"), 0o755), os.Chmod(tr[0], 0o755), os.Chmod(tr[1], 0o755),
		os.Link(filepath.Join(tr[0], "dir/a"), filepath.Join(tr[1], "dir/a")),
		os.WriteFile(filepath.Join(tr[1], "dir/b"), []byte("new"), 0o644))
	list, _, err := tr.compare(t, all, &changes{bits: make([]byte, 1<<20)})
	if err != nil || len(list) != 1 || list[0].Path != "/dir/b" {
		t.Errorf("%v, %v", list, err)
	}
	w := &walker{changed: &changes{bits: make([]byte, 1)}}
	same := [2]name{{"none", 7, unix.DT_REG}, {"none", 7, unix.DT_REG}}
	if err := w.pair("/none", [2]int{0, 0}, same, false); err != nil || w.done.Skipped != 0 {
		t.Errorf("%+v, %v", w.done, err)
	}
	same[0].inode, same[1].inode = 8, 8 // beyond the known inodes, so the walker tries to read the missing file
	if err := w.pair("/none", [2]int{0, 0}, same, false); err != nil || w.done.Skipped != 1 {
		t.Errorf("%+v, %v", w.done, err)
	}
}

// If two files are known to have the same data, the data is not read.
func TestSameDataIsNotRead(t *testing.T) {
	tr := newTrees(t)
	must(t, os.Chmod(tr[0], 0o755), os.Chmod(tr[1], 0o755), os.WriteFile(filepath.Join(tr[0], "file"), nil, 0o600),
		os.Link(filepath.Join(tr[0], "file"), filepath.Join(tr[1], "file")))
	var asked []uint64
	changed := &changes{sameData: func(inode uint64) bool { asked = append(asked, inode); return true }}
	list, _, err := tr.compare(t, all, changed)
	if err != nil || len(list) != 0 || len(asked) != 1 {
		t.Errorf("%v, asked %v, %v", list, asked, err)
	}
	must(t, os.Remove(filepath.Join(tr[1], "file")), os.WriteFile(filepath.Join(tr[1], "file"), nil, 0o600))
	if _, _, err := tr.compare(t, all, changed); err != nil || len(asked) != 1 { // not asked: the inodes differ
		t.Errorf("asked %v, %v", asked, err)
	}
}

func TestXattrs(t *testing.T) {
	tr := newTrees(t)
	for i, dir := range tr {
		file := filepath.Join(dir, "file")
		must(t, os.Chmod(dir, 0o755), os.WriteFile(file, nil, 0o600))
		err := unix.Setxattr(file, "user.same", []byte("1"), 0)
		if errors.Is(err, unix.ENOTSUP) {
			t.Skip("no extended attributes here")
		}
		must(t, err, unix.Setxattr(file, "user.value", []byte{byte(i)}, 0),
			unix.Setxattr(file, fmt.Sprintf("user.only%d", i), nil, 0))
	}
	list, _, err := tr.compare(t, all, nil)
	if err != nil || len(list) != 1 || !slices.Equal(list[0].Xattrs, []string{"user.only0", "user.only1", "user.value"}) {
		t.Errorf("%v, %v", list, err)
	}
}

// A file of many TiB is compared quickly if it consists of holes.
func TestHolesAreNotRead(t *testing.T) {
	tr := newTrees(t)
	for i, dir := range tr {
		f, err := os.Create(filepath.Join(dir, "sparse"))
		must(t, err, os.Chmod(dir, 0o755), f.Truncate(1<<42))
		_, err = f.WriteAt([]byte{byte(i)}, 1<<41)
		must(t, err, f.Close())
	}
	list, _, err := tr.compare(t, all, nil)
	if err != nil || len(list) != 1 || list[0].Omitted != diffproto.Large {
		t.Errorf("%v, %v", list, err)
	}
}

func FuzzNames(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 24, 0, 8, 'a', 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, p []byte) {
		list, _ := parseNames(nil, p)
		for _, n := range list {
			if n.text == "" || n.text == "." || n.text == ".." || strings.ContainsAny(n.text, "/\x00") {
				t.Errorf("%q", n.text)
			}
		}
	})
}
