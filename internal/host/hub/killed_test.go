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
)

// Environment variables of a process that kills itself in a pull or a copy.
const (
	mortalRootEnv = "FORKD_TEST_MORTAL_ROOT" // directory of the host
	mortalFromEnv = "FORKD_TEST_MORTAL_FROM" // reference of the snapshot
	mortalToEnv   = "FORKD_TEST_MORTAL_TO"   // reference that the snapshot is copied to; empty: it is pulled
	mortalAtEnv   = "FORKD_TEST_MORTAL_AT"   // number of complete files after which the process kills itself
)

// TestMortalPull is the main function of a process that kills itself during a pull or a copy. It is not a test by
// itself.
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
	from, to := remoteOf(t, os.Getenv(mortalFromEnv)), os.Getenv(mortalToEnv)
	on := func(p Progress) {
		if p.State != Pulling && p.State != Pushing && now.Add(1) == at {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // wait for the signal
		}
	}
	if to == "" {
		_, err = h.hasty().Pull(t.Context(), "ann", "", from, on)
	} else {
		_, err = h.hasty().Copy(t.Context(), "ann", from, remoteOf(t, to), on)
	}
	t.Errorf("it has ended before step %d: %v", at, err)
}

// killedAt runs a process that kills itself, and opens its host again.
func killedAt(t *testing.T, at int, from, to string) *host {
	t.Helper()
	root := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestMortalPull$")
	cmd.Env = append(os.Environ(), mortalRootEnv+"="+root, mortalFromEnv+"="+from, mortalToEnv+"="+to,
		mortalAtEnv+"="+strconv.Itoa(at), "TMPDIR="+root) // a killed process does not remove its files
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("step %d: %v\n%s", at, err, out)
	}
	h := &host{root: filepath.Join(root, "state"), ram: filepath.Join(root, "ram")}
	h.open(t)
	return h.hasty()
}

// If a daemon is killed during a pull, the next daemon finds no snapshot, and removes unfinished
// files. The next pull fetches only the missing blobs.
func TestKilledAmidPull(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a := serve(t), newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	sent := a.push(t, "parent", s.host+"/team/py:1")
	all := len(seenBlobs(sent.Artifact))
	for _, at := range []int{1, 4, all + 2} { // the last number is reached while files are written
		h := killedAt(t, at, s.host+"/team/py:1", "")
		h.leavesNothing(t, "a killed daemon", 0)
		if got := h.pull(t, "", s.host+"/team/py:1"); got.Moved >= once(sent.Artifact) {
			t.Errorf("step %d: all %d bytes were fetched again", at, got.Moved)
		}
		h.check(t, "parent", map[int64]byte{2: 'p'})
	}
}

// If a daemon is killed during a copy, the other registry has no tag, and the host has no files. The next copy sends
// only the missing blobs.
func TestKilledAmidCopy(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s, a := serve(t), newHost(t).hasty()
	a.make(t, "parent", "", 2, 'p')
	sent := a.push(t, "parent", s.host+"/team/py:1")
	for _, at := range []int{1, len(seenBlobs(sent.Artifact))} {
		d := serve(t)
		h := killedAt(t, at, s.host+"/team/py:1", d.host+"/team/py:1")
		if hasTag(t, d, "team/py", "1") {
			t.Errorf("step %d: there is a tag", at)
		}
		h.hasNoFiles(t)
		if got := h.copyTo(t, s.host+"/team/py:1", d.host+"/team/py:1"); got.Moved >= once(sent.Artifact) {
			t.Errorf("step %d: all %d bytes were sent again", at, got.Moved)
		}
		h.pull(t, "", d.host+"/team/py:1")
		h.check(t, "parent", map[int64]byte{2: 'p'})
	}
}
