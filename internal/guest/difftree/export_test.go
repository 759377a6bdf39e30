package difftree

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/diffproto"
)

// export returns the archive of the differences between the trees.
func (tr trees) export(t *testing.T, req diffproto.Request) (archive []byte, done diffproto.Done, err error) {
	t.Helper()
	var roots [2]int
	for i, dir := range tr {
		if roots[i], err = unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
			t.Fatal(err)
		}
	}
	defer closeAll(roots)
	var wire bytes.Buffer
	req.Tar, req.MaxEntries = true, 1<<30
	err = export(roots, req, &changes{},
		func(d diffproto.Done) error { done = d; return nil }, diffproto.NewPieceWriter(&wire))
	if err != nil {
		return nil, done, err
	}
	for daemon := diffproto.NewReader(&wire, req.Path); ; {
		piece, err := daemon.NextPiece()
		if errors.Is(err, io.EOF) {
			return archive, done, nil
		}
		must(t, err)
		archive = append(archive, piece...)
	}
}

// headers returns the headers of an archive, and reads all content.
func headers(t *testing.T, archive []byte) (list []*tar.Header) {
	t.Helper()
	for in := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		must(t, err)
		n, err := io.Copy(io.Discard, in)
		if err != nil || n != h.Size {
			t.Fatalf("%q: %d bytes, want %d, %v", h.Name, n, h.Size, err)
		}
		list = append(list, h)
	}
}

// apply applies an archive to a directory with the tar program, as a person would do it.
func apply(t *testing.T, archive []byte, dir string) {
	t.Helper()
	for _, h := range headers(t, archive) {
		if name, ok := strings.CutPrefix(path.Base(h.Name), whiteout); ok {
			must(t, os.RemoveAll(filepath.Join(dir, path.Dir(h.Name), name)))
		}
	}
	cmd := exec.Command("tar", "--extract", "--file=-", "--directory="+dir, "--xattrs", "--xattrs-include=*",
		"--preserve-permissions", "--numeric-owner", "--exclude=.wh.*")
	cmd.Stdin = bytes.NewReader(archive)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
}

// samePython checks that Python reads as many entries and bytes as Go.
func samePython(t *testing.T, archive []byte) {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		return
	}
	const program = `
import io, sys, tarfile
entries = list(tarfile.open(fileobj=io.BytesIO(sys.stdin.buffer.read())))
print(len(entries), sum(e.size for e in entries))`
	cmd := exec.Command("python3", "-c", program)
	cmd.Stdin = bytes.NewReader(archive)
	out, err := cmd.CombinedOutput()
	list, size := headers(t, archive), int64(0)
	for _, h := range list {
		size += h.Size
	}
	if want := fmt.Sprintln(len(list), size); err != nil || string(out) != want {
		t.Errorf("Python reads %s, want %s, %v", out, want, err)
	}
}

// sameTrees checks that two directories have equal content, and that hard links in the expected
// directory are hard links in the other directory.
func sameTrees(t *testing.T, got, want string) {
	t.Helper()
	list, done, err := trees{got, want}.compare(t, diffproto.Request{MaxEntries: 100}, nil)
	must(t, err)
	for _, e := range list {
		t.Errorf("differs: %s", describe(e))
	}
	if done.Skipped != 0 {
		t.Errorf("%d files could not be compared", done.Skipped)
	}
}

