package cli

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// git runs a command of git in a repository, without the user's configuration.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// newRepo makes a repository with one commit.
func newRepo(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git command")
	}
	for name, value := range map[string]string{"GIT_CONFIG_GLOBAL": os.DevNull, "GIT_CONFIG_NOSYSTEM": "1",
		"GIT_COMMITTER_NAME": "A U Thor", "GIT_COMMITTER_EMAIL": "a@example.org", "GIT_AUTHOR_NAME": "A U Thor",
		"GIT_AUTHOR_EMAIL": "a@example.org"} {
		t.Setenv(name, value)
	}
	dir := t.TempDir()
	git(t, dir, "init", "--quiet", "--initial-branch=main")
	for name, text := range map[string]string{"keep": "keep", "gone/x": "x", "gone.txt": "x", "was-dir/x": "x",
		"was-file": "x"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	git(t, dir, "add", ".")
	git(t, dir, "commit", "--quiet", "-m", "first")
	return dir
}

func TestExportToGit(t *testing.T) {
	dir := newRepo(t)
	if err := os.WriteFile(filepath.Join(dir, "keep"), []byte("not committed"), 0o600); err != nil {
		t.Fatal(err)
	}
	const odd = "line\nend \"\\\xff"
	archive, broken := archived(t, entry{tar.TypeDir, "srv/app", ""}, entry{tar.TypeReg, "srv/app/new", "text\n"},
		entry{tar.TypeReg, "srv/app/.wh.gone", ""}, entry{tar.TypeReg, "srv/app/.wh.gone.txt", ""},
		entry{tar.TypeReg, "srv/app/.wh.was-dir", ""}, entry{tar.TypeReg, "srv/app/was-dir", "file"},
		entry{tar.TypeReg, "srv/app/.wh.was-file", ""}, entry{tar.TypeDir, "srv/app/was-file/", ""},
		entry{tar.TypeSymlink, "srv/app/link", "../../../etc/passwd"}, entry{tar.TypeLink, "srv/app/hard", "srv/app/new"},
		entry{tar.TypeReg, "srv/app/" + odd, ""}, entry{tar.TypeReg, "srv/app/.git/hooks/pre-commit", "evil"},
		entry{tar.TypeReg, "srv/app/sub/.GIT/config", "evil"}, entry{tar.TypeReg, "srv/app/git~1/config", "evil"},
		entry{tar.TypeFifo, "srv/app/fifo", ""},
		entry{tar.TypeLink, "srv/app/out", "srv/app/.git/hooks/pre-commit"}), false
	run, last := exporting(t, &archive, &broken)
	before := git(t, dir, "status", "--porcelain") + git(t, dir, "rev-parse", "HEAD") + git(t, dir, "symbolic-ref", "HEAD")
	t.Setenv("GIT_DIR", "/nonexistent") // git sets GIT_DIR for a hook that calls forkd
	code, out, errs := run("export", "base..desk", "/srv/app/", "--git", dir, "--branch", "attempt/2", "-m",
		"A message\n\nlong", "-o", "json")
	if err := os.Unsetenv("GIT_DIR"); err != nil {
		t.Fatal(err)
	}
	var made committed
	if err := json.Unmarshal([]byte(out), &made); err != nil || code != exitOK {
		t.Fatalf("exit code %d, %q, %s, %v", code, out, errs, err)
	}
	if last.Path != "/srv/app/" || made.Branch != "attempt/2" || made.Commit != git(t, dir, "rev-parse", "attempt/2") ||
		made.Written != 5 || made.Deleted != 4 || made.LeftOut != 5 || strings.Count(errs, "is left out") != 5 {
		t.Errorf("%+v, %+v, %s", *last, made, errs)
	}
	want := "100644 keep keep|100755  " + odd + "|100755 file was-dir|100755 text\n hard|100755 text\n new|120000 ../../../etc/passwd link"
	if got := tree(t, dir, "attempt/2"); got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if got := git(t, dir, "log", "--format=%an %ce|%B|%P", "-1", "attempt/2"); got !=
		"A U Thor a@example.org|A message\n\nlong\n|"+git(t, dir, "rev-parse", "HEAD") {
		t.Errorf("%q", got)
	}
	if after := git(t, dir, "status", "--porcelain") + git(t, dir, "rev-parse", "HEAD") +
		git(t, dir, "symbolic-ref", "HEAD"); after != before {
		t.Errorf("the work tree or HEAD has changed: %s, was %s", after, before)
	}
	git(t, dir, "fsck", "--strict")
}

