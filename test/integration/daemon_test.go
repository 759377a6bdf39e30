// Package integration_test tests a real daemon with real VMs through its REST API, with the Go
// client.
//
// The first test bakes a parent, unless an earlier run in the same emulated host has left one. The
// parent has the minimal kernel, which boots and forks in half the CPU time of the distribution's
// kernel. Tests that need the distribution's kernel call loadDistribution. Each test starts its own
// daemon. A test must leave no processes or files behind. The package does not
// measure speed.
package integration_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apitest"
	"github.com/forkd/forkd/internal/build/image"
	"github.com/forkd/forkd/internal/emu/tcghost"
	"github.com/forkd/forkd/internal/vmtest"
	"github.com/forkd/forkd/recipes"
)

// tag is the snapshot that all tests fork from.
const tag = "parent"

// Time limits that only a hung host exceeds.
const (
	startLimit = time.Minute
	bakeLimit  = 5 * time.Minute
	stopLimit  = 3 * time.Minute
	quietLimit = time.Minute // time limit for background work
)

// fixture is shared by the tests of a run.
type fixture struct {
	assets  *vmtest.Assets
	root    string // directory that holds everything of the run
	program string // a copy, because the cached program may be replaced while the tests run
	state   string // state directory with the snapshot
	kernel  vmtest.Kernel
	openErr error
	bakeErr error
}

var shared = struct {
	once, baked sync.Once
	fixture

	distributionBaked sync.Once
	distribution      fixture // with the distribution's kernel
}{}

