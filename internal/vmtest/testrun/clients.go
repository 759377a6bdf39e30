package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// clientsLimit bounds the time for testing the published clients. On an idle computer the tests
// take a quarter of an hour, mostly for making the parent from which the clients fork.
const clientsLimit = time.Hour

// clientGroups are the groups of test/compat that need VMs:
//
//   - the newest packages of E2B,
//   - the clients of forkd 0.5,
//   - and the SDKs' scenarios that need VMs.
var clientGroups = []string{"e2b-python", "e2b-js", "code-interpreter-python", "code-interpreter-js", "e2b-quickstart",
	"forkd-python", "forkd-python-own", "forkd-mcp", "forkd-typescript", "contract"}

// fakedGroups are the groups of test/compat whose VMs are faked. They need no emulated host:
//
//   - the clients of the Model Context Protocol,
//   - schemathesis, for schemathesisDuration,
//   - the parts that the SDKs' own tests do not cover,
//   - small agent frameworks, the examples for them, and Docker's clients.
var fakedGroups = []string{"mcp", "mcp@1.30", "schemathesis", "sdk-python", "sdk-typescript", "sdk-go", "adapters@rig",
	"examples@rig", "docker@rig"}

// fakedNice is the niceness of the groups with faked VMs. The emulated hosts determine how long the
// tests take. So these groups mainly get the CPU time that the emulated hosts do not use.
const fakedNice = "5"

// schemathesisDuration and schemathesisSeed make each run of the suite send the same requests, as
// many as fit into schemathesisDuration. `scripts/compat schemathesis` sends different requests
// each time.
const (
	schemathesisDuration = "2m"
	schemathesisSeed     = "1"
)

// exitLost is the exit status of scripts/compat if its emulated host hung.
const exitLost = 125

// clientsJob runs published clients against a daemon with real VMs. The job does not use the host
// that it is given, but an emulated host of its own.
func clientsJob() job {
	return job{name: "published clients", title: "published clients, from PyPI and npm, against VMs",
		do: func(ctx context.Context, h host, out io.Writer) (counts, error) {
			h.stop()
			program := append([]string{"scripts/compat"}, clientGroups...)
			err := clients(ctx, h, out, program)
			var exit *exec.ExitError
			if errors.As(err, &exit) && exit.ExitCode() == exitLost {
				fmt.Fprintln(out, "RETRY: the emulated host hung")
				err = clients(ctx, h, out, program)
			}
			return counts{}, err // scripts/compat prints the results itself
		}}
}

// fakedJob runs the groups with faked VMs, without an emulated host.
func fakedJob() job {
	return job{name: "clients with faked VMs", title: "published clients, from PyPI and npm, with faked VMs",
		do: func(ctx context.Context, h host, out io.Writer) (counts, error) {
			program := append([]string{"nice", "-n", fakedNice, "scripts/compat"}, fakedGroups...)
			return counts{}, clients(ctx, h, out, program, "COMPAT_REPORT="+fakedReport)
		}}
}

// fakedReport has the results of the groups with faked VMs. The other groups run at the same time,
// and write out/compat.json.
const fakedReport = "out/compat-faked.json"

// clients runs scripts/compat with the given variables in its environment.
func clients(ctx context.Context, h host, out io.Writer, program []string, env ...string) error {
	ctx, cancel := context.WithTimeout(ctx, clientsLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program[0], program[1:]...)
	// Clear these variables, because they would name another daemon.
	cmd.Env = append(os.Environ(), "FORKD_URL=", "COMPAT_TAG=", "COMPAT_INTERPRETER_TAG=",
		"DURATION="+schemathesisDuration, "SEED="+schemathesisSeed, "COMPAT_QUICK=yes")
	cmd.Env = append(cmd.Env, env...)
	if m, ok := h.(machine); ok {
		cmd.Env = append(cmd.Env, "FORKD_MACHINE="+m.name+"-clients")
	}
	cmd.Stdout, cmd.Stderr = out, out
	// On SIGTERM, the script stops its daemon or its emulated host.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = stopLimit
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("scripts/compat: %w", err)
	}
	return nil
}
