package cli

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// entry is an entry of an archive for tests. The content of a link is its target.
type entry struct {
	kind          byte
	name, content string
}

// archived returns a tar archive.
func archived(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{Typeflag: e.kind, Name: e.name, Mode: 0o755}
		if e.kind == tar.TypeReg {
			h.Size = int64(len(e.content))
		} else {
			h.Linkname = e.content
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if e.kind == tar.TypeReg {
			if _, err := w.Write([]byte(e.content)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// exporting starts a daemon that answers an export with *archive, and aborts the answer if *broken
// is true. It returns a function that runs a command line, and a pointer to the latest request.
func exporting(t *testing.T, archive *[]byte, broken *bool) (run func(args ...string) (code int, out, errs string),
	last *client.ExportRequest) {
	t.Helper()
	last = &client.ExportRequest{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/export":
			*last = client.ExportRequest{}
			_ = json.NewDecoder(r.Body).Decode(last)
			_, _ = w.Write(*archive)
			if *broken {
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}
		case "/v1/diff":
			file := client.DiffFile{Path: "/srv/a", Change: "added", Patch: "PATCH\n"}
			_ = json.NewEncoder(w).Encode(client.Diff{Files: []client.DiffFile{file}})
		default:
			_ = json.NewEncoder(w).Encode([]client.Sandbox{{ID: "sb-abc", Workspace: "desk"}})
		}
	}))
	t.Cleanup(srv.Close)
	t.Setenv(urlEnv, srv.URL)
	return func(args ...string) (int, string, string) {
		var out, errs strings.Builder
		code := Main(args, Stdio{In: strings.NewReader(""), Out: &out, Err: &errs})
		return code, out.String(), errs.String()
	}, last
}

func TestExportRequests(t *testing.T) {
	archive, broken := archived(t), false
	run, last := exporting(t, &archive, &broken)
	for line, want := range map[string]client.ExportRequest{
		"export sb-a --tar -":                       {To: "sb-abc"},
		"export base..desk /srv --tar -":            {From: "base", To: "sb-abc", Path: "/srv"},
		"export base desk --partial --tar -":        {From: "base", To: "sb-abc", Partial: true},
		"export --tar=- a..b other /srv":            {From: "a..b", To: "other", Path: "/srv"},
		"export sb-a /srv/x --partial=true --tar -": {To: "sb-abc", Path: "/srv/x", Partial: true},
	} {
		if code, out, errs := run(strings.Fields(line)...); code != exitOK || out != string(archive) || *last != want {
			t.Errorf("%s: exit code %d, %d bytes, %s, %+v", line, code, len(out), errs, *last)
		}
	}
	for _, line := range []string{"export a", "export a --tar x --patch y", "export a.. --tar -", "export ..b --tar -",
		"export a b c --tar -", "export a --git .", "export a --tar - --branch x", "export a --tar - -o json"} {
		if code, _, errs := run(strings.Fields(line)...); code != exitUsage {
			t.Errorf("%s: exit code %d, %s", line, code, errs)
		}
	}
}

func TestExportIntoFiles(t *testing.T) {
	archive, broken := archived(t, entry{tar.TypeReg, "srv/a", "text"}), false
	run, _ := exporting(t, &archive, &broken)
	file := filepath.Join(t.TempDir(), "out")
	if code, out, errs := run("export", "desk", "--tar", file); code != exitOK || out != file+"\n" {
		t.Fatalf("exit code %d, %q, %s", code, out, errs)
	}
	broken = true
	if code, _, _ := run("export", "desk", "--tar", file); code != exitError {
		t.Errorf("broken off: exit code %d", code)
	}
	if code, out, _ := run("export", "desk", "--tar", "-"); code != exitError || out != "" {
		t.Errorf("broken off: exit code %d, %d bytes", code, len(out))
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, archive) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if code, _, errs := run("export", "desk", "--tar", os.DevNull); code != exitError ||
		!strings.Contains(errs, "regular") {
		t.Errorf("exit code %d, %s", code, errs)
	}
	for _, target := range []string{"-", file} {
		code, out, errs := run("export", "desk", "--patch", target)
		if p, _ := os.ReadFile(file); target == file {
			out = string(p)
		}
		if code != exitOK || out != "PATCH\n" {
			t.Errorf("patch: exit code %d, %q, %s", code, out, errs)
		}
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(file), "*")); err != nil || len(left) != 1 {
		t.Errorf("%q, %v", left, err)
	}
}

