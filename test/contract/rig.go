package contract

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// Rig is a running fake daemon: the program rigd.
type Rig struct {
	Daemon
	Socket string // unix:///path of a socket with the same API, which needs no token

	cmd   *exec.Cmd
	stdin io.Closer
}

// StartRig builds the program in dir and starts it.
func StartRig(dir string) (*Rig, error) {
	program := filepath.Join(dir, "rigd")
	build := exec.Command("go", "build", "-o", program, "github.com/forkd/forkd/test/contract/rigd")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build rigd: %w: %s", err, out)
	}
	cmd := exec.Command(program)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := &Rig{cmd: cmd, stdin: stdin}
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	var ready struct{ URL, Token, Snapshot, Tmp, File, Socket string }
	if err == nil {
		err = json.Unmarshal(line, &ready)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("rigd: %w", err), r.Close())
	}
	r.Daemon = Daemon{URL: ready.URL, Token: ready.Token, Snapshot: ready.Snapshot, Tmp: ready.Tmp, File: ready.File,
		Fake: true}
	r.Socket = ready.Socket
	return r, nil
}

// Close ends the program. It returns an error if any traffic did not conform to api/openapi.yaml.
func (r *Rig) Close() error {
	return errors.Join(r.stdin.Close(), r.cmd.Wait())
}