func TestMain(m *testing.M) {
	if os.Getenv(drawVar) != "" { // this process runs in a guest
		drawOnEachLine(os.Stdin, os.Stdout)
		os.Exit(0)
	}
	code := m.Run()
	if shared.root != "" {
		if err := os.RemoveAll(shared.root); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// open returns the fixture without a snapshot.
func open(t *testing.T) *fixture {
	t.Helper()
	a := vmtest.Load(t)
	f := &shared.fixture
	shared.once.Do(func() {
		f.assets = a
		f.openErr = errors.New("see the first test")
		// Use a short name, because it is part of the paths of unix sockets.
		if f.root, f.openErr = os.MkdirTemp("/tmp", "fki"); f.openErr != nil {
			return
		}
		f.program, f.state, f.kernel = filepath.Join(f.root, "forkd"), filepath.Join(f.root, "s"), a.Minimal
		f.openErr = copyFile(f.program, a.Forkd, 0o700)
	})
	if f.openErr != nil {
		t.Fatalf("prepare the tests: %v", f.openErr)
	}
	return f
}

// load returns the fixture, and bakes the snapshot on the first call.
func load(t *testing.T) *fixture {
	t.Helper()
	f := open(t)
	shared.baked.Do(func() {
		f.bakeErr = errors.New("see the first test")
		f.bakeErr = f.bakeParent(t)
	})
	if f.bakeErr != nil {
		t.Fatalf("bake the parent: %v", f.bakeErr)
	}
	return f
}

// loadDistribution is like load, but the kernel of the snapshot is the distribution's, which is the
// default of users. Package testrun runs all tests that call this function on one host, so that only
// this host bakes the snapshot.
func loadDistribution(t *testing.T) *fixture {
	t.Helper()
	all, f := open(t), &shared.distribution
	shared.distributionBaked.Do(func() {
		*f = *all
		f.root = filepath.Join(all.root, "d")
		f.state, f.kernel = filepath.Join(f.root, "s"), f.assets.Cloud
		f.bakeErr = errors.New("see the first test")
		if f.bakeErr = os.Mkdir(f.root, 0o700); f.bakeErr == nil {
			f.bakeErr = f.bakeParent(t)
		}
	})
	if f.bakeErr != nil {
		t.Fatalf("bake the parent with the distribution's kernel: %v", f.bakeErr)
	}
	return f
}

// bake makes a parent. It is for tests of something other than baking.
func (d *daemon) bake(t *testing.T, req client.BakeRequest) error {
	t.Helper()
	_, err := d.Bake(d.ctx(t, bakeLimit), req)
	if vmtest.BootAgain(err) {
		fmt.Println("the parent is booted once more:", err)
		_, err = d.Bake(d.ctx(t, bakeLimit), req)
	}
	return err
}

// bakeRequest returns the request for a parent with the warm-up of the recipe python-numpy.
func (f *fixture) bakeRequest(t *testing.T, tag string) client.BakeRequest {
	t.Helper()
	recipe, err := image.LoadRecipeFS(recipes.FS, "python-numpy")
	if err != nil {
		t.Fatal(err)
	}
	return client.BakeRequest{
		Tag: tag, Kernel: f.kernel.VMLinux, Initrd: f.kernel.Initrd,
		Rootfs:     filepath.Join(f.assets.Images["python-numpy"], "rootfs.ext4"),
		MemSizeMiB: 192, Env: recipe.Env,
		// Import these modules here, so that children need not read them from the disk.
		Warmup: client.Warmup{Python: "import hashlib, random, socket, threading\n" + recipe.Warmup.Python},
	}
}

// daemon is a running forkd daemon and its client.
type daemon struct {
	*client.Client
	f               *fixture
	program         string
	run, state, ram string
	pool            string
	args            []string // additional arguments
	checked         bool     // compare the client's traffic with api/openapi.yaml
	url             string
	log             *os.File
	cmd             *exec.Cmd
}

// option changes a daemon before it starts.
type option func(*daemon)

func withState(dir string) option    { return func(d *daemon) { d.state = dir } }
func withRun(dir string) option      { return func(d *daemon) { d.run = dir } }
func withRAM(dir string) option      { return func(d *daemon) { d.ram = dir } }
func withProgram(path string) option { return func(d *daemon) { d.program = path } }
func withPool(n int) option          { return func(d *daemon) { d.pool = fmt.Sprint(n) } }

func withArgs(args ...string) option { return func(d *daemon) { d.args = append(d.args, args...) } }

func withChecks(d *daemon) { d.checked = true }

// start runs a daemon on the fixture's state. When the test ends, the daemon is stopped and must
// leave no processes or files.
func (f *fixture) start(t *testing.T, opts ...option) *daemon {
	t.Helper()
	d := &daemon{f: f, program: f.program, run: filepath.Join(f.root, "r"), state: f.state,
		ram: filepath.Join(f.root, "m"), pool: "1"}
	for _, o := range opts {
		o(d)
	}
	var err error
	if d.log, err = os.CreateTemp(t.TempDir(), "daemon"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.stop(t)
		if t.Failed() {
			p, _ := os.ReadFile(d.log.Name())
			t.Logf("the daemon's log ends with:\n%s", vmtest.LastLines(p, 30))
		}
		d.log.Close()
	})
	socket := filepath.Join(d.run, "forkd.sock")
	d.url = "unix://" + socket
	if d.Client, err = client.New(d.url, ""); err != nil {
		t.Fatal(err)
	}
	d.launch(t)
	if d.checked { // the document does not describe a daemon that is still starting, so the check begins here
		if d.Client, err = client.New(apitest.Proxy(t, socket), ""); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// launch starts the process and waits until it answers.
func (d *daemon) launch(t *testing.T) {
	t.Helper()
	args := []string{"daemon", "--run-dir", d.run, "--state-dir", d.state, "--ram-dir", d.ram, "--pool", d.pool,
		"--kill-on-exit",
		"--disk-reserve-mib", "0"} // the disks of the tests are small, and some tests fill them
	args = append(args, d.args...)
	if vmtest.Emulated() {
		args = append(args, "--accel", "tcg", "--cpu-template", vmtest.Template()) // like the emulated host's own daemon
		for _, param := range tcghost.GuestCmdline() {
			args = append(args, "--cmdline-extra", param)
		}
		if d.program == d.f.program { // earlier builds do not have this option
			args = append(args, "--pool-most", "0")
		}
	}
	d.cmd = exec.Command(d.program, args...)
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, startLimit, func() error {
		if err := d.cmd.Process.Signal(syscall.Signal(0)); err != nil {
			return fmt.Errorf("the daemon has ended: %w", err)
		}
		return d.Healthy(d.ctx(t, time.Second))
	})
}

// stop stops the daemon and its sandboxes, and checks that nothing remains. It may be called again.
func (d *daemon) stop(t *testing.T) {
	t.Helper()
	if d.cmd == nil {
		return
	}
	d.Close()
	cmd := d.cmd
	d.cmd = nil
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("stop the daemon: %v", err)
	}
	hung := time.AfterFunc(stopLimit, func() { _ = cmd.Process.Kill() })
	defer hung.Stop()
	if err := cmd.Wait(); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
	for _, name := range []string{"forkd-vmm", "forkd-net"} {
		if pids := d.processes(t, name); len(pids) > 0 {
			t.Errorf("%s processes that the daemon left behind: %v", name, pids)
		}
	}
	for _, dir := range []string{filepath.Join(d.run, "vm"), filepath.Join(d.state, "sandboxes"),
		filepath.Join(d.state, "staging")} {
		if left := tree(t, dir); len(left) > 0 {
			t.Errorf("left behind in %s: %q", dir, left)
		}
	}
}

// crash kills the daemon with SIGKILL.
func (d *daemon) crash(t *testing.T) {
	t.Helper()
	if err := d.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = d.cmd.Wait() // the error says that it was killed
	d.Close()
}

// ctx returns a context with a time limit. It also ends with the test.
func (d *daemon) ctx(t *testing.T, limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
	t.Cleanup(cancel)
	return ctx
}

// fork starts n sandboxes, all of which must start.
func (d *daemon) fork(t *testing.T, n int) []client.Sandbox {
	t.Helper()
	r, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: tag, N: n})
	if err != nil {
		t.Fatalf("fork %d: %v", n, err)
	}
	if len(r.Sandboxes) != n {
		t.Fatalf("fork %d: %d sandboxes", n, len(r.Sandboxes))
	}
	return r.Sandboxes
}

