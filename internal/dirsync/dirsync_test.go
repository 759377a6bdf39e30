package dirsync_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/dirsync"
	"github.com/forkd/forkd/internal/guest/agent"
)

func TestMain(m *testing.M) { apirig.Main(m, agent.Main) }

// pair is a directory of this host and a directory of a sandbox, which is this host too.
type pair struct {
	dirsync.Options
	*client.Client

	mu sync.Mutex
	// +checklocks:mu
	reports []dirsync.Report
}

func newPair(t *testing.T, both bool) *pair {
	t.Helper()
	rig := apirig.Start(t, apirig.Options{Agent: apirig.SelfAgent})
	parent := rig.Parent
	parent.Tag = "base"
	if _, err := rig.Bake(t.Context(), parent); err != nil {
		t.Fatal(err)
	}
	f, err := rig.Fork(t.Context(), client.ForkRequest{SnapshotTag: "base", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{Client: rig.Client}
	p.Options = dirsync.Options{Dir: t.TempDir(), ID: f.Sandboxes[0].ID, Remote: filepath.Join(t.TempDir(), "there"),
		Both: both, Report: func(r dirsync.Report) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.reports = append(p.reports, r)
		}}
	return p
}

func (p *pair) open(t *testing.T) *dirsync.Sync {
	t.Helper()
	s, err := dirsync.Open(p.Client, p.Options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// once brings both sides into sync, and returns the new reports as "op path", without "in_sync".
func (p *pair) once(t *testing.T, s *dirsync.Sync) (reports []string) {
	t.Helper()
	if err := s.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.reports {
		if r.Op != "in_sync" {
			reports = append(reports, r.Op+" "+r.Path)
		}
	}
	p.reports = nil
	slices.Sort(reports)
	return reports
}

func (p *pair) here(name string) string  { return filepath.Join(p.Dir, name) }
func (p *pair) there(name string) string { return filepath.Join(p.Remote, name) }

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// tree returns the files below a directory with their contents, types and permissions.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		switch {
		case info.Mode().IsRegular():
			content, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			text += " " + string(content)
		case info.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(name)
			text = "-> " + target
		}
		rel, err := filepath.Rel(dir, name)
		out[rel] = text
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return out
}

func wantEqual(t *testing.T, p *pair, except ...string) {
	t.Helper()
	here, there := tree(t, p.Dir), tree(t, p.Remote)
	for name := range here {
		if here[name] != there[name] && !slices.Contains(except, name) {
			t.Errorf("%s: here %.60q, there %.60q", name, here[name], there[name])
		}
	}
	for name := range there {
		if _, ok := here[name]; !ok && !slices.Contains(except, name) {
			t.Errorf("%s is only there: %.60q", name, there[name])
		}
	}
}

func wantReports(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("reports %q, want %q", got, want)
	}
}

