package diff

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/proto/diffproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

func TestMemoryThatDiffers(t *testing.T) {
	layers := func(owners ...string) (l []snapshot.File) {
		for _, o := range owners {
			l = append(l, snapshot.File{Owner: o})
		}
		return l
	}
	base := []vm.Extent{{GPA: 0, Length: 100, Layer: 0, Offset: 0}, {GPA: 200, Length: 100, Layer: 0, Offset: 200}}
	for name, c := range map[string]struct {
		a, b             []vm.Extent
		layersA, layersB []snapshot.File
		want             uint64
	}{
		"the same":     {base, base, layers("x"), layers("x"), 0},
		"nothing":      {nil, base, nil, layers("x"), 200},
		"other layers": {base, base, layers("x"), layers("y"), 200},
		"a page more": {base, []vm.Extent{{GPA: 0, Length: 50}, {GPA: 50, Length: 10, Layer: 1}, {GPA: 60, Length: 40,
			Offset: 60},
			{GPA: 150, Length: 20, Layer: 1, Offset: 150}, {GPA: 200, Length: 100, Offset: 200}}, layers("x"), layers("x",
			"y"), 30},
		"moved layers": {base, []vm.Extent{{GPA: 0, Length: 100, Layer: 1}, {GPA: 200, Length: 100, Layer: 1,
			Offset: 200}}, layers("x"),
			layers("y", "x"), 0},
		"another offset": {base, []vm.Extent{{GPA: 0, Length: 100, Offset: 100}, {GPA: 200, Length: 100, Offset: 200}},
			layers("x"),
			layers("x"), 100},
		"overlap": {[]vm.Extent{{GPA: 0, Length: 100}}, []vm.Extent{{GPA: 50, Length: 100, Offset: 50}}, layers("x"),
			layers("x"), 100},
	} {
		for range 2 {
			if got := apartBytes(c.a, c.b, c.layersA, c.layersB); got != c.want {
				t.Errorf("%s: %d, want %d", name, got, c.want)
			}
			c.a, c.b, c.layersA, c.layersB = c.b, c.a, c.layersB, c.layersA
		}
	}
	if base[0] != (vm.Extent{Length: 100}) {
		t.Errorf("the list was changed: %+v", base)
	}
}

