package v1_test

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// Environment variables of a daemon process that this test kills.
const (
	mortalDirEnv = "FORKD_TEST_MORTAL_DIR" // directory for the daemon's state
	mortalAtEnv  = "FORKD_TEST_MORTAL_AT"  // the daemon kills itself at this event, counted from 1; 0: at none
)

// mortal kills its own process at one of its events. Events are operations of a VM, connections to
// an agent, and three points in time after each branch (after 0, 1 and 4 ms), while the daemon
// publishes the snapshot of the branch.
type mortal struct {
	at  int64
	now atomic.Int64
}

func (m *mortal) event() {
	if m.now.Add(1) == m.at {
		m.die()
	}
}

func (m *mortal) die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // wait for the signal
}

// afterBranch kills the process while the daemon publishes the snapshot of a branch.
func (m *mortal) afterBranch() {
	for _, delay := range []time.Duration{0, time.Millisecond, 4 * time.Millisecond} {
		if m.now.Add(1) == m.at {
			time.AfterFunc(delay, m.die)
		}
	}
}

// mortalVM is a VM whose operations are events.
type mortalVM struct {
	*vmfake.VMM
	m *mortal
}

func (v mortalVM) Boot(ctx context.Context, req vmmproto.Boot, f vmmclient.BootFiles) error {
	v.m.event()
	return v.VMM.Boot(ctx, req, f)
}

func (v mortalVM) Restore(ctx context.Context, req vmmproto.Restore, f vmmclient.RestoreFiles) (
	vmmproto.RestoreResult, error) {
	v.m.event()
	return v.VMM.Restore(ctx, req, f)
}

func (v mortalVM) Branch(ctx context.Context, req vmmproto.Branch, f vmmclient.BranchFiles) (vmmproto.BranchResult,
	error) {
	v.m.event()
	r, err := v.VMM.Branch(ctx, req, f)
	v.m.afterBranch()
	return r, err
}

func (v mortalVM) Kill() error {
	v.m.event()
	return v.VMM.Kill()
}

// TestMortalDaemon is the main function of a mortalDaemon's process. It is not a test by itself.
func TestMortalDaemon(t *testing.T) {
	dir := os.Getenv(mortalDirEnv)
	if dir == "" {
		return
	}
	at, err := strconv.ParseInt(os.Getenv(mortalAtEnv), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	m := &mortal{at: at}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := apirig.Start(t, apirig.Options{Dir: dir, Prepare: func(f *vmfake.VMMs) {
		f.Outlived, f.Wrap = true, func(v *vmfake.VMM) vmpool.VMM { return mortalVM{v, m} }
	}, Dial: func(context.Context) error {
		m.event()
		return nil
	}, Agent: func(sockets string) *exec.Cmd {
		note, err := os.OpenFile(filepath.Join(dir, "agents"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = fmt.Fprintln(note, sockets)
			err = errors.Join(err, note.Close())
		}
		if err != nil {
			t.Error(err)
		}
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), apirig.AgentDirEnv+"="+sockets, mortalDirEnv+"=")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd
	}})
	fmt.Println("URL", r.URL)
	<-t.Context().Done() // the process is killed before that
}

// mortalDaemon is a daemon with fake VMs, in a process of its own. The VMs outlive the process, and
// the next mortalDaemon with the same directory takes them over.
type mortalDaemon struct {
	*client.Client
	cmd *exec.Cmd
}

func startMortal(t *testing.T, dir string, at int) *mortalDaemon {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tmp, err := os.MkdirTemp("", "m") // a killed process does not remove its files; sockets need a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	d := &mortalDaemon{cmd: exec.Command(self, "-test.run=^TestMortalDaemon$")}
	d.cmd.Env = append(os.Environ(), mortalDirEnv+"="+dir, mortalAtEnv+"="+strconv.Itoa(at), "TMPDIR="+tmp)
	d.cmd.Stderr = os.Stderr
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if url, ok := strings.CutPrefix(lines.Text(), "URL "); ok {
			if d.Client, err = client.New(url, token); err != nil {
				t.Fatal(err)
			}
			return d
		}
		t.Log(lines.Text())
	}
	d.end()
	t.Fatal("the daemon has not started")
	return nil
}

func (d *mortalDaemon) end() {
	_ = d.cmd.Process.Kill() // fails if the process has killed itself
	_ = d.cmd.Wait()         // the error says that it was killed
}

// stepsOf returns a description of each step's snapshot, by tag, without the parts that differ
// between builds. It verifies each snapshot once, and fails if one is unfinished.
func (d *mortalDaemon) stepsOf(t *testing.T, verified map[string]string) map[string]string {
	t.Helper()
	list, err := d.Snapshots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	steps := make(map[string]string)
	for _, s := range list {
		if s.Status != "ready" || s.Transient && s.Sandboxes == 0 {
			t.Errorf("snapshot %s is left: %+v", s.Tag, s)
		}
		if !snapshot.IsStepTag(s.Tag) {
			continue
		}
		steps[s.Tag] = fmt.Sprint(s.DiskOnly, s.MemSizeMiB, s.VCPUs)
		if verified[s.Tag] == "" {
			if err := d.VerifySnapshot(t.Context(), s.Tag); err != nil {
				t.Errorf("snapshot %s: %v", s.Tag, err)
			}
		}
	}
	return steps
}

