package difftree

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	guestapply "github.com/forkd/forkd/internal/guest/apply"
	"github.com/forkd/forkd/internal/proto/diffproto"
)

// sides are the directories base, from and onto.
type sides [3]string

// newSides returns three directories with equal content. It calls fill to make the content.
func newSides(t *testing.T, fill func(dir string)) (s sides) {
	t.Helper()
	top := t.TempDir()
	for i, name := range []string{"base", "from", "onto"} {
		s[i] = filepath.Join(top, name)
		if i == 0 {
			must(t, os.Mkdir(s[0], 0o755))
			fill(s[0])
			continue
		}
		copyTree(t, s[0], s[i])
	}
	return s
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// merge returns the entries and the archive of a merge, as the daemon receives them.
func (s sides) merge(t *testing.T, m diffproto.Merge) (list []*diffproto.Entry, done diffproto.Done, archive []byte,
	err error) {
	t.Helper()
	var roots [3]int
	for i, dir := range s {
		if roots[i], err = unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(roots[i])
	}
	var wire bytes.Buffer
	changed := []*changes{{}, {}, {}}
	err = merge(roots, diffproto.Request{Path: "/", Tar: true, MaxEntries: 10_000, Merge: &m}, changed, &wire)
	if err != nil {
		return nil, done, nil, err
	}
	daemon := diffproto.NewReader(&wire, "/")
	for {
		e, end, err := daemon.Next()
		must(t, err)
		if end != nil {
			done = *end
			break
		}
		list = append(list, e)
	}
	for wire.Len() > 0 {
		piece, err := daemon.NextPiece()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		archive = append(archive, piece...)
	}
	return list, done, archive, nil
}

// conflicts returns the paths with conflicts.
func conflicts(list []*diffproto.Entry) (paths []string) {
	for _, e := range list {
		if e.Conflict {
			paths = append(paths, e.Path)
		}
	}
	return paths
}

// edit makes the edits of the table below. An edit is an operation and a path.
func edit(t *testing.T, dir, edits string) {
	t.Helper()
	for _, text := range strings.Fields(edits) {
		op, name, _ := strings.Cut(text, ":")
		name, content, _ := strings.Cut(name, "=")
		at := filepath.Join(dir, name)
		switch op {
		case "write":
			must(t, os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(content), 0o644))
		case "mode":
			must(t, os.Chmod(at, 0o700))
		case "rm":
			must(t, os.RemoveAll(at))
		case "mkdir":
			must(t, os.MkdirAll(at, 0o755))
		case "link":
			must(t, os.RemoveAll(at), os.Symlink(content, at))
		case "attr":
			must(t, unix.Setxattr(at, "user.forkd", []byte(content), 0))
		default:
			t.Fatalf("edit %q", text)
		}
	}
}