func TestSharedLayers(t *testing.T) {
	of := func(owners string) (l []snapshot.File) {
		for _, o := range owners {
			l = append(l, snapshot.File{Owner: string(o)})
		}
		return l
	}
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"ab", "ab", 2}, {"abc", "abd", 2}, {"abc", "ab", 2}, {"xab", "ab", 0}} {
		if got := shared(of(c.a), of(c.b)); got != c.want {
			t.Errorf("%s and %s share %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

// If the entries would take too much memory, the remaining entries are omitted and counted.
func TestResultsAreBounded(t *testing.T) {
	var stream bytes.Buffer
	const sent = 6000
	name := strings.Repeat("x", diffproto.MaxPath-5)
	for i := range sent {
		if err := diffproto.WriteEntry(&stream, &diffproto.Entry{Path: fmt.Sprintf("/%04d%s", i, name),
			New: diffproto.Node{Type: diffproto.Regular}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := diffproto.WriteDone(&stream, diffproto.Done{Added: sent}); err != nil {
		t.Fatal(err)
	}
	var r Result
	if err := listen(&stream, &Request{Path: "/", Entries: sent}, &r); err != nil {
		t.Fatal(err)
	}
	if n := len(r.Entries); n == 0 || n > maxListed/len(name) || r.Omitted() != uint64(sent-n) {
		t.Errorf("%d entries, %d left out", n, r.Omitted())
	}
}

// If the request could not be sent completely, the comparison fails, even if forkd-diff gives a
// valid answer.
func TestAnswerToAPartOfTheQuestion(t *testing.T) {
	for name, guest := range map[string]func(net.Conn){
		"it waits for the whole question": func(c net.Conn) {
			if diffproto.ReadRanges(c, func(diffproto.Range) error { return nil }) == nil {
				_ = diffproto.WriteDone(c, diffproto.Done{})
			}
		},
		"it answers at once": func(c net.Conn) { _ = diffproto.WriteDone(c, diffproto.Done{}) },
	} {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			guest(theirs)
		}()
		broken := errors.New("a layer is cut off")
		ask := func(context.Context, net.Conn) error { return broken }
		answer := func(conn io.Reader) error { return listen(conn, &Request{}, &Result{}) }
		if err := talk(t.Context(), ours, ask, answer); !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An answer is an error if it has too many entries, patches that are too large, or paths outside
// the path of the request.
func TestMoreThanWasAskedFor(t *testing.T) {
	patch := []byte("@@ -1 +1 @@\n-old\n+new\n")
	for name, c := range map[string]struct {
		req Request
		ok  bool
	}{
		"all":      {Request{Path: "/a", Entries: 2, MaxPatch: uint64(2 * len(patch))}, true},
		"entries":  {Request{Path: "/a", Entries: 1, MaxPatch: uint64(2 * len(patch))}, false},
		"patches":  {Request{Path: "/a", Entries: 2, MaxPatch: uint64(2*len(patch) - 1)}, false},
		"the path": {Request{Path: "/a/b", Entries: 2, MaxPatch: uint64(2 * len(patch))}, false},
	} {
		var stream bytes.Buffer
		for _, path := range []string{"/a/b", "/a/c"} {
			if err := diffproto.WriteEntry(&stream, &diffproto.Entry{Path: path, Old: file(0o644), New: file(0o644),
				Content: true, Patch: patch}); err != nil {
				t.Fatal(err)
			}
		}
		if err := diffproto.WriteDone(&stream, diffproto.Done{Changed: 2}); err != nil {
			t.Fatal(err)
		}
		err := listen(&stream, &c.req, &Result{})
		if c.ok != (err == nil) || err != nil && !strings.Contains(err.Error(), "more than was asked for") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// file is a regular file for an entry.
func file(mode uint32) diffproto.Node { return diffproto.Node{Type: diffproto.Regular, Mode: mode} }

func link(target string) diffproto.Node {
	return diffproto.Node{Type: diffproto.Symlink, Mode: 0o777, Target: target}
}

// Git can apply the patches, even if the names of files have spaces, line ends, quotes or invalid UTF-8.
func TestPatchesOfGit(t *testing.T) {
	dir := t.TempDir()
	entries := []*diffproto.Entry{
		{Path: "/new", New: file(0o755), Content: true, Patch: []byte("@@ -0,0 +1 @@\n+text\n")},
		{Path: "/empty", New: file(0o644), Content: true},
		{Path: "/sub/two words", Old: file(0o644), Content: true, Patch: []byte("@@ -1 +0,0 @@\n-old\n")},
		{Path: "/line\nend\"\\\xff", Old: file(0o644), New: file(0o644), Content: true,
			Patch: []byte("@@ -1 +1 @@\n-old\n+new\n\\ No newline at end of file\n")},
		{Path: "/mode", Old: file(0o644), New: file(0o755)},
		{Path: "/both", Old: file(0o600), New: file(0o700), Content: true, Patch: []byte("@@ -1 +1 @@\n-old\n+new\n")},
		{Path: "/link", Old: link("a"), New: link("b"), Content: true},
		{Path: "/made", New: link("c"), Content: true},
		{Path: "/gone", Old: link("a"), Content: true},
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch e.Old.Type {
		case diffproto.Regular:
			err = os.WriteFile(path, []byte("old\n"), os.FileMode(e.Old.Mode))
		case diffproto.Symlink:
			err = os.Symlink(e.Old.Target, path)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var patch strings.Builder
	for _, e := range entries {
		patch.WriteString(Patch(e))
	}
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git command")
	}
	cmd := exec.Command("git", "apply", "--verbose")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(patch.String())
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir), "GIT_DIR=/nonexistent")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, patch.String())
	}
	var got []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Path)
		st, err := os.Lstat(path)
		text, _ := os.ReadFile(path)
		target, _ := os.Readlink(path)
		switch {
		case err != nil:
			got = append(got, "none")
		case target != "":
			got = append(got, "→"+target)
		default:
			got = append(got, fmt.Sprintf("%t %q", st.Mode()&0o100 != 0, text))
		}
	}
	const want = `true "text\n"|false ""|none|false "new"|true "old\n"|true "new\n"|→b|→c|none`
	if all := strings.Join(got, "|"); all != want {
		t.Errorf("got %s\nwant %s", all, want)
	}
	for name, e := range map[string]*diffproto.Entry{
		"owner":     {Path: "/a", Old: file(0o600), New: diffproto.Node{Type: diffproto.Regular, Mode: 0o600, UID: 1}},
		"directory": {Path: "/a", New: diffproto.Node{Type: diffproto.Directory, Mode: 0o755}, Content: true},
		"type":      {Path: "/a", Old: file(0o600), New: link("a"), Content: true},
	} {
		if p := Patch(e); p != "" {
			t.Errorf("%s: %q", name, p)
		}
	}
	binary := &diffproto.Entry{Path: "/a", Old: file(0o644), New: file(0o644), Content: true, Omitted: diffproto.Binary}
	if p := Patch(binary); p != "diff --git a/a b/a\nBinary files a/a and b/a differ\n" {
		t.Errorf("%q", p)
	}
}