// hasNoLeftovers fails if anything of the previous daemon's builds, except the snapshots of steps,
// remains in a daemon that has just started.
func (d *mortalDaemon) hasNoLeftovers(t *testing.T, dir string) {
	t.Helper()
	if list, err := d.Sandboxes(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("sandboxes are left: %+v, %v", list, err)
	}
	for _, sub := range []string{"run", "data", "build/contexts", "build/caches"} {
		entries, err := os.ReadDir(filepath.Join(dir, sub))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			t.Errorf("%s is left in %s", e.Name(), sub)
		}
	}
}

const mortalSteps = 11 // steps of the Dockerfile below, including its two base images

// mortalBuild returns a build request and the files of its context. The stages of the build write
// to a host directory: work is its path.
func mortalBuild(work string) (client.BuildRequest, map[string]string) {
	text := strings.NewReplacer("IMAGE", apirig.Image, "@", work).Replace(`FROM IMAGE AS one
WORKDIR @/work
COPY in.txt sub/ ./
RUN cat in.txt more.txt > one
FROM IMAGE AS two
RUN --mount=type=secret,id=tok,env=TOK echo "two ${#TOK}" > @/two
ADD arch.tgz @/unpacked/
FROM one
ENV WORD=hello
COPY --from=two @/two @/unpacked/in/file @/work/
RUN cat one two file > all
# forkd: warm echo "$WORD" > warm
RUN cat all warm > last
`)
	return client.BuildRequest{Tag: "made", Dockerfile: text, Replace: true,
		Secrets: map[string][]byte{"tok": []byte("secret")}}, map[string]string{"in.txt": "in\n", "sub/more.txt": "more\n"}
}

// stepsIn returns the numbers of the steps that have a state in a log.
func stepsIn(log, state string) (steps []int) {
	for line := range strings.Lines(log) {
		if number, is, _ := strings.Cut(strings.TrimSpace(line), " "); is == state {
			if n, err := strconv.Atoi(number); err == nil {
				steps = append(steps, n)
			}
		}
	}
	return steps
}

// deathsApart returns the number of events between two deaths in a step: each daemon is killed this
// many events later than the daemon before it. If FORKD_TEST_EVERY_DEATH is set, the result is 1,
// and the test takes minutes.
func deathsApart() int {
	if os.Getenv("FORKD_TEST_EVERY_DEATH") != "" {
		return 1
	}
	return 10
}

// A daemon is killed at any moment of a build, and the build continues in the next daemon. Each
// complete step is cached and verified, and an incomplete step leaves nothing. The result is the
// same as the result of an undisturbed build.
func TestBuildsOfKilledDaemons(t *testing.T) {
	diesInEveryStep(t, mortalSteps, func(_, work string) (client.BuildRequest, map[string]string) {
		req, files := mortalBuild(work)
		files["arch.tgz"] = tgz(t)
		return req, files
	})
}

// A build of a recipe also continues after its daemon was killed, like the build of a Dockerfile.
func TestRecipesOfKilledDaemons(t *testing.T) {
	diesInEveryStep(t, 7, func(root, work string) (client.BuildRequest, map[string]string) {
		part := filepath.Join(root, "part")
		if err := os.WriteFile(part, make([]byte, 4096), 0o600); err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(`name: made
base: debian:bookworm
files: [{source: in, target: @/work}]
warmup:
  commands: [cat @/work/in.txt @/work/in.txt > @/work/two, cat @/work/two @/work/in.txt > @/work/three]
  python: open("@/work/four", "w").write(open("@/work/three").read() + "4")
limits: {cpus: 0.5}
`, "@", work)
		return client.BuildRequest{Tag: "made", Replace: true, Recipe: text, Boot: &client.BuildBoot{Kernel: part,
			Initrd: part, Rootfs: part}}, map[string]string{"in/in.txt": "in\n"}
	})
}

