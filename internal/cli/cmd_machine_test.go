package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/internal/emu/machineapi"
	"github.com/forkd/forkd/internal/emu/tcghost"
)

// runMachineCLI runs a command line with an empty cache directory. It returns the output and the
// exit code.
func runMachineCLI(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	t.Setenv("FORKD_CACHE", t.TempDir())
	t.Setenv(machineEnv, "")
	var out, errs bytes.Buffer
	code = Main(append([]string{"machine"}, args...), Stdio{In: strings.NewReader(""), Out: &out, Err: &errs})
	return out.String(), errs.String(), code
}

func TestMachineCommandsWithoutMachine(t *testing.T) {
	for _, c := range []struct {
		args   string
		code   int
		stdout string
		stderr string
	}{
		{"status", exitOK, "phase     stopped", ""},
		{"stop", exitOK, "was not running", ""},
		{"exec -- true", exitMachine, "", "forkd machine start"},
		{"exec true --flag-of-the-program", exitMachine, "", "forkd machine start"},
		{"exec", exitUsage, "", "name the program"},
		{"exec --timeout -1s -- true", exitUsage, "", "negative"},
		{"status -o yaml", exitUsage, "", "text or json"},
		{"status extra", exitUsage, "", ""},
		{"--name ../x status", exitUsage, "", "of an emulated host"},
		{"start --memory-mib 1", exitError, "", "MiB"},
		{"start --hang-limit 1s", exitError, "", "hang limit"},
	} {
		stdout, stderr, code := runMachineCLI(t, strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) {
			t.Errorf("%s: code %d, stdout %q, stderr %q; want %d, %q, %q", c.args, code, stdout, stderr, c.code, c.stdout,
				c.stderr)
		}
	}
}

func TestMachineStatusJSON(t *testing.T) {
	stdout, _, code := runMachineCLI(t, "--name", "other", "status", "-o", "json")
	var s tcghost.State
	if err := json.Unmarshal([]byte(stdout), &s); err != nil || code != exitOK {
		t.Fatalf("%q: %v, code %d", stdout, err, code)
	}
	if s.Name != "other" || s.Phase != tcghost.Stopped {
		t.Errorf("got %+v", s)
	}
}

func TestExecResultCodes(t *testing.T) {
	for _, c := range []struct {
		exit machineapi.ExecExit
		want int
	}{
		{machineapi.ExecExit{}, 0}, {machineapi.ExecExit{Code: 3}, 3},
		{machineapi.ExecExit{TimedOut: true}, exitTimedOut}, {machineapi.ExecExit{Signal: 9}, 137},
		{machineapi.ExecExit{Error: "x"}, exitNotStarted}, {machineapi.ExecExit{Error: "x", NotFound: true}, exitNotFound},
	} {
		cmd := &cobra.Command{}
		cmd.SetErr(&bytes.Buffer{})
		err := execResult(cmd, execFlags{}, c.exit)
		var code exitCode
		ok := errors.As(err, &code)
		if (err == nil) != (c.want == 0) || (err != nil && (!ok || int(code) != c.want)) {
			t.Errorf("%+v: got %v, want %d", c.exit, err, c.want)
		}
	}
}