// hostileArchives returns archives with paths outside of the target directory, and archives of
// forms that no export has.
func hostileArchives(t *testing.T) map[string][]byte {
	t.Helper()
	file := func(name string) entry { return entry{tar.TypeReg, name, "x"} }
	return map[string][]byte{
		"parent":           archived(t, file("srv/../../etc/passwd")),
		"absolute":         archived(t, file("/etc/passwd")),
		"not clean":        archived(t, file("srv//a")),
		"through a link":   archived(t, entry{tar.TypeSymlink, "srv/l", "/etc"}, file("srv/l/passwd")),
		"far below a link": archived(t, entry{tar.TypeSymlink, "srv/l", "/etc"}, file("srv/b"), file("srv/l/x/y")),
		"delete by a link": archived(t, entry{tar.TypeSymlink, "srv/l", "/etc"}, entry{tar.TypeReg, "srv/l/.wh.passwd", ""}),
		"hard link":        archived(t, entry{tar.TypeLink, "srv/a", "../../etc/shadow"}),
		"hard link by link": archived(t, entry{tar.TypeSymlink, "srv/l", "/etc"},
			entry{tar.TypeLink, "srv/a", "srv/l/shadow"}),
		"delete the parent":       archived(t, entry{tar.TypeReg, "srv/.wh...", ""}),
		"delete nothing":          archived(t, entry{tar.TypeReg, "srv/.wh.", ""}),
		"opaque":                  archived(t, entry{tar.TypeReg, "srv/.wh..wh..opq", ""}),
		"full whiteout":           archived(t, file("srv/.wh.a")),
		"whiteout that is a link": archived(t, entry{tar.TypeSymlink, "srv/.wh.a", "b"}),
		"below a whiteout name":   archived(t, file("srv/.wh.a/b")),
		"root is a link":          archived(t, entry{tar.TypeSymlink, ".", "/etc"}),
		"below a file":            archived(t, file("srv/a"), file("srv/a/b")),
		"directory in the place of a link": archived(t, entry{tar.TypeSymlink, "srv/l", "/etc"},
			entry{tar.TypeDir, "srv/l/", ""}, file("srv/l/passwd")),
		"whiteout of a link": archived(t, entry{tar.TypeSymlink, "srv/l", "/etc"},
			entry{tar.TypeReg, "srv/.wh.l", ""}, file("srv/l/passwd")),
		"file in the place of a link": archived(t, entry{tar.TypeSymlink, "srv/l", "/etc/passwd"}, file("srv/l")),
		"link after its whiteout": archived(t, entry{tar.TypeReg, "srv/.wh.l", ""},
			entry{tar.TypeSymlink, "srv/l", "/etc"}, entry{tar.TypeDir, "srv/l/", ""}),
		"twice":                     archived(t, file("srv/a"), file("srv/b"), file("srv/a")),
		"whiteout twice":            archived(t, entry{tar.TypeReg, "srv/.wh.a", ""}, entry{tar.TypeReg, "srv/.wh.a", ""}),
		"whiteout of an entry":      archived(t, file("srv/a"), entry{tar.TypeReg, "srv/.wh.a", ""}),
		"late entry for a whiteout": archived(t, entry{tar.TypeReg, "srv/.wh.a", ""}, file("srv/b"), file("srv/a")),
		"hard link to no file":      archived(t, entry{tar.TypeLink, "srv/a", "etc/shadow"}),
		"two archives":              append(archived(t, file("srv/a")), archived(t, file("../b"))...),
		"text after the end":        append(archived(t, file("srv/a")), 'x'),
		"no end":                    archived(t, file("srv/a"))[:1024],
		"no tar":                    bytes.Repeat([]byte("x"), 4096),
		"cut off":                   archived(t, entry{tar.TypeReg, "srv/a", strings.Repeat("x", 2000)})[:700],
	}
}

// If an exported archive is hostile, nothing is written.
func TestHostileExports(t *testing.T) {
	var archive []byte
	broken := false
	run, _ := exporting(t, &archive, &broken)
	for name, a := range hostileArchives(t) {
		archive = a
		if code, out, errs := run("export", "desk", "--tar", "-"); code != exitError || out != "" {
			t.Errorf("%s: exit code %d, %d bytes, %s", name, code, len(out), errs)
		}
	}
	archive = archived(t, entry{tar.TypeReg, "srv/a", "x"}, entry{tar.TypeSymlink, "srv/l", "/etc"},
		entry{tar.TypeReg, "srv/.wh.d", ""}, entry{tar.TypeDir, "srv/d/", ""}, entry{tar.TypeReg, "srv/d/x", ""},
		entry{tar.TypeReg, "srv/d/.wh.l", ""}, entry{tar.TypeSymlink, "srv/d/l", "x"},
		entry{tar.TypeLink, "srv/b", "srv/a"}, entry{tar.TypeFifo, "srv/f", ""}, entry{tar.TypeReg, "srv/...", ""})
	if code, out, errs := run("export", "desk", "--tar", "-"); code != exitOK || out != string(archive) {
		t.Errorf("exit code %d, %d bytes, %s", code, len(out), errs)
	}
}

