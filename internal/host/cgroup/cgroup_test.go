package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/proto/vm"
)

// If eaterEnv is set, the test binary allocates 128 MiB and then sleeps.
const eaterEnv = "FORKD_TEST_EATER"

// writerEnv names a directory. If it is set, the test binary writes 8 MiB to a layer in that
// directory, and 24 MiB to another file.
const writerEnv = "FORKD_TEST_WRITER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerEnv); dir != "" {
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "layer"), make([]byte, 8<<20), 0o600),
			os.WriteFile(filepath.Join(dir, "own"), make([]byte, 24<<20), 0o600)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(eaterEnv) != "" {
		p := make([]byte, 128<<20)
		for i := range p {
			p[i] = 1
		}
		time.Sleep(time.Minute)
		os.Exit(int(p[len(p)-1]) - 1)
	}
	os.Exit(m.Run())
}

// open returns a real tree, or skips the test if the host has no cgroups.
func open(t *testing.T) *Tree {
	t.Helper()
	state := "/var/lib" // on a disk even on the emulated host, whose root is not on a disk
	if _, err := os.Stat(state + "/forkd"); err == nil {
		state += "/forkd"
	}
	tree := Open(Config{RunDir: t.TempDir(), StateDir: state})
	if err := tree.can("memory"); err != nil {
		t.Skipf("no limits here: %v", err)
	}
	t.Cleanup(func() {
		tree.Close()
		if _, err := os.Stat(tree.dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", tree.dir, err)
		}
	})
	return tree
}

