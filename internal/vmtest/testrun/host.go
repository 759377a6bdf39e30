package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// host can run VM tests.
type host interface {
	env() []string
	args() []string // arguments for go test
	start(context.Context) error
	restart(context.Context) bool // reports whether a restart makes sense and has worked
	stop()
}

// thisHost is this host, whose KVM is usable.
type thisHost struct{}

func (thisHost) env() []string                { return []string{"FORKD_TEST_KVM=1"} }
func (thisHost) args() []string               { return nil }
func (thisHost) start(context.Context) error  { return nil }
func (thisHost) restart(context.Context) bool { return false }
func (thisHost) stop()                        {}

// machine is an emulated host. Its name is $FORKD_MACHINE. The default is a host without sandboxes
// of users.
type machine struct{ name string }

const defaultMachine = "test"

// Limits for the emulated hosts that run tests concurrently. An emulated host has 6 GiB of memory,
// and more on this host for page cache.
const (
	machineMemory = 8 << 30 // bytes
	maxMachines   = 2       // there are few shards, and each emulated host prepares its own parent
)

// Time limits for commands that control the emulated host. A supervisor kills a host that hangs, so
// nothing waits for it.
const (
	startLimit = 2 * time.Minute
	stopLimit  = time.Minute
)

// machines returns as many emulated hosts as fit on this host. Each keeps one CPU busy and may use
// machineMemory.
func machines() []host {
	name := os.Getenv("FORKD_MACHINE")
	if name == "" {
		name = defaultMachine
	}
	hosts := []host{machine{name}}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return hosts
	}
	room := info.Totalram * uint64(info.Unit) / machineMemory
	for n := 2; n <= min(runtime.NumCPU(), int(room), maxMachines); n++ {
		hosts = append(hosts, machine{fmt.Sprintf("%s-%d", name, n)})
	}
	return hosts
}

func (m machine) env() []string {
	return []string{"FORKD_MACHINE=" + m.name, "CGO_ENABLED=0"} // the emulated host has no libc for its programs
}

func (m machine) args() []string {
	program, err := filepath.Abs("scripts/machine-exec")
	if err != nil {
		program = "scripts/machine-exec" // go test runs it in the package's directory, and reports if it is missing
	}
	return []string{"-exec", program}
}

func (m machine) forkd(ctx context.Context, limit time.Duration, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bin/forkd", append([]string{"machine", "--name", m.name}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", cmd.Args, err, out)
	}
	return nil
}

func (m machine) start(ctx context.Context) error { return m.forkd(ctx, startLimit, "start") }

func (m machine) restart(ctx context.Context) bool {
	m.stop()
	err := m.start(ctx)
	if err != nil {
		fmt.Println(err)
	}
	return err == nil
}

func (m machine) stop() {
	if err := m.forkd(context.Background(), stopLimit, "stop"); err != nil {
		fmt.Println(err)
	}
}