// An archive may contain a file that is a huge hole. An export to an archive does not read the
// hole. An export to git fails, because the file is too large for a commit.
func TestExportOfLargeHoles(t *testing.T) {
	dir := newRepo(t)
	var out bytes.Buffer
	list := "1\n1125899906842624\n0\n"
	list += strings.Repeat("\x00", 512-len(list))
	records := pax("GNU.sparse.major", "1") + pax("GNU.sparse.minor", "0") + pax("GNU.sparse.name", "srv/large") +
		pax("GNU.sparse.realsize", "1125899906842624")
	out.Write(plainBlock(t, 'x', len(records)))
	out.WriteString(records + strings.Repeat("\x00", 512-len(records)))
	out.Write(plainBlock(t, '0', len(list)))
	out.WriteString(list)
	out.Write(make([]byte, 1024))
	archive, broken := out.Bytes(), false
	run, _ := exporting(t, &archive, &broken)
	if code, got, errs := run("export", "desk", "--tar", "-"); code != exitOK || got != string(archive) {
		t.Errorf("exit code %d, %d bytes, %s", code, len(got), errs)
	}
	if code, _, errs := run("export", "desk", "/srv", "--git", dir); code != exitError || !strings.Contains(errs, "GiB") {
		t.Errorf("exit code %d, %s", code, errs)
	}
}

// pax returns a short record of an extended header.
func pax(key, value string) string {
	text := fmt.Sprintf(" %s=%s\n", key, value)
	return fmt.Sprintf("%d%s", len(text)+2, text)
}

// plainBlock returns a header block of a type that tar.Writer may refuse to write.
func plainBlock(t *testing.T, kind byte, size int) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := tar.NewWriter(&out).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "x", Size: int64(size),
		Format: tar.FormatUSTAR}); err != nil {
		t.Fatal(err)
	}
	b := out.Bytes()
	b[156] = kind
	return summed(b)
}

// summed sets the checksum of a header block.
func summed(b []byte) []byte {
	copy(b[148:], "        ")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

// An export to git omits files that git could run as hooks, and files that could lead git to other
// hooks.
func TestExportOfHooks(t *testing.T) {
	dir := newRepo(t)
	file := func(name string) entry { return entry{tar.TypeReg, name, "#!/bin/sh\n: > \"$PROOF\"\n"} }
	archive, broken := archived(t, file("new"), file("tools/other"), file("tools/hooks/post-checkout"),
		file("TOOLS/Hooks/post-checkout"), file("tools/hooks./deep/x"), file("tools/HOOKS~1/post-checkout"),
		entry{tar.TypeReg, "tools/hooks/.wh.pre-commit", ""}, file("tools/hooks2"), file("src/tools/hooks/x")), false
	links := archived(t, file("new"), file("evil/hooks/post-checkout"), entry{tar.TypeReg, ".wh.tools", ""},
		entry{tar.TypeSymlink, "tools", "evil"})
	husky := archived(t, file("new"), file(".husky/post-checkout"), file(".husky/_/post-checkout"))
	if err := os.Symlink("tools", filepath.Join(dir, "linked")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "tools", "hooks"), 0o755); err != nil {
		t.Fatal(err)
	}
	run, _ := exporting(t, &archive, &broken)
	proof := filepath.Join(t.TempDir(), "proof")
	t.Setenv("PROOF", proof)
	for i, c := range []struct {
		hooksPath string
		archive   []byte
		leftOut   int
	}{
		{"tools/hooks", archive, 5},
		{"./tools/../tools/hooks/", archive, 5},
		{filepath.Join(dir, "tools", "hooks"), archive, 5},
		{"linked/hooks", archive, 5},
		{"tools/hooks", links, 2},
		{".husky/_", husky, 2},
		{".husky", husky, 2},
	} {
		archive = c.archive
		git(t, dir, "config", "core.hooksPath", c.hooksPath)
		branch := fmt.Sprintf("b%d", i)
		code, out, errs := run("export", "desk", "/", "--git", dir, "--branch", branch, "-o", "json")
		var made committed
		if err := json.Unmarshal([]byte(out), &made); err != nil || code != exitOK || made.LeftOut != c.leftOut ||
			strings.Count(errs, "core.hooksPath") != c.leftOut {
			t.Errorf("%s: exit code %d, %q, %s, %v", c.hooksPath, code, out, errs, err)
			continue
		}
		git(t, dir, "checkout", "--quiet", branch)
		git(t, dir, "checkout", "--quiet", "main")
		if _, err := os.Stat(proof); err == nil {
			t.Errorf("%s: a program of the guest has run", c.hooksPath)
		}
	}
	for hooksPath, want := range map[string]int{".": exitError, "": exitOK, "/dev/null": exitOK, "../hooks": exitOK} {
		git(t, dir, "config", "core.hooksPath", hooksPath)
		code, _, errs := run("export", "desk", "/", "--git", dir, "--branch", fmt.Sprintf("c%d", len(hooksPath)))
		if code != want || strings.Contains(errs, "core.hooksPath") != (want == exitError) {
			t.Errorf("%q: exit code %d, %s", hooksPath, code, errs)
		}
	}
}