// start runs a process in a leaf.
func start(t *testing.T, l *Leaf, cmd *exec.Cmd) {
	t.Helper()
	place, err := l.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer place.Close()
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(place.Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, l *Leaf, file string) string {
	t.Helper()
	p, err := os.ReadFile(filepath.Join(l.dir, file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(p))
}

func TestLeafHasLimits(t *testing.T) {
	tree := open(t)
	l, err := tree.New("sb-a", 1<<30)
	if err == nil { // New replaces an earlier leaf with the same name
		l, err = tree.New("sb-a", 256<<20)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "60")
	start(t, l, cmd)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for file, want := range map[string]string{"memory.max": "343932928", "memory.oom.group": "1", "pids.max": "512",
		"cpu.max": "max 100000"} {
		if got := read(t, l, file); got != want {
			t.Errorf("%s of a new leaf is %q, want %q", file, got, want)
		}
	}
	if err := l.Set(vm.Limits{MemoryMiB: 64, CPUs: 0.5, CPUWeight: 10}, 256<<20); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"memory.max": "67108864", "cpu.max": "50000 100000", "cpu.weight": "10"} {
		if got := read(t, l, file); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}
	if err := tree.can("io"); err != nil {
		t.Logf("no io limits: %v", err)
	} else if err := l.Set(vm.Limits{MemoryMiB: 64, IOBytesPerSecond: 1 << 20}, 256<<20); err != nil {
		t.Error(err)
	} else if got := read(t, l, "io.max"); got != tree.disk+" rbps=1048576 wbps=1048576 riops=max wiops=max" {
		t.Errorf("io.max is %q", got)
	} else {
		first, second := l.Hurry(), l.Hurry()
		first()
		if got := read(t, l, "io.max"); got != "" {
			t.Errorf("io.max is %q while somebody waits for the disk", got)
		}
		second()
		if now := read(t, l, "io.max"); now != got {
			t.Errorf("io.max is %q afterwards", now)
		}
	}
	layer, err := os.Create(filepath.Join(onTmpfs(t), "layer"))
	if err == nil {
		defer layer.Close()
		err = l.Spare(layer)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, want := read(t, l, "memory.max"), fmt.Sprint(320<<20+lag()); got != want {
		t.Errorf("memory.max is %s while a copy is made, want %s: 64 MiB, and a copy of 256", got, want)
	}
	copying := read(t, l, "memory.max")
	if err := tree.Find("sb-a").Set(vm.Limits{MemoryMiB: 64}, 256<<20); err != nil || read(t, l, "memory.max") != copying {
		t.Errorf("a daemon that takes over during a copy sets %s, %v; want %s", read(t, l, "memory.max"), err, copying)
	}
	l.Tighten()
	if got, want := read(t, l, "memory.max"), fmt.Sprint(64<<20+lag()); got != want {
		t.Errorf("memory.max is %s after a copy that took nothing, want %s", got, want)
	}
	if use, err := l.Usage(); err != nil || use.Threads != 1 || use.MemoryBytes == 0 {
		t.Errorf("usage of a process that sleeps: %+v, %v", use, err)
	}
	// Another daemon finds the leaf, and removes leaves that belong to no sandbox.
	again := tree.Find("sb-a")
	again.Hurry()()
	if got := read(t, l, "memory.max"); got != fmt.Sprint(64<<20+lag()) {
		t.Errorf("memory.max is %s before a daemon that takes over has set limits", got)
	}
	if again == nil || tree.Find("sb-b") != nil {
		t.Fatalf("found %v", again)
	}
	if err := again.Set(vm.Limits{}, 256<<20); err != nil || read(t, l, "memory.max") != "343932928" {
		t.Errorf("set by another daemon: %s, %v", read(t, l, "memory.max"), err)
	}
	if err := tree.Sweep(func(string) bool { return true }); err != nil || tree.Find("sb-a") == nil {
		t.Errorf("swept what is to be kept: %v", err)
	}
	if err := tree.Sweep(func(string) bool { return false }); err != nil || tree.Find("sb-a") != nil {
		t.Errorf("not swept: %v", err)
	}
	<-ended // Sweep has killed the processes of the leaf
}

func onTmpfs(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "fkt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// A file on tmpfs can raise the memory limit of the process that wrote it. It does so only if it is
// a layer that the daemon has asked for, and only while it exists.
func TestOwnSharedMemoryRaisesNoLimit(t *testing.T) {
	const limit, ram, copied = 64 << 20, 256 << 20, 8 << 20 // bytes
	tree := open(t)
	l, err := tree.New("sb-a", ram)
	if err == nil {
		err = l.Set(vm.Limits{MemoryMiB: limit >> 20}, ram)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer l.Remove()
	dir := onTmpfs(t)
	layer, err := os.Create(filepath.Join(dir, "layer"))
	if err != nil {
		t.Fatal(err)
	}
	defer layer.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	writer := exec.Command(self)
	writer.Env = append(os.Environ(), writerEnv+"="+dir)
	writer.Stderr = os.Stderr
	start(t, l, writer)
	if err := writer.Wait(); err != nil {
		t.Fatal(err)
	}
	check := func(when string, l *Leaf, want uint64) {
		t.Helper()
		if got := read(t, l, "memory.max"); got != fmt.Sprint(want+lag()) {
			t.Errorf("%s: memory.max is %s, want %d", when, got, want+lag())
		}
	}
	if err := l.Spare(layer); err != nil {
		t.Fatal(err)
	}
	check("while a copy is made", l, limit+copied+ram)
	l.Tighten()
	check("afterwards", l, limit+copied)
	again := tree.Find("sb-a")
	if err := again.Set(vm.Limits{MemoryMiB: limit >> 20}, ram); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		again.Tighten()
		check("with another daemon", again, limit+copied)
	}
	if err := os.Remove(layer.Name()); err != nil {
		t.Fatal(err)
	}
	l.Tighten()
	check("when the layer is gone", l, limit)
}

func TestKilledByLimit(t *testing.T) {
	tree := open(t)
	l, err := tree.New("sb-a", 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Remove()
	if err := l.Set(vm.Limits{MemoryMiB: vm.MinMemoryMiB}, 1<<30); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	eater := exec.Command(self)
	eater.Env = append(os.Environ(), eaterEnv+"=1")
	start(t, l, eater)
	if err := eater.Wait(); err == nil {
		t.Error("a process with 32 MiB took 128")
	}
	if n := l.OOMKills(); n != 1 {
		t.Errorf("%d processes were killed", n)
	}
	if byLimit, why := l.Killed(); !byLimit || why != "killed by its memory limit (32 MiB)" {
		t.Errorf("by its limit: %v, %q", byLimit, why)
	}
}

// TestNoLimits checks that a daemon without cgroups works, and refuses every limit.
func TestNoLimits(t *testing.T) {
	for _, tree := range []*Tree{nil, Open(Config{Parent: None}), Open(Config{Parent: t.TempDir(), StateDir: "/"})} {
		l, err := tree.New("sb-a", 1<<30)
		if l != nil || err != nil {
			t.Fatalf("a leaf without a tree: %v, %v", l, err)
		}
		if tree.Missing() == nil {
			t.Error("nothing is missing")
		}
		if err := tree.Check("limits.", vm.Limits{}); err != nil {
			t.Errorf("no limits are refused: %v", err)
		}
		for field, limits := range map[string]vm.Limits{
			"limits.memory_mib": {MemoryMiB: 64}, "limits.cpus": {CPUs: 1}, "limits.cpu_weight": {CPUWeight: 5},
			"limits.io_bytes_per_second": {IOBytesPerSecond: 1 << 20}, "limits.io_ops_per_second": {IOOpsPerSecond: 64},
		} {
			var wrong *invalid.Error
			if err := tree.Check("limits.", limits); !errors.As(err, &wrong) || wrong.Field != field {
				t.Errorf("%s: %v", field, err)
			}
		}
		// A nil leaf accepts the default limits, and refuses all others.
		if err := l.Set(vm.Limits{CPUs: 1}, 1); err == nil {
			t.Error("a limit was set without a leaf")
		}
		_, why := l.Killed()
		if use, useErr := l.Usage(); use != (Usage{}) || why != "" || l.OOMKills() != 0 ||
			errors.Join(useErr, l.Set(vm.Limits{}, 1), l.Spare(nil), l.Remove()) != nil {
			t.Errorf("a leaf that is not there: %+v, %q, %v", use, why, useErr)
		}
		l.Tighten()
		if err := tree.Sweep(nil); err != nil {
			t.Error(err)
		}
		tree.Close()
	}
}

func TestMounted(t *testing.T) {
	dir := t.TempDir()
	mounts := filepath.Join(dir, "mounts")
	for text, want := range map[string]string{"proc /proc proc rw 0 0\ncgroup2 /x cgroup2 rw 0 0\n": "/x",
		"cgroup2\n": ""} {
		if err := os.WriteFile(mounts, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := mounted(mounts); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: found %q, %v", text, got, err)
		}
	}
}