// randomTree makes random changes in a directory. The changes depend only on rng and on the content
// of the directory.
func randomTree(t *testing.T, rng *rand.Rand, top string, n int) {
	t.Helper()
	names := []string{"f%d", "two words %d", "line\nend %d", "\xff\xfe%d", `quote"\%d`, "ü%d", "-%d",
		strings.Repeat("x", 200) + "%d", "\x1b[31m%d"}
	for range n {
		var dirs, files, all []string
		must(t, filepath.WalkDir(top, func(p string, e os.DirEntry, err error) error {
			all = append(all, p)
			if e.IsDir() {
				dirs = append(dirs, p)
			} else if e.Type().IsRegular() {
				files = append(files, p)
			}
			return err
		}))
		at := filepath.Join(dirs[rng.IntN(len(dirs))], fmt.Sprintf(names[rng.IntN(len(names))], rng.IntN(5)))
		if rng.IntN(2) == 0 && len(all) > 1 {
			at = all[1+rng.IntN(len(all)-1)]
		}
		st, err := os.Lstat(at)
		if err == nil && rng.IntN(4) == 0 {
			must(t, os.RemoveAll(at))
			if st, err = nil, os.ErrNotExist; rng.IntN(2) == 0 {
				continue // without this continue, the code below usually makes another file here
			}
		}
		switch kind := rng.IntN(12); {
		case err == nil && st.IsDir():
			must(t, os.Chmod(at, []os.FileMode{0o700, 0o755, 0o777 | os.ModeSticky}[rng.IntN(3)]))
		case err == nil && st.Mode().IsRegular():
			f, err := os.OpenFile(at, os.O_WRONLY, 0)
			must(t, err)
			switch kind {
			case 0:
				must(t, f.Truncate(rng.Int64N(1<<20)))
			case 1:
				_, err = f.WriteAt([]byte("far"), rng.Int64N(1<<24))
			case 2:
				err = unix.Fsetxattr(int(f.Fd()), fmt.Sprintf("user.n%d", rng.IntN(3)), []byte{byte(kind), 0, 10, 255}, 0)
			case 3:
				err = f.Chmod([]os.FileMode{0o600, 0o755 | os.ModeSetuid, 0o444}[rng.IntN(3)])
			default:
				_, err = f.Write(bytes.Repeat([]byte{byte(kind)}, rng.IntN(9000)))
			}
			must(t, err, f.Close())
		case err == nil:
			must(t, os.Lchown(at, os.Getuid(), os.Getgid()))
		case kind < 5:
			must(t, os.WriteFile(at, bytes.Repeat([]byte{byte(kind)}, rng.IntN(5000)), 0o644))
		case kind < 8:
			must(t, os.Mkdir(at, 0o755))
		case kind == 8:
			must(t, os.Symlink(fmt.Sprintf("../%d\n", rng.IntN(9)), at))
		case kind == 9:
			must(t, unix.Mkfifo(at, 0o600))
		case len(files) > 0:
			if err := os.Link(files[rng.IntN(len(files))], at); !errors.Is(err, os.ErrNotExist) { // no parent directory
				must(t, err)
			}
		}
		if os.Getuid() == 0 && rng.IntN(4) == 0 {
			_ = os.Lchown(at, rng.IntN(3), 3_000_000) // the file may not exist
		}
	}
}

