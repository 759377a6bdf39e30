package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/internal/guest/agent"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"forkd":       func() { os.Exit(Main(os.Args[1:], Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})) },
		"forkd-agent": func() { os.Exit(agent.Main(os.Args[1:], os.Stderr)) },
	})
}

func TestScripts(t *testing.T) {
	setup := func(env *testscript.Env) error {
		env.Setenv("HOME", env.WorkDir) // hides the developer's cache, emulated host and daemon
		env.Setenv("FORKD_CACHE", env.WorkDir+"/cache")
		return nil
	}
	// usage implements a command of the scripts: `usage ARGS` runs forkd, which must exit with
	// exitUsage.
	usage := func(ts *testscript.TestScript, _ bool, args []string) {
		var exit *exec.ExitError
		if err := ts.Exec("forkd", args...); !errors.As(err, &exit) || exit.ExitCode() != exitUsage {
			ts.Fatalf("forkd %q: %v, want exit code %d", args, err, exitUsage)
		}
	}
	testscript.Run(t, testscript.Params{Dir: "testdata/script", Setup: setup,
		Cmds:      map[string]func(*testscript.TestScript, bool, []string){"usage": usage},
		Condition: condition})
}

// condition implements a condition of the scripts: [complete] is true if forkd contains the
// programs that a daemon starts.
func condition(name string) (bool, error) {
	if name != "complete" {
		return false, fmt.Errorf("unknown condition %q", name)
	}
	for _, program := range []string{embedded.VMM, embedded.Net, embedded.SFTP, embedded.SSH} {
		if _, err := embedded.Open(program); err != nil {
			return false, nil
		}
	}
	return true, nil
}

// wantCode implements a command of the scripts: `code N ARGS` runs forkd, which must exit with code
// N.
func wantCode(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	var exit *exec.ExitError
	if err := ts.Exec("forkd", args[1:]...); !errors.As(err, &exit) || exit.ExitCode() != want {
		ts.Fatalf("forkd %q: %v, want exit code %d", args[1:], err, want)
	}
}
