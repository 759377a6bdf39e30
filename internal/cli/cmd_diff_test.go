package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// comparing starts a daemon that answers a diff with d. It returns a function that runs a command line, and
// a pointer to the latest request.
func comparing(t *testing.T, d client.Diff) (run func(line string) (code int, out, errs string),
	last *client.DiffRequest) {
	t.Helper()
	last = &client.DiffRequest{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/diff" {
			_ = json.NewEncoder(w).Encode([]client.Sandbox{{ID: "sb-abc", Workspace: "desk"}})
			return
		}
		*last = client.DiffRequest{}
		_ = json.NewDecoder(r.Body).Decode(last)
		_ = json.NewEncoder(w).Encode(d)
	}))
	t.Cleanup(srv.Close)
	t.Setenv(urlEnv, srv.URL)
	return func(line string) (int, string, string) {
		var out, errs strings.Builder
		code := Main(strings.Fields(line), Stdio{In: strings.NewReader(""), Out: &out, Err: &errs})
		return code, out.String(), errs.String()
	}, last
}

func TestDiffRequests(t *testing.T) {
	run, last := comparing(t, client.Diff{})
	for line, want := range map[string]client.DiffRequest{
		"diff sb-a":                              {To: "sb-abc"},
		"diff desk /srv":                         {To: "sb-abc", Path: "/srv"},
		"diff base desk":                         {From: "base", To: "sb-abc"},
		"diff base other /":                      {From: "base", To: "other", Path: "/"},
		"diff sb-a base /a --stat --max-files 5": {From: "sb-abc", To: "base", Path: "/a", MaxFiles: new(5)},
		"diff a b --name-only":                   {From: "a", To: "b", Patch: new(false)},
		"diff a b -o json --name-status":         {From: "a", To: "b"},
	} {
		if code, _, errs := run(line); code != exitOK {
			t.Errorf("%s: %s", line, errs)
		}
		if last.From != want.From || last.To != want.To || last.Path != want.Path ||
			(last.Patch == nil) != (want.Patch == nil) ||
			want.MaxFiles != nil && *last.MaxFiles != *want.MaxFiles {
			t.Errorf("%s: %+v, want %+v", line, *last, want)
		}
	}
	for _, line := range []string{"diff", "diff a b c", "diff a b /c d", "diff a --stat --patch"} {
		if code, _, _ := run(line); code != exitUsage {
			t.Errorf("%s: exit code %d", line, code)
		}
	}
}

func TestDiffIsPrinted(t *testing.T) {
	file := client.DiffNode{Type: "file", Mode: 0o644, Size: 3}
	exec, owned, dir := file, file, client.DiffNode{Type: "dir", Mode: 0o755}
	exec.Mode, owned.UID, owned.Size = 0o755, 7, 9
	const patch = "diff --git a/t b/t\n--- a/t\n+++ b/t\n@@ -1 +1 @@\n-old\r\n+n\x1b[2Jew\n"
	run, _ := comparing(t, client.Diff{Added: 1, Changed: 4, Deleted: 1, LinesAdded: 1, LinesDeleted: 1, Omitted: 3,
		Skipped:     2,
		MemoryBytes: new(uint64(3 << 20)), Files: []client.DiffFile{
			{Path: "/line\nend", Change: "added", New: &dir, Content: true},
			{Path: "/gone", Change: "deleted", Old: &client.DiffNode{Type: "symlink"}, Content: true},
			{Path: "/mode", Change: "changed", Old: &file, New: &exec, Patch: "diff --git a/mode b/mode\nold mode 100644\nnew mode 100755\n"},
			{Path: "/own", Change: "changed", Old: &file, New: &owned, Content: true, PatchOmitted: "binary",
				Xattrs: []string{"user.a"},
				Patch:  "diff --git a/own b/own\nBinary files a/own and b/own differ\n"},
			{Path: "/t", Change: "changed", Old: &file, New: &file, Content: true, LinesAdded: 1, LinesDeleted: 1, Patch: patch},
			{Path: "/type", Change: "changed", Old: &file, New: &dir, Content: true},
		}})
	for line, want := range map[string]string{
		"diff a b --name-only":   "\"/line\\nend\"\n/gone\n/mode\n/own\n/t\n/type\n",
		"diff a b --name-status": "A\t\"/line\\nend\"\nD\t/gone\nM\t/mode\nM\t/own\nM\t/t\nM\t/type\n",
		"diff a b --patch": "diff --git a/mode b/mode\nold mode 100644\nnew mode 100755\n" +
			"diff --git a/own b/own\nBinary files a/own and b/own differ\n" + patch,
		"diff a b": `A "/line\nend": dir
D /gone: symlink
M /mode: mode 0644 → 0755
diff --git a/mode b/mode
old mode 100644
new mode 100755
M /own: owner 0:0 → 7:0, attributes user.a, 3 → 9 bytes, binary
diff --git a/own b/own
Binary files a/own and b/own differ
diff --git a/t b/t
--- a/t
+++ b/t
@@ -1 +1 @@
-old` + "\ufffd\n+n\ufffd" + `[2Jew
M /type: file → dir, mode 0644 → 0755
`,
		"diff a b --stat": `CHANGE   PATH          LINES  DETAIL
added    "/line\nend"         dir
deleted  /gone                symlink
changed  /mode                mode 0644 → 0755
changed  /own                 owner 0:0 → 7:0, attributes user.a, 3 → 9 bytes, binary
changed  /t            +1 -1  
changed  /type                file → dir, mode 0644 → 0755
1 added, 4 changed, 1 deleted; 1 line added, 1 deleted; 3.0 MiB of memory differ
`,
	} {
		code, out, errs := run(line)
		if ok := code == exitOK; ok == strings.Contains(line, "--patch") || out != want {
			t.Errorf("%s: exit code %d\n%q, want\n%q", line, code, out, want)
		}
		if !strings.Contains(errs, "3 more files differ") || !strings.Contains(errs, "2 files could not be compared") {
			t.Errorf("%s: %s", line, errs)
		}
	}
}