func (d *daemon) kill(t *testing.T, list ...client.Sandbox) {
	t.Helper()
	for _, s := range list {
		if err := d.Kill(d.ctx(t, quietLimit), s.ID); err != nil {
			t.Errorf("kill %s: %v", s.ID, err)
		}
	}
	for _, s := range list { // a request to kill a sandbox does not wait for the end of its VMM
		eventually(t, quietLimit, func() error {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", s.PID)); s.PID != 0 && err == nil {
				return fmt.Errorf("process %d of sandbox %s has not ended", s.PID, s.ID)
			}
			return nil
		})
	}
}

// value evaluates an expression, which must have a value.
func (d *daemon) value(t *testing.T, id, code string) string {
	t.Helper()
	r, err := d.Eval(d.ctx(t, bakeLimit), id, client.EvalRequest{Code: code, TimeoutSecs: bakeLimit.Seconds()})
	if err != nil {
		t.Fatalf("eval %q: %v", code, err)
	}
	if r.Error != "" || r.Result == nil {
		t.Fatalf("eval %q: %+v", code, r)
	}
	return *r.Result
}

// sh runs a shell command, which must succeed, and returns its output.
func (d *daemon) sh(t *testing.T, id, script string) string {
	t.Helper()
	r, err := d.Exec(d.ctx(t, 2*time.Minute), id, client.ExecRequest{Args: []string{"/bin/sh", "-c", script},
		TimeoutSecs: 90})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	if r.ExitCode != 0 {
		t.Fatalf("%s: %+v", script, r)
	}
	return r.Stdout
}

// alive checks that a sandbox still executes code.
func (d *daemon) alive(t *testing.T, id string) {
	t.Helper()
	if got := d.value(t, id, "int(np.arange(10).sum())"); got != "45" {
		t.Errorf("sandbox %s: 0 + … + 9 = %s", id, got)
	}
}

// only(t, want...) checks that exactly these sandboxes exist.
func (d *daemon) only(t *testing.T, want ...client.Sandbox) {
	t.Helper()
	list, err := d.Sandboxes(d.ctx(t, quietLimit))
	if err != nil {
		t.Fatal(err)
	}
	have := make(map[string]bool)
	for _, s := range list {
		have[s.ID] = true
	}
	for _, s := range want {
		if !have[s.ID] {
			t.Errorf("sandbox %s is gone", s.ID)
		}
	}
	if len(list) != len(want) {
		t.Errorf("%d sandboxes, want %d", len(list), len(want))
	}
}