// diesInEveryStep executes a build with the given number of steps, and kills daemons in every step.
// It gets the build from request(root, work). The argument work is the path of the host directory
// that the guests use.
func diesInEveryStep(t *testing.T, number int, request func(root, work string) (client.BuildRequest,
	map[string]string)) {
	root, err := os.MkdirTemp("/var/tmp", "fkm") // a recipe has no files below /tmp
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(root, "guest")
	result := func() string { return readAll(t, filepath.Join(work, "work")) }
	state := func(name string) string {
		dir := filepath.Join(root, name)
		for _, d := range []string{dir, work} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() {
			for name := range strings.Lines(readAll(t, filepath.Join(dir, "agents"))) {
				_ = os.RemoveAll(strings.TrimSpace(name)) // a directory in /tmp that a killed daemon has left
			}
		})
		return dir
	}
	req, files := request(root, work)

	calm := startMortal(t, state("calm"), 0)
	res, log, err := built(t, calm.Client, req, files)
	if err != nil || res.Run != number {
		calm.end()
		t.Fatalf("the undisturbed build: %+v, %v\n%s", res, err, log)
	}
	want, wantSteps := result(), calm.stepsOf(t, nil)
	wantResult, err := calm.Snapshot(t.Context(), req.Tag)
	if err != nil {
		t.Error(err)
	}
	calm.end()
	if err := os.RemoveAll(work); err != nil {
		t.Fatal(err)
	}

	dir, apart := state("killed"), deathsApart()
	known := map[string]string{} // snapshots of complete steps
	done := map[int]bool{}       // steps whose completion a client has seen
	deaths := 0
	for at := 1; ; at += apart {
		if at > 200 {
			t.Fatal("the build does not get on")
		}
		d := startMortal(t, dir, at)
		d.hasNoLeftovers(t, dir)
		steps := d.stepsOf(t, known)
		for tag, what := range known {
			if steps[tag] != what {
				t.Errorf("after %d deaths step %s is %q, and was %q", deaths, tag, steps[tag], what)
			}
		}
		if len(steps) > len(known) { // continue with this step until it is complete
			at = 1 + deaths%apart
			d.end()
			d = startMortal(t, dir, at)
		}
		known = steps
		res, log, err := built(t, d.Client, req, files)
		d.end()
		for _, n := range stepsIn(log, "started") {
			if done[n] {
				t.Errorf("after %d deaths step %d runs again:\n%s", deaths, n, log)
			}
		}
		for _, n := range stepsIn(log, "done") {
			done[n] = true
		}
		if err == nil {
			if res.Run+res.Cached != number || res.Cached < len(known) {
				t.Errorf("after %d deaths, with %d steps: %+v\n%s", deaths, len(known), res, log)
			}
			break
		}
		deaths++
	}
	if deaths < number {
		t.Errorf("the daemon died %d times", deaths)
	}
	if got := result(); got != want {
		t.Errorf("the result is\n%s, and undisturbed\n%s", got, want)
	}
	d := startMortal(t, dir, 0)
	defer d.end()
	d.hasNoLeftovers(t, dir)
	if got := d.stepsOf(t, nil); !maps.Equal(got, wantSteps) {
		t.Errorf("the steps are\n%v, and undisturbed\n%v", got, wantSteps)
	}
	got, err := d.Snapshot(t.Context(), req.Tag)
	if err != nil || got.DiskOnly != wantResult.DiskOnly || got.MemSizeMiB != wantResult.MemSizeMiB || !got.Bootable {
		t.Errorf("the result is %+v, %v", got, err)
	}
	if res, log, err := built(t, d.Client, req, files); err != nil || res.Run != 0 || res.Cached != number {
		t.Errorf("the same again: %+v, %v\n%s", res, err, log)
	}
	d.dropAll(t, dir)
}

// dropAll removes all snapshots, and checks that no layer remains. It does not use force, so it
// fails if a snapshot is in use.
func (d *mortalDaemon) dropAll(t *testing.T, dir string) {
	t.Helper()
	list, err := d.Snapshots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		err := d.DeleteSnapshot(t.Context(), s.Tag, client.DeleteOptions{Cascade: true})
		if err != nil && !client.IsNotFound(err) {
			t.Errorf("remove %s: %v", s.Tag, err)
		}
	}
	for _, sub := range []string{"state", "ram"} {
		err := filepath.WalkDir(filepath.Join(dir, sub), func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() && e.Name() != "lock" && e.Name() != "reserve" {
				t.Errorf("%s is left", path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// If a daemon is killed while it receives a build context, nothing of the context remains.
func TestUploadsToKilledDaemons(t *testing.T) {
	dir := t.TempDir()
	d := startMortal(t, dir, 0)
	req, _ := mortalBuild(t.TempDir())
	_, err := d.Build(t.Context(), req, func(out *tar.Writer) error {
		h := &tar.Header{Name: apiv1.BuildContext + "in.txt", Typeflag: tar.TypeReg, Mode: 0o600, Size: 1 << 20}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := out.Write(make([]byte, 1<<19)); err != nil {
			return err
		}
		for { // wait until a part is stored
			if parts, _ := filepath.Glob(filepath.Join(dir, "build/contexts/*/.*")); len(parts) > 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		d.end()
		return nil
	}, nil)
	if err == nil {
		t.Error("the build has a result")
	}
	next := startMortal(t, dir, 0)
	defer next.end()
	next.hasNoLeftovers(t, dir)
}

// readAll returns the text of a file. For a directory, it returns the names and texts of all its
// files.
func readAll(t *testing.T, path string) (text string) {
	t.Helper()
	var list []string
	err := filepath.WalkDir(path, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		list = append(list, string(content))
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	slices.Sort(list)
	return strings.Join(list, "\n")
}
