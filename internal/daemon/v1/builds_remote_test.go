package v1_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
)

// git runs git in a directory and returns its output.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@b", "-c",
		"protocol.file.allow=always"}, args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// origin makes a git repository with two commits below root. It returns both commits.
func origin(t *testing.T, root string) (first, second string) {
	t.Helper()
	work := t.TempDir()
	git(t, work, "init", "-q", "-b", "main")
	commit := func(name string) string {
		path := filepath.Join(work, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
		git(t, work, "add", ".")
		git(t, work, "commit", "-q", "-m", name)
		return git(t, work, "rev-parse", "HEAD")
	}
	first, second = commit("one"), commit("sub/two")
	git(t, work, "tag", "v1", first)
	git(t, work, "clone", "-q", "--bare", work, filepath.Join(root, "r.git"))
	git(t, filepath.Join(root, "r.git"), "update-server-info")
	return first, second
}

// ADD downloads files and repositories in the guest. It accepts only the checksum or commit that
// the Dockerfile gives.
func TestAddFromTheNetwork(t *testing.T) {
	for _, program := range []string{"git", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("this host, whose programs the guests have, has no %s", program)
		}
	}
	r, dir := builder(t)
	root := t.TempDir()
	first, second := origin(t, root)
	backend := filepath.Join(git(t, root, "--exec-path"), "git-http-backend")
	smart := httptest.NewServer(&cgi.Handler{Path: backend, Env: []string{"GIT_PROJECT_ROOT=" + root,
		"GIT_HTTP_EXPORT_ALL=1"}})
	defer smart.Close()
	// A plain HTTP server, from which git cannot make a shallow clone.
	plain := httptest.NewServer(http.FileServer(http.Dir(root)))
	defer plain.Close()
	if err := os.WriteFile(filepath.Join(root, "file.bin"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	sum := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("content")))
	text := strings.NewReplacer("DIR", dir, "SUM", sum, "SMART", smart.URL, "PLAIN", plain.URL, "FIRST", first, "SECOND",
		second).Replace(`FROM a.b
ADD --checksum=SUM PLAIN/file.bin?x=1 DIR/
ADD --checksum=SUM PLAIN/file.bin DIR/other/name
ADD SMART/r.git#FIRST DIR/first
ADD --checksum=SECOND --keep-git-dir SMART/r.git#main DIR/second
ADD SMART/r.git#SECOND:sub DIR/below
ADD PLAIN/r.git#FIRST DIR/plain
RUN cd DIR && find . -type f ! -path '*/.git/*' | sort | tr '\n' ' '; ls -d second/.git; stat -c %a file.bin
`)
	req := client.BuildRequest{Tag: "made", Dockerfile: text, Replace: true}
	_, log, err := built(t, r.Client, req, nil)
	if err != nil {
		t.Fatal(err, "\n", log)
	}
	hasLines(t, log, "7: ./below/two ./file.bin ./first/one ./other/name ./plain/one ./second/one ./second/sub/two "+
		"second/.git", "7: 600")
	for _, c := range []struct{ line, want string }{
		{"ADD --checksum=" + strings.Replace(sum, ":", ":"+"0000", 1)[:len(sum)] + " " + plain.URL + "/file.bin /x",
			"has the checksum " + sum},
		{"ADD --checksum=" + sum + " " + plain.URL + "/none /x", "404"},
		{"ADD --checksum=" + first + " " + smart.URL + "/r.git#main /x",
			"main of " + smart.URL + "/r.git is the commit " + second},
		{"ADD " + smart.URL + "/r.git#" + second + ":none /x", "the commit has no directory none"},
	} {
		req := client.BuildRequest{Tag: "x", Dockerfile: "FROM a.b\n" + c.line}
		if _, _, err := built(t, r.Client, req, nil); !client.IsStatus(err, http.StatusBadRequest) ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want 400 with %q", c.line, err, c.want)
		}
	}
}

// COPY --from skips files that match --exclude. ONBUILD instructions run in the stage that builds
// on the image.
func TestExcludeFromAndOnbuild(t *testing.T) {
	r, dir := builder(t)
	text := strings.NewReplacer("DIR", dir).Replace(`FROM a.b AS one
RUN mkdir -p DIR/in/keep DIR/in/drop && cd DIR/in && touch a.txt b keep/c.txt keep/d drop/e && ln b keep/hard && ln -s b link
ONBUILD RUN echo triggered > DIR/trigger
FROM one
COPY --from=one --exclude=**/*.txt --exclude=drop DIR/in DIR/out
COPY --from=one --exclude=*.txt DIR/in/* DIR/many/
RUN cd DIR && cat trigger; find out many ! -type d | sort | tr '\n' ' '
`)
	req := client.BuildRequest{Tag: "made", Dockerfile: text}
	_, log, err := built(t, r.Client, req, nil)
	if err != nil {
		t.Fatal(err, "\n", log)
	}
	hasLines(t, log, "5: triggered", "5: many/b many/d many/e many/hard many/link out/b out/keep/d out/keep/hard out/link")
}