// For each pair of edits, the table lists the conflicts, and the files of the side "onto" after a
// merge with each rule.
func TestThreeWays(t *testing.T) {
	for _, c := range []struct {
		from, onto          string // edits of both sides
		conflicts           string // paths with conflicts
		merged, ours, their string // files after a merge without a rule, with the rule "from", and with the rule "onto"
	}{
		{from: "write:a=2", merged: "a=2 b=1 d d/x=1 l→a"},
		{onto: "write:a=2", merged: "a=2 b=1 d d/x=1 l→a"},
		{from: "write:a=2", onto: "write:b=3", merged: "a=2 b=3 d d/x=1 l→a"},
		{from: "write:a=2", onto: "write:a=2", merged: "a=2 b=1 d d/x=1 l→a"},
		{from: "write:a=2", onto: "write:a=3", conflicts: "/a", ours: "a=2 b=1 d d/x=1 l→a", their: "a=3 b=1 d d/x=1 l→a"},
		{from: "rm:a", onto: "rm:a", merged: "b=1 d d/x=1 l→a"},
		{from: "rm:a", onto: "write:a=3", conflicts: "/a", ours: "b=1 d d/x=1 l→a", their: "a=3 b=1 d d/x=1 l→a"},
		{from: "write:a=2", onto: "rm:a", conflicts: "/a", ours: "a=2 b=1 d d/x=1 l→a", their: "b=1 d d/x=1 l→a"},
		{from: "write:n=2", onto: "write:n=3", conflicts: "/n", ours: "a=1 b=1 d d/x=1 l→a n=2",
			their: "a=1 b=1 d d/x=1 l→a n=3"},
		{from: "link:l=b", onto: "link:l=d", conflicts: "/l", ours: "a=1 b=1 d d/x=1 l→b", their: "a=1 b=1 d d/x=1 l→d"},
		{from: "write:new/f=1", onto: "write:new/g=1", merged: "a=1 b=1 d d/x=1 l→a new new/f=1 new/g=1"},
		{from: "rm:d", merged: "a=1 b=1 l→a"},
		{from: "rm:d write:d=2", merged: "a=1 b=1 d=2 l→a"},
		{from: "rm:a write:a/f=2", merged: "a a/f=2 b=1 d d/x=1 l→a"},
		{from: "rm:d", onto: "write:d/y=3", conflicts: "/d", ours: "a=1 b=1 l→a", their: "a=1 b=1 d d/y=3 l→a"},
		{from: "rm:d", onto: "write:d/x=3", conflicts: "/d /d/x", ours: "a=1 b=1 l→a", their: "a=1 b=1 d d/x=3 l→a"},
		{from: "rm:d link:d=/etc", onto: "write:d/y=3", conflicts: "/d", ours: "a=1 b=1 d→/etc l→a",
			their: "a=1 b=1 d d/y=3 l→a"},
		{from: "write:d/y=2", onto: "rm:d", conflicts: "/d/y", ours: "a=1 b=1 d d/y=2 l→a", their: "a=1 b=1 l→a"},
		{from: "write:d/x=2", onto: "rm:d link:d=/etc", conflicts: "/d/x", ours: "a=1 b=1 d d/x=2 l→a",
			their: "a=1 b=1 d→/etc l→a"},
		{from: "write:n/f=2", onto: "write:n=3", conflicts: "/n /n/f", ours: "a=1 b=1 d d/x=1 l→a n n/f=2",
			their: "a=1 b=1 d d/x=1 l→a n=3"},
	} {
		for rule, want := range map[diffproto.Prefer]string{diffproto.Refuse: c.merged, diffproto.PreferFrom: c.ours,
			diffproto.PreferOnto: c.their} {
			if c.conflicts == "" {
				want = c.merged
			}
			s := newSides(t, func(dir string) { edit(t, dir, "write:a=1 write:b=1 write:d/x=1 link:l=a") })
			edit(t, s[sideFrom], c.from)
			edit(t, s[sideOnto], c.onto)
			before := content(t, s[sideOnto])
			list, done, archive, err := s.merge(t, diffproto.Merge{Prefer: rule})
			must(t, err)
			name := fmt.Sprintf("from %q, onto %q, rule %d", c.from, c.onto, rule)
			got := conflicts(list)
			if c.conflicts == "/d/x" { // the directory comes back with its file
				got = slices.DeleteFunc(got, func(p string) bool { return rule == diffproto.PreferFrom && p == "/d" })
			}
			if c.conflicts == "/d" {
				got = slices.DeleteFunc(got, func(p string) bool { return rule == diffproto.PreferFrom && p == "/d/y" })
			}
			if c.conflicts == "/d/y" {
				got = slices.DeleteFunc(got, func(p string) bool { return rule == diffproto.PreferFrom && p == "/d" })
			}
			if strings.Join(got, " ") != c.conflicts {
				t.Errorf("%s: conflicts %v, want %s", name, got, c.conflicts)
			}
			if rule == diffproto.Refuse && c.conflicts != "" {
				if archive != nil || int(done.Conflicts) != len(list) {
					t.Errorf("%s: %d bytes of an archive, %+v, %d entries", name, len(archive), done, len(list))
				}
				want = before
			} else {
				tree := guestapply.Tree{Dir: s[sideOnto]}
				if n, err := tree.Apply(bytes.NewReader(archive)); err != nil ||
					uint64(n) < done.Added+done.Changed+done.Deleted {
					t.Errorf("%s: %d changes of %+v, %v", name, n, done, err)
				}
			}
			if got := content(t, s[sideOnto]); got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
	}
}

// content returns the files of a tree as text.
func content(t *testing.T, dir string) string {
	t.Helper()
	var list []string
	must(t, filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, p)
		switch {
		case err != nil || rel == ".":
			return err
		case e.Type() == os.ModeSymlink:
			target, err := os.Readlink(p)
			list = append(list, rel+"→"+target)
			return err
		case e.IsDir():
			list = append(list, rel)
			return nil
		}
		text, err := os.ReadFile(p)
		list = append(list, rel+"="+string(text))
		return err
	}))
	return strings.Join(list, " ")
}

// model is a tree: a description of the file at each path.
type model map[string]string

func modelOf(t *testing.T, dir string) model {
	t.Helper()
	m := model{}
	root, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	defer unix.Close(root)
	x := exporter{root: root}
	must(t, filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
		must(t, err)
		rel, err := filepath.Rel(dir, p)
		must(t, err)
		f, err := x.open(path.Join("/", rel))
		must(t, err)
		defer f.close()
		h := f.header
		text := fmt.Sprintf("%c %o %d:%d %q %q", h.Typeflag, h.Mode, h.Uid, h.Gid, h.Linkname, h.PAXRecords)
		if e.Type().IsRegular() {
			file, err := os.Open(p)
			must(t, err)
			sum := sha256.New() // only a digest, because a file with a hole may be large
			_, err = io.Copy(sum, file)
			must(t, err, file.Close())
			text += fmt.Sprintf(" %x", sum.Sum(nil))
		}
		m[rel] = text
		return nil
	}))
	return m
}

func (m model) isDir(p string) bool { return strings.HasPrefix(m[p], "5") }

