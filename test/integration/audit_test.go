package integration_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// audit waits until all processes, files and memory belong to sandboxes or snapshots that the
// daemon lists, or to the pool.
func (d *daemon) audit(t *testing.T) {
	t.Helper()
	eventually(t, quietLimit, func() error {
		boxes, err := d.Sandboxes(d.ctx(t, stepLimit))
		if err != nil {
			return err
		}
		snaps, err := d.Snapshots(d.ctx(t, stepLimit))
		if err != nil {
			return err
		}
		var running, held []string
		for _, s := range boxes {
			if s.PID != 0 {
				running = append(running, s.ID)
			}
			_, err := os.Stat(filepath.Join(d.state, "sandboxes", s.ID, "suspended.json"))
			if s.State != "exited" || err == nil { // with a suspended state, an exited sandbox can be resumed
				held = append(held, s.ID)
			}
		}
		var places, followed []string
		for _, s := range snaps {
			places = append(places, s.Dir)
		}
		for _, name := range names(filepath.Join(d.state, "snapshots")) {
			if strings.HasPrefix(name, ".unnamed-") { // files of a deleted snapshot on which a running sandbox depends
				followed = append(followed, filepath.Join(d.state, "snapshots", name))
			}
		}
		if len(followed) > len(running) {
			return fmt.Errorf("snapshots without a name %v for sandboxes %v", followed, running)
		}
		owners := map[string]bool{}
		for _, dir := range append(places, followed...) {
			p, err := os.ReadFile(filepath.Join(dir, snapshot.ManifestFile))
			if err != nil {
				return err
			}
			m, err := snapshot.ParseManifest(p)
			if err != nil {
				return err
			}
			for _, l := range m.Memory {
				owners[l.Owner] = true
			}
		}
		const pool = 1
		if pids := d.vmms(t); len(pids) > len(running)+pool {
			return fmt.Errorf("VMM processes %v for sandboxes %v", pids, running)
		}
		if dirs := names(filepath.Join(d.run, "vm")); len(dirs) > len(running)+pool {
			return fmt.Errorf("run directories %v for sandboxes %v", dirs, running)
		}
		for dir, want := range map[string]func(string) bool{
			filepath.Join(d.state, "sandboxes"): func(name string) bool { return slices.Contains(held, name) },
			filepath.Join(d.state, "staging"):   func(string) bool { return false },
			d.ram:                               func(name string) bool { return owners[name] },
		} {
			for _, name := range names(dir) {
				if !want(name) {
					return fmt.Errorf("%s/%s is of nothing that is listed", dir, name)
				}
			}
		}
		if dirs := names(filepath.Join(d.state, "snapshots")); len(dirs) != len(snaps)+len(followed) {
			return fmt.Errorf("snapshot directories %v, %d snapshots are listed", dirs, len(snaps))
		}
		return nil
	})
}

// names returns the names of the entries of a directory.
func names(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return []string{err.Error()}
	}
	list := make([]string, len(entries))
	for i, e := range entries {
		list[i] = e.Name()
	}
	return list
}
