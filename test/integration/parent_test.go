package integration_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/vmtest"
)

// keptDirs is the beginning of the names of directories in which parents are kept. In the emulated
// host, /tmp is in memory, so the directories end with the host.
const keptDirs = "/tmp/fkp"

// completeFile is a file in such a directory. If it exists, the parent is complete.
const completeFile = "complete"

// bakeParent bakes the snapshot that all tests fork from.
//
// In an emulated host, baking takes longer than most tests. On such a host, bakeParent bakes in a
// directory that outlives the run, and links the snapshot from that directory. Later runs of this
// package find the snapshot in it.
func (f *fixture) bakeParent(t *testing.T) error {
	t.Helper()
	req := f.bakeRequest(t, tag)
	if !vmtest.Emulated() {
		return f.bakeIn(t, f.state, req)
	}
	kept := f.keptParent(t, req)
	complete := filepath.Join(kept, completeFile)
	if _, err := os.Stat(complete); err != nil {
		if err := errors.Join(f.removeParents(t), f.bakeIn(t, kept, req)); err != nil {
			return err
		}
		if err := os.WriteFile(complete, nil, 0o600); err != nil {
			return err
		}
	}
	fillState(t, kept, f.state, os.Link)
	return nil
}

// bakeIn bakes a snapshot in a state directory.
func (f *fixture) bakeIn(t *testing.T, state string, req client.BakeRequest) error {
	d := f.start(t, withState(state))
	defer d.stop(t)
	return d.bake(t, req)
}

// keptParent returns the state directory in which a parent is kept. Its name depends on everything
// that the parent consists of.
func (f *fixture) keptParent(t *testing.T, req client.BakeRequest) string {
	t.Helper()
	what, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s-%x", f.keptDirs(t), sha256.Sum256(what))
}

// keptDirs returns the beginning of the names of the directories with parents of this build.
func (f *fixture) keptDirs(t *testing.T) string {
	t.Helper()
	st, err := os.Stat(f.assets.Forkd) // command prepare writes this file again for each build
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s%x-%x", keptDirs, st.ModTime().UnixNano(), st.Size())
}

// removeParents removes the parents of earlier builds, and parents that are not complete.
func (f *fixture) removeParents(t *testing.T) error {
	t.Helper()
	kept, err := filepath.Glob(keptDirs + "*")
	for _, dir := range kept {
		_, missing := os.Stat(filepath.Join(dir, completeFile))
		if missing != nil || !strings.HasPrefix(dir, f.keptDirs(t)+"-") {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}
	return err
}
