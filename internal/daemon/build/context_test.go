package build

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/build/dockerfile"
	"github.com/forkd/forkd/internal/build/plan"
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
	return &Context{dir: t.TempDir(), times: map[string]time.Time{}, seen: map[string]int{}, left: maxContext}
}

// A few bytes can name many directories, and the same entry again and again: all of that counts.
func TestEntriesOfAContextAreBounded(t *testing.T) {
	deep := make([]tar.Header, 5)
	for i := range deep {
		deep[i] = tar.Header{Name: fmt.Sprintf("%d/a/b/c", i), Typeflag: tar.TypeDir}
	}
	again := slices.Repeat([]tar.Header{{Name: strings.Repeat("n", 20), Typeflag: tar.TypeDir}}, 5)
	link := tar.Header{Name: "l", Linkname: strings.Repeat("t", 90), Typeflag: tar.TypeSymlink}
	for name, c := range map[string]struct {
		files, names int // that there are already
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

// Each archive has a directory of its own, and the list is sorted over all of them.
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

// endless is an archive whose file has no end. It cancels a build once it is read.
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

// A build that is replaced reads no further.
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

// The guest says what its environment is.
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
