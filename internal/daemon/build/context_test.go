package build

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/build/dockerfile"
	"github.com/forkd/forkd/internal/build/plan"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/treetar"
)

func archiveOf(t *testing.T, entries ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		err := w.WriteHeader(&h)
		if err == nil && h.Typeflag == tar.TypeReg {
			_, err = w.Write(make([]byte, h.Size))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func newContext(t *testing.T) *Context {
	t.Helper()
	c, err := newStore(t, maxListsMiB, maxContentsMiB).NewContext("token:a")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// newStore returns a Builder with two bounds on the total of all contexts, in MiB. The first bound
// (lists) is for the memory of lists of files, and the second (contents) is for the disk space.
func newStore(t *testing.T, lists, contents int) *Builder {
	t.Helper()
	b := &Builder{cfg: Config{Dir: t.TempDir()}, lists: gate.New(lists), contents: gate.New(contents)}
	if err := os.Mkdir(filepath.Join(b.cfg.Dir, "contexts"), 0o700); err != nil {
		t.Fatal(err)
	}
	return b
}

// linksOf returns n entries that take no space on the disk.
func linksOf(n int) []tar.Header {
	list := make([]tar.Header, n)
	for i := range list {
		list[i] = tar.Header{Name: fmt.Sprintf("%07d", i), Typeflag: tar.TypeSymlink, Linkname: "x"}
	}
	return list
}

// The memory and disk space of all contexts together are bounded, and so is one client's share.
// Closing a context frees its memory and disk space.
func TestContextsOfAllBuildsAreBounded(t *testing.T) {
	names := linksOf(3000) // their names take more than 1 MiB
	content := []tar.Header{{Name: "x", Typeflag: tar.TypeReg, Size: 1<<20 + 1}}
	for what, c := range map[string]struct {
		lists, contents int
		entries         []tar.Header
		most            string // bound for one client
	}{"names": {8, 1000, names, "the names of the build context take more than 6 MiB"},
		"content": {1000, 8, content, "the files of the build context take more than 6 MiB"}} {
		b := newStore(t, c.lists, c.contents)
		fill := func(who string, times int) (*Context, error) {
			t.Helper()
			ctx, err := b.NewContext(who)
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; i < times && err == nil; i++ {
				err = ctx.Unpack(t.Context(), archiveOf(t, c.entries...), fmt.Sprint(i))
			}
			return ctx, err
		}
		tooMuch, err := fill("token:a", 8)
		var bad *invalid.Error
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), c.most) {
			t.Errorf("%s: one context: %v", what, err)
		}
		if err := tooMuch.Close(); err != nil {
			t.Error(err)
		}
		var open []*Context
		for i := range 4 { // contexts of one client, until the client has its share
			ctx, err := fill("token:a", 1)
			if open = append(open, ctx); i < 3 && err != nil || i == 3 && !errors.Is(err, ErrBusy) {
				t.Errorf("%s: context %d of a client: %v", what, i, err)
			}
		}
		other, err := fill("token:b", 1)
		if open = append(open, other); err != nil {
			t.Errorf("%s: of another client: %v", what, err)
		}
		third, err := fill("token:c", 1)
		if open = append(open, third); !errors.Is(err, ErrBusy) {
			t.Errorf("%s: beyond what all have: %v", what, err)
		}
		for _, ctx := range open {
			if err := ctx.Close(); err != nil {
				t.Error(err)
			}
		}
		for _, g := range []*gate.Gate{b.lists, b.contents} {
			if n, _ := g.Count(); n != 0 {
				t.Errorf("%s: %d MiB are held when all are closed", what, n)
			}
		}
	}
}

func live() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A list of files takes no more memory than was counted for it, even if steps copy all of its files
// and the headers of the archive are long.
func TestEntriesAreCountedForTheirMemory(t *testing.T) {
	long := linksOf(40)
	for i := range long {
		long[i].Linkname = strings.Repeat("x", 101) // longer than the field of a tar header for the target
		long[i].PAXRecords = map[string]string{"FORKD.comment": strings.Repeat("y", 500<<10)}
	}
	for what, entries := range map[string][]tar.Header{"short": linksOf(60_000), "headers of 500 KiB": long} {
		c := newContext(t)
		var archive bytes.Buffer
		z := gzip.NewWriter(&archive)
		if _, err := io.Copy(z, archiveOf(t, entries...)); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		before := live()
		if err := c.Unpack(t.Context(), &archive, "h"); err != nil {
			t.Fatal(err)
		}
		unpacked := live()
		p := plan.Plan{Steps: []plan.Step{{From: -1, Base: &plan.Base{Image: "x", Digest: "1"}}}, Result: 3}
		for i := range 3 {
			p.Steps = append(p.Steps, plan.Step{From: i, Copy: &plan.Copy{Target: "/", Sources: []plan.Source{{Dir: true,
				Files: c.Files()[1:], Strip: 2}}}})
		}
		if _, err := p.Keys("a", "b"); err != nil {
			t.Fatal(err)
		}
		planned := live()
		if most := c.list.bytes + 1<<20; unpacked-before > most || planned-before > most {
			t.Errorf("%s: %d entries count for %d KiB, and take %d KiB, with a plan %d KiB", what, len(c.files),
				c.list.bytes>>10, (unpacked-before)>>10, (planned-before)>>10)
		}
		runtime.KeepAlive(c)
		runtime.KeepAlive(p)
	}
}

// The records of a snapshot are removed with the snapshot, even while running builds make other
// snapshots.
func TestForgetAsksForEachSnapshot(t *testing.T) {
	b := &Builder{cfg: Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}, busy: make(map[string]bool)}
	there := make(map[string]bool)
	remember := func(dir, tag string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(b.cfg.Dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(b.cfg.Dir, dir, tag), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tag := range []string{"gone", "made", "making", "there"} {
		remember("results", tag)
		remember("used", tag)
	}
	there["there"] = true
	free, err := b.claim("tag making") // a build is about to make this snapshot
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	b.forget(func(tag string) bool {
		there["made"] = true // made by a build that ends after the list was read
		return there[tag]
	})
	left := func(dir string) (names []string) {
		entries, err := os.ReadDir(filepath.Join(b.cfg.Dir, dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	if got := left("results"); !slices.Equal(got, []string{"made", "making", "there"}) {
		t.Errorf("results: %v", got)
	}
	if got := left("used"); !slices.Equal(got, []string{"made", "there"}) {
		t.Errorf("used: %v", got)
	}
}

// A few bytes can name many directories, or the same entry many times. All these names are counted.
func TestEntriesOfAContextAreBounded(t *testing.T) {
	deep := make([]tar.Header, 5)
	for i := range deep {
		deep[i] = tar.Header{Name: fmt.Sprintf("%d/a/b/c", i), Typeflag: tar.TypeDir}
	}
	again := slices.Repeat([]tar.Header{{Name: strings.Repeat("n", 20), Typeflag: tar.TypeDir}}, 5)
	link := tar.Header{Name: "l", Linkname: strings.Repeat("t", 90), Typeflag: tar.TypeSymlink}
	for name, c := range map[string]struct {
		files, names int // number of files that the context already has, and bytes of their names
		entries      []tar.Header
		want         string
	}{
		"directories":          {maxEntries - 10, 0, deep, "more than 1048576 files"},
		"names":                {0, maxNames - 100, again, "more than 64 MiB"},
		"links":                {0, maxNames - 90, []tar.Header{link}, "more than 64 MiB"},
		"names of directories": {0, maxNames - 100, deep, "more than 64 MiB"},
		"content of the context itself": {
			0, 0, []tar.Header{{Name: ".", Typeflag: tar.TypeReg, Size: 1}},
			"is no directory",
		},
		"content of a directory": {0, 0, []tar.Header{{Name: "./", Typeflag: tar.TypeDir, Size: 1}}, "has content"},
		"within":                 {0, maxNames - 200, append(deep, tar.Header{Name: "./", Typeflag: tar.TypeDir}), ""},
	} {
		ctx := newContext(t)
		ctx.files, ctx.names = make([]plan.File, c.files, c.files+100), c.names
		err := ctx.Unpack(t.Context(), archiveOf(t, c.entries...), "h")
		var bad *invalid.Error
		if c.want == "" {
			if err != nil || len(ctx.files) != 21 {
				t.Errorf("%s: %d files, %v", name, len(ctx.files), err)
			}
		} else if !errors.As(err, &bad) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %d files, %v, want %q", name, len(ctx.files), err, c.want)
		}
	}
}

// Each archive has its own directory, and the list is sorted across all of them.
func TestFilesOfSeveralArchives(t *testing.T) {
	ctx := newContext(t)
	for _, dir := range []string{"b", "a"} {
		err := ctx.Unpack(t.Context(), archiveOf(t, tar.Header{Name: "d/x", Typeflag: tar.TypeReg, Size: 1},
			tar.Header{Name: "d-", Typeflag: tar.TypeReg, Size: 1}), dir)
		if err != nil {
			t.Fatal(err)
		}
	}
	var paths []string
	for _, f := range ctx.Files() {
		paths = append(paths, f.Path)
	}
	if got := strings.Join(paths, " "); got != "a a/d a/d- a/d/x b b/d b/d- b/d/x" {
		t.Errorf("the files are %s", got)
	}
}

// endless is an archive with an endless file. Reading the archive cancels the build.
type endless struct {
	head   *bytes.Buffer
	cancel func()
	reads  int
}

func (e *endless) Read(p []byte) (int, error) {
	if e.head.Len() > 0 {
		return e.head.Read(p)
	}
	e.cancel()
	if e.reads++; e.reads > 100 {
		return 0, errors.New("the build that was canceled still reads")
	}
	clear(p)
	return len(p), nil
}

// The unpacking of an archive stops when the build is replaced.
func TestUnpackEndsWithItsContext(t *testing.T) {
	var head bytes.Buffer
	big := tar.Header{Name: "x", Typeflag: tar.TypeReg, Size: 1 << 30}
	if err := tar.NewWriter(&head).WriteHeader(&big); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := newContext(t).Unpack(ctx, &endless{head: &head, cancel: cancel}, "h")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a build that was canceled: %v", err)
	}
	err = newContext(t).Unpack(ctx, archiveOf(t, tar.Header{Name: "x", Typeflag: tar.TypeDir}), "h")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a build that was canceled before: %v", err)
	}
	in := treetar.NewReader(archiveOf(t, tar.Header{Name: "x", Typeflag: tar.TypeDir}))
	if err := newContext(t).unpack(ctx, in, "", ""); !errors.Is(err, context.Canceled) {
		t.Errorf("the archive of a request that was canceled: %v", err)
	}
}

// A guest can choose its environment, so the size of the environment is bounded.
func TestEnvironmentOfAGuestIsBounded(t *testing.T) {
	env, err := environment("A=1\x00HOME=/x\x00FORKD_X=1\x00B=2=3\x00")
	if err != nil || len(env) != 2 || env["A"] != "1" || env["B"] != "2=3" {
		t.Errorf("%v, %v", env, err)
	}
	var many strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&many, "V%d=\x00", i)
	}
	for _, text := range []string{many.String(), "A=" + strings.Repeat("x", dockerfile.MaxPath*10)} {
		if env, err := environment(text); err == nil {
			t.Errorf("%d bytes: %d variables", len(text), len(env))
		}
	}
}
