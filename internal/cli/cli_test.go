package cli

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"forkd": func() { os.Exit(Main(os.Args[1:], Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})) },
	})
}

func TestScripts(t *testing.T) {
	setup := func(env *testscript.Env) error {
		env.Setenv("HOME", env.WorkDir) // no cache, no machine and no daemon of the developer
		env.Setenv("FORKD_CACHE", env.WorkDir+"/cache")
		return nil
	}
	// usage runs a command line that is wrong.
	usage := func(ts *testscript.TestScript, _ bool, args []string) {
		var exit *exec.ExitError
		if err := ts.Exec("forkd", args...); !errors.As(err, &exit) || exit.ExitCode() != exitUsage {
			ts.Fatalf("forkd %q: %v, want exit code %d", args, err, exitUsage)
		}
	}
	testscript.Run(t, testscript.Params{Dir: "testdata/script", Setup: setup,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"usage": usage}})
}
