package v1_test

import (
	"archive/tar"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/build"
	"github.com/forkd/forkd/internal/host/admit"
)

// emptyLineShell is a shell. When a build asks the shell for the files that match a pattern, the
// shell answers with an empty line.
const emptyLineShell = `#!/bin/bash --posix
case "$2" in
'# Says which'*) echo; exit 0 ;;
esac
exec -a sh /bin/bash --posix "$@"
`

// hostileShellEnv is set in the child process of TestAnEmptyAnswerFailsTheStep.
const hostileShellEnv = "FORKD_TEST_HOSTILE_SHELL"

// If an image has a hostile shell, the step that runs the shell fails, but the daemon does not
// crash. The daemon runs in a child process of this test.
func TestAnEmptyAnswerFailsTheStep(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounts over /bin/dash in a namespace: needs root")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(hostileShellEnv) == "" {
		cmd := exec.Command(self, "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), hostileShellEnv+"=1")
		cmd.WaitDelay = time.Second // orphaned agents keep the output of cmd open until the process group is killed
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		out, err := cmd.CombinedOutput()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if err != nil {
			t.Fatalf("the daemon's process: %v\n%.2000s", err, out)
		}
		return
	}
	sh := filepath.Join(t.TempDir(), "sh")
	if err := os.WriteFile(sh, []byte(emptyLineShell), 0o755); err != nil {
		t.Fatal(err)
	}
	r := apirig.Start(t, apirig.Options{Agent: func(dir string) *exec.Cmd {
		cmd := exec.Command("unshare", "-m", "--propagation", "private", "/bin/bash", "-c",
			`mount --bind "$0" /bin/dash && exec "$1"`, sh, self)
		cmd.Env = append(os.Environ(), apirig.AgentDirEnv+"="+dir)
		return cmd
	}})
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	_, log, err := built(t, r.Client, client.BuildRequest{Tag: "x",
		Dockerfile: "FROM a.b AS hostile\nFROM a.b\nCOPY --from=hostile /etc/hostname /tmp/x\n"}, nil)
	if err == nil || !strings.Contains(err.Error(), "is no path") {
		t.Fatalf("%v\n%s", err, log)
	}
}

// forkOf forks the parent with a token whose scope is run, and returns the token's client and the
// sandbox.
func forkOf(t *testing.T, r *apirig.Rig, token string) (*client.Client, string) {
	t.Helper()
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	cl, err := client.New(r.URL, r.Tokens[token])
	if err != nil {
		t.Fatal(err)
	}
	box, err := cl.Fork(t.Context(), client.ForkRequest{SnapshotTag: "a.b", N: 1})
	if err != nil {
		t.Fatal(err)
	}
	return cl, box.Sandboxes[0].ID
}

