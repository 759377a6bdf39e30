package integration_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/vmtest"
)

// keptDirs is the pattern of the directories in which parents are kept. In the emulated host, /tmp
// is in memory, so the directories end with the host.
const keptDirs = "/tmp/forkd-test-parent-"

// keptParent returns the state directory in which a parent is kept for later runs of this package
// in the same emulated host. There, baking takes much longer than most tests. The name depends on
// everything that the parent consists of. It is empty outside of an emulated host, where a run
// leaves nothing behind.
func (f *fixture) keptParent(t *testing.T, req client.BakeRequest) string {
	t.Helper()
	if !vmtest.Emulated() {
		return ""
	}
	st, err := os.Stat(f.assets.Forkd) // command prepare writes this file again for each build
	if err != nil {
		t.Fatal(err)
	}
	what, err := json.Marshal([]any{req, st.ModTime().UnixNano(), st.Size()})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s%x", keptDirs, sha256.Sum256(what))
}

// keep keeps the parent of this run, and removes those of earlier builds.
func (f *fixture) keep(t *testing.T, dir string) {
	t.Helper()
	old, err := filepath.Glob(keptDirs + "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range old {
		if err := os.RemoveAll(d); err != nil {
			t.Fatal(err)
		}
	}
	fillState(t, f.state, dir+".new", os.Link)
	if err := os.Rename(dir+".new", dir); err != nil {
		t.Fatal(err)
	}
}