// merged returns the tree that has the changes of both sides, and false if there is no such tree.
func merged(base, from, onto model) (model, bool) {
	all, out := maps.Clone(base), model{}
	maps.Copy(all, from)
	maps.Copy(all, onto)
	for p := range all {
		result := from[p]
		switch {
		case from[p] == base[p]:
			result = onto[p]
		case onto[p] != base[p] && onto[p] != from[p]:
			return nil, false
		}
		if result != "" {
			out[p] = result
		}
	}
	for p := range out {
		if p != "." && !out.isDir(path.Dir(p)) {
			return nil, false
		}
	}
	return out, true
}

// On random trees, a merge has conflicts exactly when the model has no result. A merge without
// conflicts has the model's result. With a rule for conflicts, all paths without a conflict have
// the result of the model.
func TestMergeLikeTheModel(t *testing.T) {
	clean, dirty := 0, 0
	for seed := range uint64(24) {
		rng := rand.New(rand.NewPCG(seed, 7))
		s := newSides(t, func(dir string) { randomTree(t, rng, dir, 60) })
		few := 1 + rng.IntN(12)
		randomTree(t, rng, s[sideFrom], few)
		if rng.IntN(3) == 0 { // the same changes on both sides
			must(t, os.RemoveAll(s[sideOnto]))
			copyTree(t, s[sideFrom], s[sideOnto])
			randomTree(t, rng, s[sideFrom], 2)
		}
		randomTree(t, rng, s[sideOnto], few)
		base, from, onto := modelOf(t, s[sideBase]), modelOf(t, s[sideFrom]), modelOf(t, s[sideOnto])
		want, ok := merged(base, from, onto)
		rules := []diffproto.Prefer{diffproto.Refuse}
		if !ok {
			rules = []diffproto.Prefer{diffproto.Refuse, diffproto.PreferFrom, diffproto.PreferOnto}
		}
		for _, rule := range rules {
			target := s
			target[sideOnto] = filepath.Join(t.TempDir(), "onto")
			copyTree(t, s[sideOnto], target[sideOnto])
			list, done, archive, err := target.merge(t, diffproto.Merge{Prefer: rule})
			must(t, err)
			if ok != (done.Conflicts == 0) {
				t.Fatalf("seed %d: conflicts %q, but the model has a result: %t", seed, conflicts(list), ok)
			}
			if !ok && rule == diffproto.Refuse {
				dirty++
				continue
			}
			tree := guestapply.Tree{Dir: target[sideOnto]}
			if _, err := tree.Apply(bytes.NewReader(archive)); err != nil {
				t.Fatalf("seed %d, rule %d: %v", seed, rule, err)
			}
			got := modelOf(t, target[sideOnto])
			if ok {
				clean++
				if !maps.Equal(got, want) {
					t.Fatalf("seed %d: %s", seed, differing(got, want))
				}
				continue
			}
			clash := map[string]bool{}
			for _, p := range conflicts(list) {
				clash[strings.TrimPrefix(p, "/")] = true
			}
			for p, text := range got {
				side := from[p]
				if from[p] == base[p] && !clash[p] || clash[p] && rule == diffproto.PreferOnto {
					side = onto[p]
				}
				if text != side {
					t.Fatalf("seed %d, rule %d: %q is %s, want %s", seed, rule, p, text, side)
				}
			}
		}
	}
	if clean < 5 || dirty < 5 {
		t.Errorf("%d merges without and %d with conflicts", clean, dirty)
	}
}

func differing(got, want model) string {
	for p := range want {
		if got[p] != want[p] {
			return fmt.Sprintf("%q is %.200s, want %.200s", p, got[p], want[p])
		}
	}
	for p := range got {
		if want[p] == "" {
			return fmt.Sprintf("%q is %.200s, want nothing", p, got[p])
		}
	}
	return ""
}

// Only the named paths are merged. A path must have a directory on the receiving side.
func TestPathsOfAMerge(t *testing.T) {
	s := newSides(t, func(dir string) { edit(t, dir, "write:a=1 write:d/x=1 write:d/y=1") })
	edit(t, s[sideFrom], "write:a=2 write:d/x=2 write:d/y=2 write:n/m/f=2")
	edit(t, s[sideOnto], "write:a=3 write:o=3")
	for _, c := range []struct{ paths, changes, refused string }{
		{"/d", "/d/x /d/y", ""},
		{"/d/y /d", "/d/x /d/y", ""},
		{"/d/y /n", "/d/y /n /n/m /n/m/f", ""},
		{"/n/m", "", "no such directory"},
		{"/o", "", ""},
		{"/none", "", "neither side has it"},
		{"d", "", "absolute"},
	} {
		list, _, _, err := s.merge(t, diffproto.Merge{Paths: strings.Fields(c.paths)})
		var got []string
		for _, e := range list {
			got = append(got, e.Path)
		}
		refused := (*diffproto.RefusedError)(nil)
		switch {
		case c.refused != "" && (!errors.As(err, &refused) || refused.Field != "paths" ||
			!strings.Contains(refused.Reason, c.refused)):
			t.Errorf("%s: %v", c.paths, err)
		case c.refused == "" && (err != nil || strings.Join(got, " ") != c.changes):
			t.Errorf("%s: %q, %v", c.paths, got, err)
		}
	}
}