// If an answer does not describe the old or the new file at a path, the line for the path has no
// comparison.
func TestDiffWithoutVersions(t *testing.T) {
	file := &client.DiffNode{Type: "file"}
	run, _ := comparing(t, client.Diff{Files: []client.DiffFile{
		{Path: "/none", Change: "changed", Content: true},
		{Path: "/old", Change: "changed", Content: true, Old: file},
		{Path: "/new", Change: "changed", Content: true, New: file, PatchOmitted: "large"},
	}})
	if code, out, errs := run("diff a b"); code != exitOK || out != "M /none\nM /old\nM /new: too large for a patch\n" {
		t.Errorf("exit code %d, %q\n%s", code, out, errs)
	}
	for _, flag := range []string{"--stat", "--patch", "--name-status"} {
		if code, _, errs := run("diff a b " + flag); code != exitOK {
			t.Errorf("%s: exit code %d\n%s", flag, code, errs)
		}
	}
}

// If a patch is incomplete, the command says so and returns an error.
func TestAPartOfAPatchIsAnError(t *testing.T) {
	run, _ := comparing(t, client.Diff{Files: []client.DiffFile{{Path: "/a", Change: "added",
		New:     &client.DiffNode{Type: "file"},
		Content: true, PatchOmitted: "limit"}}})
	if code, _, errs := run("diff a b --patch"); code != exitError || !strings.Contains(errs, "--max-patch-bytes") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	if code, _, _ := run("diff a b"); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// A printed patch omits changes of a repository's .git, because they could make git run programs of
// a guest.
func TestPatchesLackGit(t *testing.T) {
	file := client.DiffNode{Type: "file"}
	d := client.Diff{Files: []client.DiffFile{
		{Path: "/app/.git", Change: "changed", Old: &client.DiffNode{Type: "dir"},
			New: &client.DiffNode{Type: "dir", UID: 1}},
		{Path: "/app/.gitignore", Change: "added", New: &file, Patch: "diff --git a/app/.gitignore b/app/.gitignore\n"},
		{Path: "/app/git", Change: "added", New: &file, Patch: "diff --git a/app/git b/app/git\n"},
	}}
	run, _ := comparing(t, d)
	whole := d.Files[1].Patch + d.Files[2].Patch
	if code, out, errs := run("diff a b --patch"); code != exitOK || out != whole || errs != "" {
		t.Errorf("exit code %d, %q\n%s", code, out, errs)
	}
	bad := []string{"/app/.git/config", "/app/.git/hooks/pre-commit", "/sub/.git", "/.GIT/x", "/win/.git. /x",
		"/win/GIT~1/x", "/win/.git::$INDEX_ALLOCATION/x", "/mac/.g\u200cit/x", "/gnu/.git x"}
	for _, path := range bad {
		d.Files = append(d.Files, client.DiffFile{Path: path, Change: "added", New: &file, Content: true,
			Patch: "diff --git a" + path + " b" + path + "\n"})
	}
	run, _ = comparing(t, d)
	code, out, errs := run("diff a b --patch")
	if code != exitError || out != whole {
		t.Errorf("exit code %d, %q", code, out)
	}
	for _, want := range []string{"2 changes of /app/.git,", "1 change of /sub/.git,", "1 change of /.GIT,",
		`/mac/.g\u200cit"`} {
		if !strings.Contains(errs, want) {
			t.Errorf("%s lacks %q", errs, want)
		}
	}
	if code, out, _ := run("diff a b --name-only"); code != exitOK || !strings.Contains(out, "/app/.git/config\n") {
		t.Errorf("exit code %d: %s", code, out)
	}
}