// tree returns the files of a commit, sorted by mode and name.
func tree(t *testing.T, dir, commit string) string {
	t.Helper()
	cmd := exec.Command("git", "-C", dir, "ls-tree", "-r", "-z", commit)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for line := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		head, name, _ := strings.Cut(line, "\t")
		fields := strings.Fields(head)
		content := exec.Command("git", "-C", dir, "cat-file", "blob", fields[2])
		text, err := content.Output()
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, fmt.Sprintf("%s %s %s", fields[0], text, name))
	}
	return strings.Join(slices.Sorted(slices.Values(files)), "|")
}

// An export that cannot be completed makes no branch.
func TestExportToGitFails(t *testing.T) {
	dir := newRepo(t)
	var archive []byte
	broken := false
	run, _ := exporting(t, &archive, &broken)
	cases := hostileArchives(t)
	cases["a file as PATH"] = archived(t, entry{tar.TypeReg, "srv", "x"})
	cases["PATH deleted"] = archived(t, entry{tar.TypeReg, ".wh.srv", ""})
	cases["elsewhere"] = archived(t, entry{tar.TypeReg, "srv2/x", "x"})
	cases["nothing"] = archived(t, entry{tar.TypeDir, "srv/", ""})
	for name, a := range cases {
		archive = a
		if code, out, errs := run("export", "desk", "/srv", "--git", dir); code != exitError || out != "" || errs == "" {
			t.Errorf("%s: exit code %d, %q, %s", name, code, out, errs)
		}
	}
	archive, broken = archived(t, entry{tar.TypeReg, "srv/x", "x"}), true
	if code, _, _ := run("export", "desk", "/srv", "--git", dir); code != exitError {
		t.Errorf("broken off: exit code %d", code)
	}
	broken = false
	for _, args := range [][]string{{dir, "--branch", "main"}, {dir, "--branch", "a..b"}, {dir, "--branch=-x"},
		{t.TempDir()}, {filepath.Join(dir, "none")}} {
		code, _, errs := run(append([]string{"export", "desk", "/srv", "--git"}, args...)...)
		if code == exitOK || errs == "" {
			t.Errorf("%q: exit code %d, %s", args, code, errs)
		}
	}
	if got := git(t, dir, "branch", "--format=%(refname:short)"); got != "main" {
		t.Errorf("branches: %s", got)
	}
	if reports, err := filepath.Glob(filepath.Join(dir, ".git", "*crash*")); err != nil || len(reports) > 0 {
		t.Errorf("%q, %v", reports, err)
	}
	if code, out, errs := run("export", "desk", "/srv", "--git", dir); code != exitOK ||
		!strings.HasPrefix(out, "branch forkd/sb-abc has commit ") || git(t, dir, "show", "forkd/sb-abc:x") != "x" {
		t.Errorf("exit code %d, %s, %s", code, out, errs)
	}

	// In an empty repository, HEAD names a branch without commits. An export must not make this
	// branch.
	empty := t.TempDir()
	git(t, empty, "init", "--quiet", "--initial-branch=main")
	if code, _, errs := run("export", "desk", "/srv", "--git", empty, "--branch", "main"); code != exitError {
		t.Errorf("exit code %d, %s", code, errs)
	}
	if code, _, errs := run("export", "desk", "/srv", "--git", empty, "--branch", "other"); code != exitOK ||
		git(t, empty, "show", "other:x") != "x" {
		t.Errorf("exit code %d, %s", code, errs)
	}
}