// A build finds the snapshot of a step by its tag. Any client can compute such a tag, but only
// builds can create a snapshot with it.
func TestTagsOfStepsAreForBuilds(t *testing.T) {
	r := start(t, apirig.Options{Tokens: []auth.Token{{Name: "mallory", Scope: auth.Run}}})
	mallory, id := forkOf(t, r, "mallory")
	tag := "step-" + strings.Repeat("0a", 20)
	if _, err := mallory.Branch(t.Context(), id, client.BranchRequest{Tag: tag}); err == nil ||
		!strings.Contains(err.Error(), "tag") {
		t.Errorf("branched to %s: %v", tag, err)
	}
	ask := func(method, path, body string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, r.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-API-Key", r.Tokens["mallory"])
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if _, err := mallory.Branch(t.Context(), id, client.BranchRequest{Tag: "step-1"}); err != nil {
		t.Errorf("a tag that is not one of a build's step: %v", err)
	}
	name := fmt.Sprintf(`{"name":%q}`, tag) // E2B's API refuses the tag too, for a running and for a suspended sandbox
	if status := ask("POST", "/sandboxes/"+id+"/snapshots", name); status != http.StatusBadRequest {
		t.Errorf("E2B's snapshot of a running sandbox: %d", status)
	}
	if status := ask("POST", "/sandboxes/"+id+"/pause", "{}"); status != http.StatusNoContent {
		t.Errorf("pause: %d", status)
	}
	if status := ask("POST", "/sandboxes/"+id+"/snapshots", name); status != http.StatusBadRequest {
		t.Errorf("E2B's snapshot of a suspended sandbox: %d", status)
	}
	r.Steps.Trim(0) // each build does the same at its end, but keeps 256 steps
	if _, err := r.Snapshot(t.Context(), "step-1"); err != nil {
		t.Errorf("the snapshot of a user was removed as if it were a step: %v", err)
	}
}

// FROM refuses a snapshot that a client with the scope run may have made. FROM does not use the
// image of the same name instead.
func TestFROMTakesNoBranch(t *testing.T) {
	r := start(t, apirig.Options{Tokens: []auth.Token{{Name: "mallory", Scope: auth.Run}}})
	mallory, id := forkOf(t, r, "mallory")
	if _, err := mallory.Branch(t.Context(), id, client.BranchRequest{Tag: "alpine"}); err != nil {
		t.Fatal(err)
	}
	_, log, err := built(t, r.Client, client.BuildRequest{Tag: "made", Dockerfile: "FROM alpine\nRUN echo hi\n"}, nil)
	if err == nil || !strings.Contains(err.Error(), `the snapshot "alpine" is a branch`) ||
		!strings.Contains(err.Error(), "write docker.io/library/alpine for the image") ||
		strings.Contains(err.Error(), "as an image") {
		t.Errorf("FROM alpine: %v\n%s", err, log)
	}
	for _, from := range []string{"a.b", "made-before"} { // a parent, and the result of a build
		tag := map[string]string{"a.b": "made-before"}[from]
		if _, log, err = built(t, r.Client, client.BuildRequest{Tag: cmp.Or(tag, "made-after"), Dockerfile: "FROM " + from +
			"\nRUN echo " + from + "\n"}, nil); err != nil {
			t.Errorf("FROM %s: %v\n%s", from, err, log)
		}
	}
}

// A daemon may die after it has published the result of a build and before it has recorded the
// result. The next daemon then records the result: FROM accepts the result, and the same build
// finds it. If the branch of another sandbox has the tag of a running build's result, the branch is
// not recorded as a result.
func TestResultsAreRecordedAfterACrash(t *testing.T) {
	r := start(t, apirig.Options{Tokens: []auth.Token{{Name: "mallory", Scope: auth.Run}}})
	mallory, id := forkOf(t, r, "mallory")
	const text = "FROM a.b\nRUN echo hi\n"
	record := filepath.Join(r.Plans.Dir, "results", "made")
	if err := os.MkdirAll(filepath.Join(record, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := built(t, r.Client, client.BuildRequest{Tag: "made", Dockerfile: text}, nil); err == nil {
		t.Fatal("the record was written")
	}
	from := func() error {
		_, _, err := built(t, r.Client, client.BuildRequest{Tag: "next", Dockerfile: "FROM made\nRUN echo next\n"}, nil)
		return err
	}
	if err := os.RemoveAll(record); err != nil {
		t.Fatal(err)
	}
	if err := from(); err == nil || !strings.Contains(err.Error(), "is a branch") {
		t.Errorf("FROM a result without a record: %v", err)
	}
	announced := filepath.Join(r.Plans.Dir, "announced")
	note, err := os.ReadFile(filepath.Join(announced, "made"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mallory.Branch(t.Context(), id, client.BranchRequest{Tag: "forged"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(announced, "forged"), note, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := build.New(r.Plans); err != nil { // like the next daemon
		t.Fatal(err)
	}
	if err := from(); err != nil {
		t.Errorf("FROM a result that was recorded later: %v", err)
	}
	if _, log, err := built(t, r.Client, client.BuildRequest{Tag: "made", Dockerfile: text}, nil); err != nil ||
		!strings.Contains(log, build.Cached) {
		t.Errorf("the same build: %v\n%s", err, log)
	}
	if _, err := os.Stat(filepath.Join(r.Plans.Dir, "results", "forged")); err == nil {
		t.Error("the branch of a client is a result")
	}
	if left, err := os.ReadDir(announced); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A build may fetch an image with the daemon's own registry login. So a client with a label prefix
// sees neither the snapshot of the image nor the snapshots of steps.
func TestStepsAreWithinNoPrefix(t *testing.T) {
	r := start(t, apirig.Options{Tokens: []auth.Token{{Name: "a", Scope: auth.Run, Prefix: "team-a/"}}})
	tenant, err := client.New(r.URL, r.Tokens["a"])
	if err != nil {
		t.Fatal(err)
	}
	if _, log, err := built(t, r.Client, client.BuildRequest{Tag: "private",
		Dockerfile: "FROM " + apirig.Image + "\nRUN echo x\n"}, nil); err != nil {
		t.Fatal(err, "\n", log)
	}
	list, err := tenant.Snapshots(t.Context())
	if err != nil || len(list) != 0 {
		t.Errorf("a tenant sees %+v, %v", list, err)
	}
	all, err := r.Snapshots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if _, err := tenant.Fork(t.Context(), client.ForkRequest{SnapshotTag: s.Tag, N: 1}); err == nil {
			t.Errorf("a tenant forks %s", s.Tag)
		}
	}
}

// A client leaves while its build waits for a place for the snapshot. The build leaves no record of
// this snapshot.
func TestCancelledWhileBranchesAreBusy(t *testing.T) {
	r := start(t, apirig.Options{})
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	r.VMs.Mu.Lock()
	r.VMs.BranchErr = &admit.BusyError{What: "branches", Limit: 1}
	r.VMs.Mu.Unlock()
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := r.Build(ctx, client.BuildRequest{Tag: "x", Dockerfile: "FROM a.b\n"},
			func(*tar.Writer) error { return nil }, func(client.BuildEvent) error { return nil })
		ended <- err
	}()
	announced := filepath.Join(r.Plans.Dir, "announced", "x")
	for _, err := os.Stat(announced); err != nil; _, err = os.Stat(announced) {
		time.Sleep(time.Millisecond)
	}
	leave()
	<-ended
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, err := os.Stat(announced); err != nil {
			return
		}
	}
	t.Errorf("%s is left", announced)
}
