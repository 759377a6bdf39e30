package build

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"path"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/forkd/forkd/internal/build/dockerfile"
)

// guestArchive returns an archive with files, directories ("a/"), hard links ("a=b") and symbolic
// links ("a>b").
func guestArchive(t *testing.T, names ...string) io.Reader {
	t.Helper()
	var text bytes.Buffer
	out := tar.NewWriter(&text)
	for _, name := range names {
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(name)), Mode: 0o640}
		if link, to, ok := strings.Cut(name, "="); ok {
			h.Name, h.Linkname, h.Typeflag, h.Size = link, to, tar.TypeLink, 0
		}
		if link, to, ok := strings.Cut(name, ">"); ok {
			h.Name, h.Linkname, h.Typeflag, h.Size = link, to, tar.TypeSymlink, 0
		}
		if strings.HasSuffix(name, "/") {
			h.Typeflag, h.Size = tar.TypeDir, 0
		}
		err := out.WriteHeader(h)
		if h.Size > 0 {
			_, more := io.WriteString(out, name)
			err = errors.Join(err, more)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return &text
}

// If the program that reads the files reports an error, the copy fails, even if the archive looks
// complete. For example, tar omits files that it cannot read, and reports these files only when it
// exits. The number of bytes after an archive is bounded.
func TestErrorsAfterTheEndOfAnArchive(t *testing.T) {
	broken := errors.New("tar: secret: cannot open")
	for want, rest := range map[string]io.Reader{
		"":                       strings.NewReader(strings.Repeat("\x00", 20<<10)),
		broken.Error():           iotest.ErrReader(broken),
		"more than 1 MiB follow": strings.NewReader(strings.Repeat("\x00", 2<<20)),
	} {
		r := filtered(io.MultiReader(guestArchive(t, "./", "./a"), rest), "", dockerfile.Ignore{}, &links{}, ".")
		_, err := io.Copy(io.Discard, r)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

func TestEntriesAreLeftOut(t *testing.T) {
	leave, err := dockerfile.NewIgnore([]string{"*.txt", "drop", "!keep.txt"})
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("long/", 60) + "name"
	r := filtered(guestArchive(t, "./", "./a.txt", "./keep.txt", "./drop/", "./drop/x", "./sub/", "./sub/a.txt",
		"./b=./keep.txt", "./drop/y=./keep.txt", "./"+long), "", leave, &links{}, ".")
	var got []string
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil || h.Typeflag == tar.TypeReg && string(text) != h.Name {
			t.Errorf("%s has %q, %v", h.Name, text, err)
		}
		got = append(got, h.Name)
	}
	if want := "./ ./keep.txt ./sub/ ./sub/a.txt ./b ./" + long; strings.Join(got, " ") != want {
		t.Errorf("%q are left, want %s", got, want)
	}
	for _, bad := range []io.Reader{guestArchive(t, "./a.txt", "./b=./a.txt"), strings.NewReader("no archive")} {
		r := filtered(bad, "", leave, &links{}, ".")
		if _, err := io.ReadAll(r); err == nil {
			t.Error("an archive with a link to nothing, or none, is taken")
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// No entry is unpacked through a link that the same COPY has unpacked, even from another archive.
func TestNothingIsCopiedThroughALinkOfTheSameCopy(t *testing.T) {
	for name, c := range map[string]struct {
		first, second []string
		below         string // directory into which the second archive is unpacked
		refused       bool
	}{
		"a file below it":              {[]string{"./x>/etc"}, []string{"./x/passwd"}, ".", true},
		"a file deep below it":         {[]string{"./x>y", "./y>/etc"}, []string{"./x/a/b/c"}, ".", true},
		"a directory in its place":     {[]string{"./x>/etc"}, []string{"./x/"}, ".", true},
		"in one archive":               {nil, []string{"./x>/etc", "x//passwd"}, ".", true},
		"a file in its place":          {[]string{"./x>/etc"}, []string{"./x"}, ".", false},
		"another link in its place":    {[]string{"./x>/etc"}, []string{"./x>/usr"}, ".", false},
		"a hard link to what it shows": {[]string{"./x>/etc"}, []string{"./h=./x/passwd"}, ".", true},
		"a hard link to itself":        {nil, []string{"./x>/etc", "./h=./x"}, ".", false},
		"a file below that hard link":  {[]string{"./x>/etc", "./h=./x"}, []string{"./h/passwd"}, ".", true},
		"below a hard link to it":      {[]string{"./x>/etc", "./h=./x", "./i=./h"}, []string{"./i/passwd"}, ".", true},
		"a file in place of that link": {[]string{"./x>/etc", "./h=./x"}, []string{"./h"}, ".", false},
		"below a hard link to a file":  {[]string{"./f", "./h=./f"}, []string{"./h/passwd"}, ".", false},
		"a directory by --parents":     {[]string{"./x>/etc"}, []string{"./passwd"}, "x", true},
		"a deep one by --parents":      {[]string{"./x>/etc"}, []string{"./passwd"}, "x/y", true},
		"beside it":                    {[]string{"./x>/etc", "./d/x>/etc"}, []string{"./d/y", "./xy/z"}, ".", false},
		"a name with dots":             {nil, []string{"./a/../../b"}, ".", true},
		"a hard link with dots":        {nil, []string{"./h=../b"}, ".", true},
		"a hard link from the root":    {nil, []string{"./b", "./h=/b"}, ".", true},
	} {
		brought := &links{}
		for i, entries := range [][]string{c.first, c.second} {
			below := []string{".", c.below}[i]
			r := filtered(guestArchive(t, entries...), "", dockerfile.Ignore{}, brought, below)
			_, err := io.Copy(io.Discard, r)
			if (err != nil) != (i == 1 && c.refused) {
				t.Errorf("%s: archive %d: %v", name, i, err)
			}
			r.Close()
		}
	}
}

// The guest chooses the paths that findScript has found. No path leads out of the staging directory.
func TestDirectoriesBelowTheStagingDirectory(t *testing.T) {
	for _, c := range []struct {
		into, match, want string
	}{
		{"", "f/dir/file", "."},
		{"", "d/dir", "."},
		{"/", "f/file", "."},
		{"/", "d/dir", "dir"},
		{"/", "d/", "."},
		{"usr/", "f/usr/file", "usr"},
		{"usr/", "d/usr/lib", "usr/lib"},
		{"/", "d/a/..", "."},
		{"/", "d/..", "."},
		{"usr/", "d/usr/lib/..", "usr/usr"},
	} {
		m, err := matchOf(path.Clean(c.match[1:]), c.match)
		if got := (staging{into: c.into}).below(m); err != nil || got != c.want {
			t.Errorf("%q into %q: %q, %v, want %q", c.match, c.into, got, err, c.want)
		}
	}
}

// A guest cannot choose the name of a file that COPY reads: the guest's answer must match the
// pattern of the source, and its archive must contain only that file. A shell interprets some
// patterns differently from path.Match. For these patterns, the answer is compared less strictly.
func TestAGuestDoesNotChooseNames(t *testing.T) {
	for _, c := range []struct {
		pattern, line string
		ok            bool
	}{
		{"/app/tool", "f/app/tool", true}, {"/app/tool", "f/app/ls", false}, {"/app/tool", "f/bin/tool", false},
		{"/app/tool", "f/app/../bin/ls", false}, {"/app/*.so", "f/app/a.so", true}, {"/app/*.so", "f/app/ls", false},
		{"/app/*", "d/app/a/b", false}, {"/app/*", "f/app/..", false}, {"/a?c", "f/aéc", true},
		{"/a[!b]c/d*", "f/axc/d1", true}, {"/a[!b]c/d*", "f/axc/ls", false}, {`/a\*`, "f/a*", true}, {"/", "d/", true},
		{"/x", "", false}, {"/x", "d", false}, {"/x", "dx", false}, {"/x", "d../x", false},
	} {
		if m, err := matchOf(c.pattern, c.line); (err == nil) != c.ok {
			t.Errorf("%q for %s: %v, %v", c.line, c.pattern, m, err)
		}
	}
	for _, c := range []struct {
		entries []string
		ok      bool
	}{
		{[]string{"tool"}, true}, {[]string{"tool>/bin/x"}, true}, {[]string{"ls"}, false}, {[]string{"x/tool"}, false},
		{[]string{"tool", "ls"}, false}, {[]string{"ls", "tool"}, false}, {[]string{"tool", "tool"}, false},
		{[]string{"tool/"}, false}, {nil, false},
	} {
		r := filtered(guestArchive(t, c.entries...), "tool", dockerfile.Ignore{}, &links{}, ".")
		if _, err := io.ReadAll(r); (err == nil) != c.ok {
			t.Errorf("an archive with %q: %v", c.entries, err)
		}
	}
}

// If the path of the directory is absolute, the archive is refused, and the check ends. (The
// parents of an absolute path never become ".".)
func TestAbsoluteDirectoriesAreRefused(t *testing.T) {
	r := filtered(guestArchive(t, "./", "./link>file", "./other"), "", dockerfile.Ignore{}, &links{}, "/dir")
	defer r.Close()
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, r)
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "is absolute") {
			t.Errorf("err = %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the check does not end")
	}
	if err := (&links{paths: map[string]bool{"x": true}}).check("/dir/y", false); err != nil {
		t.Error(err)
	}
}
