package integration_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
)

// vmms returns the running VMMs of the daemon's state directory.
func (d *daemon) vmms(t *testing.T) []string { return d.processes(t, "forkd-vmm") }

// processes returns the processes that run the given program from the daemon's state directory.
func (d *daemon) processes(t *testing.T, name string) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	var pids []string
	for _, l := range links {
		exe, err := os.Readlink(l)
		if err == nil && strings.TrimSuffix(exe, " (deleted)") == filepath.Join(d.state, "bin", name) {
			pids = append(pids, strings.Split(l, "/")[2])
		}
	}
	return pids
}

// isParentOf reports whether this daemon has started a process. An earlier daemon may have started
// it.
func (d *daemon) isParentOf(t *testing.T, pid string) bool {
	t.Helper()
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if errors.Is(err, os.ErrNotExist) {
		return false // the process has ended
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", d.cmd.Process.Pid))
}

// eventually repeats f until it returns nil.
func eventually(t *testing.T, limit time.Duration, f func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %v", limit, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// tree lists all files below dir, relative to it.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the file was removed after it was listed
		}
		if rel, e := filepath.Rel(dir, path); e == nil && rel != "." {
			names = append(names, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func copyFile(to, from string, mode fs.FileMode) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}

// wantError checks that an error has a status and contains words.
func wantError(t *testing.T, what string, err error, status int, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
		return
	}
	if status != 0 && !client.IsStatus(err, status) {
		t.Errorf("%s: want status %d: %v", what, status, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: want %q in the error: %v", what, w, err)
		}
	}
}