// endless serves an export that never ends: the bytes of archive, and then zeros until the client
// leaves.
func endless(t *testing.T, archive []byte) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/export" {
			_ = json.NewEncoder(w).Encode([]client.Sandbox{{ID: "sb-abc", Workspace: "desk"}})
			return
		}
		_, err := w.Write(archive)
		for zeros := make([]byte, 64<<10); err == nil; {
			_, err = w.Write(zeros)
		}
	}))
	t.Cleanup(srv.Close)
	t.Setenv(urlEnv, srv.URL)
}

// If a commit would be too large, the export fails before the temporary file has the commit's
// content. The export leaves no file.
func TestExportOfLargeFilesToGit(t *testing.T) {
	dir, tmp := newRepo(t), t.TempDir()
	t.Setenv("TMPDIR", tmp)
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "srv/x", Size: 5 << 30}); err != nil {
		t.Fatal(err)
	}
	endless(t, b.Bytes())
	var out, errs strings.Builder
	code := Main([]string{"export", "desk", "/srv", "--git", dir}, Stdio{In: strings.NewReader(""), Out: &out, Err: &errs})
	if code != exitError || !strings.Contains(errs.String(), "more than 4 GiB: name a PATH") {
		t.Errorf("exit code %d, %s", code, errs.String())
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
	if got := git(t, dir, "branch", "--format=%(refname:short)"); got != "main" {
		t.Errorf("branches: %s", got)
	}
}

// Files that a commit omits still count against the limit of the archive.
func TestTemporaryFileIsBounded(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	endless(t, archived(t, entry{tar.TypeReg, "srv/.git/x", strings.Repeat("x", 4096)}))
	cl, err := client.New(os.Getenv(urlEnv), "")
	if err != nil {
		t.Fatal(err)
	}
	err = withTar(t.Context(), cl, client.ExportRequest{To: "sb-abc"}, 1<<20, anyEntry, func(io.Reader) error {
		t.Error("an archive of more than the bound is used")
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "more than 1048576 bytes: name a PATH") {
		t.Error(err)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// If the directory of temporary files cannot be used, the error names TMPDIR.
func TestTemporaryFileFails(t *testing.T) {
	archive, broken := archived(t, entry{tar.TypeReg, "srv/a", "x"}), false
	run, _ := exporting(t, &archive, &broken)
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "none"))
	if code, out, errs := run("export", "desk", "--tar", "-"); code != exitError || out != "" ||
		!strings.Contains(errs, "set TMPDIR") {
		t.Errorf("exit code %d, %q, %s", code, out, errs)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	cl, err := client.New(os.Getenv(urlEnv), "")
	if err != nil {
		t.Fatal(err)
	}
	err = noSpaceError(fetchTar(t.Context(), cl, client.ExportRequest{To: "sb-abc"}, full, 1<<20, anyEntry))
	if err == nil || !strings.Contains(err.Error(), "is full: set TMPDIR") {
		t.Error(err)
	}
}

// If a link or another user's file exists at the path of a new file, the link is not followed and
// the file is not written to.
func TestOwnFilesAreNew(t *testing.T) {
	dir := t.TempDir()
	link, target := filepath.Join(dir, "link"), filepath.Join(dir, "target")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	for range 2 { // in round 1 the target is missing, in round 2 it exists
		if f, err := createNew(link, 0o600); err == nil {
			f.Close()
			t.Error("a link is followed")
		}
		if err := os.WriteFile(target, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