// If the archive is unpacked over the older tree with GNU tar, the result is the newer tree. This
// includes odd names, holes, hard links, owners, attributes, and files whose type has changed.
func TestArchiveMakesTheNewerTree(t *testing.T) {
	if _, err := exec.LookPath("tar"); err != nil {
		t.Skip("no tar command")
	}
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 1))
		tr, twin := newTrees(t), filepath.Join(t.TempDir(), "twin")
		randomTree(t, rng, tr[0], 150)
		if out, err := exec.Command("cp", "-a", tr[0]+"/.", tr[1]).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if out, err := exec.Command("cp", "-a", tr[0], twin).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		randomTree(t, rng, tr[1], 150)
		archive, done, err := tr.export(t, diffproto.Request{Path: "/"})
		if err != nil || done.Skipped != 0 || done.Added == 0 || done.Deleted == 0 || done.Changed == 0 {
			t.Fatalf("%+v, %v", done, err)
		}
		apply(t, archive, twin)
		samePython(t, archive)
		sameTrees(t, twin, tr[1])
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func TestArchive(t *testing.T) {
	tr := newTrees(t)
	for i, dir := range tr {
		at := func(name string) string { return filepath.Join(dir, name) }
		write := func(name, text string) { must(t, os.WriteFile(at(name), []byte(text), 0o644)) }
		must(t, os.Chmod(dir, 0o755), os.Mkdir(at("same"), 0o755))
		write("same/file", []string{"a", "b"}[i])
		if i == 0 {
			must(t, os.MkdirAll(at("gone/below/deep"), 0o755), os.MkdirAll(at("became-file/x"), 0o755))
			write("gone/file", "")
			write("same/.wh.old", "")
			write("became-dir", "x")
			write("gone.txt", "x")
			write("became-socket", "x")
		} else {
			write("became-file", "x")
			must(t, os.MkdirAll(at("became-dir/sub"), 0o755), os.Mkdir(at(".wh.dir"), 0o755))
			write(".wh.same", "") // would delete the directory same
			write(".wh.dir/file", "")
			write("one", "1")
			must(t, os.Link(at("one"), at("two")), os.Truncate(at("became-file"), 1<<30))
			for _, name := range []string{"socket", "became-socket"} {
				l, err := net.Listen("unix", at(name))
				must(t, err)
				defer l.Close()
			}
			must(t, unix.Setxattr(at("one"), "user.a=b", []byte("1"), 0),
				unix.Setxattr(at("one"), "user.c", []byte("\x00="), 0))
		}
	}
	refused := (*diffproto.RefusedError)(nil)
	if _, _, err := tr.export(t, diffproto.Request{Path: "/"}); !errors.As(err, &refused) || refused.Field != "partial" ||
		!strings.Contains(refused.Reason, `6 of the files as they are, such as "/.wh.dir"`) {
		t.Errorf("%v", err)
	}
	archive, done, err := tr.export(t, diffproto.Request{Path: "/", Partial: true})
	must(t, err)
	var got []string
	for _, h := range headers(t, archive) {
		got = append(got, fmt.Sprintf("%c %s %s%d %q", h.Typeflag, h.Name, h.Linkname, h.Size,
			h.PAXRecords["SCHILY.xattr.user.c"]))
	}
	want := []string{`0 .wh.became-dir 0 ""`, `5 became-dir/ 0 ""`, `5 became-dir/sub/ 0 ""`, `0 .wh.became-file 0 ""`,
		`0 became-file 1073741824 ""`, `0 .wh.became-socket 0 ""`,
		`0 .wh.gone 0 ""`, `0 .wh.gone.txt 0 ""`, `0 one 1 "\x00="`, `0 same/file 1 ""`,
		`1 two one0 "\x00="`}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(archive) > 64<<10 {
		t.Errorf("the archive of a file with a hole has %d bytes", len(archive))
	}
	// Six files are skipped: four have a name that begins with .wh., and two have the attribute
	// user.a=b.
	if done.Skipped != 6 {
		t.Errorf("%d files are skipped", done.Skipped)
	}
	for at, want := range map[string][]string{"/same": {"same/file"}, "/gone": {".wh.gone"},
		"/gone/below": {"gone/.wh.below"}} {
		archive, _, err := tr.export(t, diffproto.Request{Path: at, Partial: true})
		must(t, err)
		var names []string
		for _, h := range headers(t, archive) {
			names = append(names, h.Name)
		}
		if !slices.Equal(names, want) {
			t.Errorf("%s: %q, want %q", at, names, want)
		}
	}
	if _, _, err := tr.export(t, diffproto.Request{Path: "/none"}); !errors.As(err, &refused) || refused.Field != "path" {
		t.Errorf("%v", err)
	}
}

// If a file has too many holes, the smallest ones become data.
func TestFewerHoles(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "holes"))
	must(t, err)
	defer f.Close()
	at, want := int64(0), []extent{}
	for i := range int64(40) {
		_, err := f.WriteAt(make([]byte, 4096), at)
		must(t, err)
		if i%10 == 0 {
			want = append(want, extent{at, 0})
		}
		at += 4096
		want[len(want)-1].end = at
		if at += leastHole; i%10 == 9 {
			at += 8 * leastHole
		}
	}
	size := at + 1
	must(t, f.Truncate(size))
	for most, n := range map[int]int{40: 40, 39: 4, 4: 4, 3: 1} {
		list, err := dataOf(f, size, most)
		if err != nil || len(list) != n || n == 4 && !slices.Equal(list, want) {
			t.Errorf("at most %d: %v, want %d, %v", most, list, n, err)
		}
	}
}

func TestRecordsOfHeaders(t *testing.T) {
	for n := range 2000 {
		text := record("key", strings.Repeat("x", n))
		var length int
		if _, err := fmt.Sscanf(text, "%d ", &length); err != nil || length != len(text) {
			t.Fatalf("%.30q has %d bytes", text, len(text))
		}
	}
}
