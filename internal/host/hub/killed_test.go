package hub

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/opencontainers/go-digest"
)

// Environment variables of a process that kills itself in a pull.
const (
	mortalRootEnv = "FORKD_TEST_MORTAL_ROOT" // directory of the host
	mortalFromEnv = "FORKD_TEST_MORTAL_FROM" // reference of the snapshot
	mortalAtEnv   = "FORKD_TEST_MORTAL_AT"   // number of fetched or written files after which the process kills itself
)

// TestMortalPull is the main function of a process that kills itself during a pull. It is not a
// test by itself.
func TestMortalPull(t *testing.T) {
	root := os.Getenv(mortalRootEnv)
	if root == "" {
		return
	}
	at, err := strconv.ParseInt(os.Getenv(mortalAtEnv), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	h := &host{root: filepath.Join(root, "state"), ram: filepath.Join(root, "ram")}
	h.open(t)
	var now atomic.Int64
	_, err = h.hasty().Pull(t.Context(), "ann", "", remoteOf(t, os.Getenv(mortalFromEnv)), func(p Progress) {
		if p.State != Pulling && now.Add(1) == at {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // wait for the signal
		}
	})
	t.Errorf("the pull has ended before step %d: %v", at, err)
}

// If a daemon is killed during a pull, the next daemon finds no snapshot, and removes unfinished
// files. The next pull fetches only the missing blobs.
func TestKilledAmidPull(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a := serve(t), newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	sent := a.push(t, "parent", s.host+"/team/py:1")
	seen := make(map[digest.Digest]bool)
	for _, b := range sent.Blobs {
		seen[b.Digest] = true
	}
	for _, at := range []int{1, 4, len(seen) + 2} { // the last number is reached while files are written
		root := t.TempDir()
		cmd := exec.Command(os.Args[0], "-test.run=^TestMortalPull$")
		cmd.Env = append(os.Environ(), mortalRootEnv+"="+root, mortalFromEnv+"="+s.host+"/team/py:1",
			mortalAtEnv+"="+strconv.Itoa(at))
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("step %d: %v\n%s", at, err, out)
		}
		h := &host{root: filepath.Join(root, "state"), ram: filepath.Join(root, "ram")}
		h.open(t)
		h.hasty().leavesNothing(t, "a killed daemon", 0)
		if got := h.pull(t, "", s.host+"/team/py:1"); got.Moved >= once(sent.Artifact) {
			t.Errorf("step %d: all %d bytes were fetched again", at, got.Moved)
		}
		h.check(t, "parent", map[int64]byte{2: 'p'})
	}
}
