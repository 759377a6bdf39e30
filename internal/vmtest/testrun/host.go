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

// host is a host on which VM tests can be run.
type host interface {
	env() []string
	args() []string // returns additional arguments for go test
	start(context.Context) error
	restart(context.Context) bool // restarts the host; returns false if that is not possible
	stop()
}

// thisHost is the host on which this program runs. Its KVM is usable.
type thisHost struct{}

func (thisHost) env() []string                { return []string{"FORKD_TEST_KVM=1"} }
func (thisHost) args() []string               { return nil }
func (thisHost) start(context.Context) error  { return nil }
func (thisHost) restart(context.Context) bool { return false }
func (thisHost) stop()                        {}

// machine is an emulated host with the name $FORKD_MACHINE or, by default, defaultMachine. No user
// has sandboxes in the default emulated host.
type machine struct{ name string }

const defaultMachine = "test"

// Limits for the emulated hosts that run tests concurrently. An emulated host has 6 GiB of memory,
// and this host needs more memory in addition, for the page cache.
const (
	machineMemory = 8 << 30 // bytes
	maxMachines   = 2       // there are only a few shards, and each emulated host must make its own parent
)

// Time limits for commands that control the emulated host. The limits also end the wait for a host
// that hangs.
const (
	startLimit = 2 * time.Minute
	stopLimit  = time.Minute
)

// machines returns as many emulated hosts as this host has room for. Each emulated host keeps one
// CPU busy and may use machineMemory.
func machines() []host {
	name := os.Getenv("FORKD_MACHINE")
	if name == "" {
		name = defaultMachine
	}
	hosts := []host{machine{name}}
	for n := 2; n <= min(runtime.NumCPU(), int(memory()/machineMemory), maxMachines); n++ {
		hosts = append(hosts, machine{fmt.Sprintf("%s-%d", name, n)})
	}
	return hosts
}

// memory returns the size of this host's memory in bytes, or 0 if it is unknown.
func memory() uint64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	return info.Totalram * uint64(info.Unit)
}

func (m machine) env() []string {
	return []string{"FORKD_MACHINE=" + m.name, "CGO_ENABLED=0"} // without cgo, because the emulated host has no libc
}

func (m machine) args() []string {
	program, err := filepath.Abs("scripts/machine-exec")
	if err != nil {
		program = "scripts/machine-exec" // go test reports if this does not exist in the package's directory
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