func TestOneWay(t *testing.T) {
	p := newPair(t, false)
	p.Exclude = []string{"skipped", "**/*.o"}
	write(t, p.here("a"), "one")
	write(t, p.here("d/tool"), "#!/bin/sh\n")
	write(t, p.here("d/x.o"), "object")
	write(t, p.here("skipped/a"), "no")
	write(t, p.there("own"), "of the sandbox")
	if err := errors.Join(os.Chmod(p.here("d/tool"), 0o751), os.Symlink("../outside", p.here("d/link")),
		os.Mkdir(p.here("empty"), 0o700), unix.Mkfifo(p.here("pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	s := p.open(t)
	wantReports(t, p.once(t, s), "left_out pipe", "to_sandbox a", "to_sandbox d", "to_sandbox d/link", "to_sandbox d/tool",
		"to_sandbox empty")
	wantEqual(t, p, "own", "pipe", "skipped", "skipped/a", "d/x.o")
	wantReports(t, p.once(t, s))

	// A change of the sandbox stays until the file changes here. Removals are copied, but not the
	// removal of a directory in which the sandbox has files of its own.
	write(t, p.there("a"), "of the sandbox")
	write(t, p.there("empty/own"), "x")
	write(t, p.here("d/tool"), "#!/bin/bash\n")
	if err := errors.Join(os.Remove(p.here("empty")), os.Remove(p.here("d/link"))); err != nil {
		t.Fatal(err)
	}
	wantReports(t, p.once(t, s), "removed_in_sandbox d/link", "to_sandbox d/tool")
	if got := tree(t, p.Remote); got["a"] != "-rw-r--r-- of the sandbox" || got["empty/own"] == "" {
		t.Errorf("%q", got)
	}
	write(t, p.here("a"), "three")
	if err := os.RemoveAll(p.here("d")); err != nil {
		t.Fatal(err)
	}
	wantReports(t, p.once(t, s), "removed_in_sandbox d", "removed_in_sandbox d/tool", "to_sandbox a")
	wantEqual(t, p, "own", "pipe", "skipped", "skipped/a", "empty", "empty/own")

	// A file without history does not replace a directory in the sandbox.
	if err := os.Remove(p.here("pipe")); err != nil {
		t.Fatal(err)
	}
	write(t, p.here("own"), "here")
	write(t, p.here("empty"), "a file")
	wantReports(t, p.once(t, p.open(t)), "conflict empty", "to_sandbox own")
}

func TestBothWays(t *testing.T) {
	p := newPair(t, true)
	write(t, p.here("a"), "one")
	write(t, p.here("same"), "equal")
	write(t, p.there("same"), "equal")
	write(t, p.here("differs"), "here ")
	write(t, p.there("differs"), "there")
	write(t, p.there("d/b"), "two")
	write(t, p.there(".git/hooks/post-checkout"), "#!/bin/sh\nevil\n")
	write(t, p.there("sub/.GIT/config"), "evil")
	old := time.Unix(1e9, 0) // files with equal sizes and times are not compared
	if err := errors.Join(os.Chtimes(p.there("differs"), old, old), os.Symlink("d/b", p.there("good")),
		os.Symlink("/etc/passwd", p.there("absolute")),
		os.Symlink("../../secret", p.there("d/up")), os.Chmod(p.there("d/b"), 0o4777)); err != nil {
		t.Fatal(err)
	}
	s := p.open(t)
	wantReports(t, p.once(t, s), "conflict differs", "from_sandbox d", "from_sandbox d/b", "from_sandbox good",
		"from_sandbox sub", "left_out absolute", "left_out d/up", "to_sandbox a")
	if got, want := tree(t, p.Dir), map[string]string{"a": "-rw-r--r-- one", "same": "-rw-r--r-- equal",
		"differs": "-rw-r--r-- here ", "d": "drwxr-xr-x", "d/b": "-rwxr-xr-x two", "good": "-> d/b",
		"sub": "drwxr-xr-x"}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("here %q, want %q", got, want)
	}
	wantReports(t, p.once(t, s))

	// Each side changes files that the other side does not change, and both change one file.
	write(t, p.here("d/b"), "two, here")
	write(t, p.there("a"), "one, there")
	write(t, p.here("same"), "here")
	if err := errors.Join(os.Remove(p.there("same")), os.Remove(p.there("good"))); err != nil {
		t.Fatal(err)
	}
	wantReports(t, p.once(t, s), "conflict same", "from_sandbox a", "removed_here good", "to_sandbox d/b")
	write(t, p.there("same"), "here") // equal again
	wantReports(t, p.once(t, s), "resolved same")

	// A directory that one side removes keeps the files that the other side has made in it.
	if err := os.RemoveAll(p.here("d")); err != nil {
		t.Fatal(err)
	}
	write(t, p.there("d/new"), "new")
	p.once(t, s)
	if got := tree(t, p.Dir); got["d/new"] != "-rw-r--r-- new" || got["d/b"] != "" {
		t.Errorf("%q", got)
	}
	p.Prefer = "host"
	wantReports(t, p.once(t, p.open(t)), "left_out absolute", "left_out d/up", "to_sandbox differs")

	// The sandbox cannot remove everything at once.
	s = p.open(t)
	p.once(t, s)
	if err := os.RemoveAll(p.Remote); err != nil {
		t.Fatal(err)
	}
	if err := s.Once(t.Context()); !errors.As(err, new(*dirsync.StopError)) || len(tree(t, p.Dir)) < 5 {
		t.Errorf("%v, %q", err, tree(t, p.Dir))
	}
}

// Both sides change random files while a Sync runs. After the changes, both sides are equal, except
// for conflicts. Content that one side wrote is lost only if the other side replaced it.
func TestRandomChangesOfBothSides(t *testing.T) {
	p := newPair(t, true)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	write(t, p.here("keep"), "so that no side has lost all files")
	s := p.open(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	for range 150 {
		edit(t, r, []string{p.Dir, p.Remote}[r.IntN(2)])
		time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
	}
	const last = "the last change"
	write(t, p.here("keep"), last)
	eventually(t, func() bool { return strings.HasSuffix(tree(t, p.Remote)["keep"], last) })
	deadline := time.Now().Add(time.Minute)
	for quiet := 0; quiet < 3 && time.Now().Before(deadline); {
		before := fmt.Sprint(tree(t, p.Dir), tree(t, p.Remote))
		time.Sleep(500 * time.Millisecond)
		if fmt.Sprint(tree(t, p.Dir), tree(t, p.Remote)) == before {
			quiet++
		} else {
			quiet = 0
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	conflicts := s.Conflicts()
	except := slices.Clone(conflicts)
	for _, side := range []map[string]string{tree(t, p.Dir), tree(t, p.Remote)} {
		for name := range side { // below a conflict nothing is synced
			if slices.ContainsFunc(conflicts, func(c string) bool { return strings.HasPrefix(name, c+"/") }) {
				except = append(except, name)
			}
		}
	}
	wantEqual(t, p, except...)
	t.Logf("%d files, conflicts %q", len(tree(t, p.Dir)), conflicts)

	p.Prefer = "host"
	p.once(t, p.open(t))
	wantEqual(t, p)
}

// With --prefer host, a file of the host does not replace a directory with excluded files.
func TestExcludedFilesOfTheSandboxStay(t *testing.T) {
	for _, both := range []bool{false, true} {
		p := newPair(t, both)
		p.Prefer, p.Exclude = "host", []string{"**/secret"}
		write(t, p.here("d"), "a file")
		write(t, p.there("d/secret"), "excluded")
		write(t, p.there("d/x"), "x")
		write(t, p.here("e"), "a file")
		write(t, p.there("e/x"), "x")
		s := p.open(t)
		wantReports(t, p.once(t, s), "left_out d", "to_sandbox e")
		wantReports(t, p.once(t, s))
		if got := tree(t, p.Remote); got["d/secret"] != "-rw-r--r-- excluded" || got["e"] != "-rw-r--r-- a file" {
			t.Errorf("both %v: the sandbox has %q", both, got)
		}
	}
}

// edit changes one random file of a directory.
func edit(t *testing.T, r *rand.Rand, dir string) {
	t.Helper()
	name := filepath.Join(dir, []string{"", "d", "d/e", "f"}[r.IntN(4)], string(rune('a'+r.IntN(8))))
	switch info, err := os.Lstat(name); {
	case r.IntN(4) == 0:
		_ = os.RemoveAll(name)
	case r.IntN(12) == 0:
		_ = os.RemoveAll(filepath.Join(dir, "d/e"))
	case r.IntN(6) == 0:
		_ = os.Remove(name)
		_ = os.MkdirAll(filepath.Dir(name), 0o755)
		_ = os.Symlink("x"+fmt.Sprint(r.IntN(3)), name)
	case err == nil && !info.Mode().IsRegular():
	default:
		_ = os.MkdirAll(filepath.Dir(name), 0o755)
		_ = os.WriteFile(name, []byte(fmt.Sprint(dir, r.Uint64())), 0o644)
	}
}

// While the sandbox is suspended, Run waits. Afterwards, Run copies the changes that were made in
// the meantime. It ends when the sandbox ends.
func TestRunFollowsTheSandbox(t *testing.T) {
	p := newPair(t, false)
	write(t, p.here("a"), "one")
	s := p.open(t)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(t.Context()) }()
	eventually(t, func() bool { return tree(t, p.Remote)["a"] == "-rw-r--r-- one" })
	if _, err := p.Suspend(t.Context(), p.ID); err != nil {
		t.Fatal(err)
	}
	write(t, p.here("a"), "two")
	write(t, p.here("d/b"), "new")
	eventually(t, func() bool { return p.reported("waiting") })
	if box, err := p.Sandbox(t.Context(), p.ID); err != nil || box.State != "suspended" {
		t.Errorf("%q, %v", box.State, err)
	}
	if _, err := p.Resume(t.Context(), p.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return tree(t, p.Remote)["d/b"] == "-rw-r--r-- new" })
	wantEqual(t, p)
	if err := p.Kill(t.Context(), p.ID); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("%v", err)
	}
}

// If the directory of the host is replaced, its content is not removed in the sandbox.
func TestReplacedDirectoryRemovesNothing(t *testing.T) {
	p := newPair(t, false)
	p.Dir = p.here("dir")
	write(t, p.here("a"), "one")
	s := p.open(t)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(t.Context()) }()
	eventually(t, func() bool { return tree(t, p.Remote)["a"] == "-rw-r--r-- one" })
	if err := errors.Join(os.Rename(p.Dir, p.Dir+".old"), os.Mkdir(p.Dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.As(err, new(*dirsync.StopError)) || tree(t, p.Remote)["a"] == "" {
		t.Errorf("%v, %q", err, tree(t, p.Remote))
	}
}

func (p *pair) reported(op string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.reports, func(r dirsync.Report) bool { return r.Op == op })
}

func eventually(t *testing.T, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen within a minute")
		}
	}
}
