package integration_test

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/format/snapshot"
)

func TestBadRequests(t *testing.T) {
	d := load(t).start(t, withPool(0))
	for _, c := range []struct {
		name   string
		req    client.ForkRequest
		status int
		words  []string
	}{
		{"unknown tag", client.ForkRequest{SnapshotTag: "nobody", N: 1}, http.StatusNotFound,
			[]string{`"nobody"`, "forkd images"}},
		{"tag that is a path", client.ForkRequest{SnapshotTag: "../etc", N: 1}, http.StatusBadRequest,
			[]string{"snapshot_tag", "../etc"}},
		{"n = 0", client.ForkRequest{SnapshotTag: tag, N: 0}, http.StatusBadRequest, []string{"n: 0: want 1 to 1000"}},
		{"n = -1", client.ForkRequest{SnapshotTag: tag, N: -1}, http.StatusBadRequest, []string{"n: -1: want 1 to 1000"}},
		{"n = 1001", client.ForkRequest{SnapshotTag: tag, N: 1001}, http.StatusBadRequest,
			[]string{"n: 1001: want 1 to 1000"}},
		{"hostname", client.ForkRequest{SnapshotTag: tag, N: 1, HostnamePrefix: "Not A Name"}, http.StatusBadRequest,
			[]string{"hostname_prefix", "Not A Name"}},
		{"environment", client.ForkRequest{SnapshotTag: tag, N: 1, Env: map[string]string{"A=B": "c"}}, http.StatusBadRequest,
			[]string{"env"}},
		{"ttl", client.ForkRequest{SnapshotTag: tag, N: 1, TTLSecs: -1}, http.StatusBadRequest, []string{"ttl_secs"}},
	} {
		_, err := d.Fork(d.ctx(t, quietLimit), c.req)
		wantError(t, c.name, err, c.status, c.words...)
	}
	_, err := d.Exec(d.ctx(t, quietLimit), "sb-nobody", client.ExecRequest{Args: []string{"true"}})
	wantError(t, "exec in an unknown sandbox", err, http.StatusNotFound, "sb-nobody")
	d.only(t)
}

func TestBadParents(t *testing.T) {
	f := load(t)
	d := f.start(t, withPool(0))
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	left := func() (names []string) { // earlier tests can have left snapshots, such as steps of builds
		list, err := d.Snapshots(d.ctx(t, quietLimit))
		layers, readErr := os.ReadDir(d.ram)
		if err != nil || readErr != nil {
			t.Fatal(err, readErr)
		}
		for _, s := range list {
			names = append(names, s.Tag)
		}
		for _, l := range layers {
			names = append(names, l.Name())
		}
		slices.Sort(names)
		return names
	}
	before := left()
	good := f.bakeRequest(t, "bad")
	with := func(change func(*client.BakeRequest)) client.BakeRequest {
		req := good
		change(&req)
		return req
	}
	for _, c := range []struct {
		name   string
		req    client.BakeRequest
		status int
		words  []string
	}{
		{"missing kernel", with(func(r *client.BakeRequest) { r.Kernel = "/no/kernel" }), http.StatusBadRequest,
			[]string{"kernel", "/no/kernel"}},
		{"relative path", with(func(r *client.BakeRequest) { r.Initrd = "initrd" }), http.StatusBadRequest,
			[]string{"initrd", "absolute"}},
		{"directory as image", with(func(r *client.BakeRequest) { r.Rootfs = "/tmp" }), http.StatusBadRequest,
			[]string{"rootfs", "/tmp"}},
		{"too little memory", with(func(r *client.BakeRequest) { r.MemSizeMiB = 1 }), http.StatusBadRequest,
			[]string{"mem_size_mib: 1"}},
		{"too many vCPUs", with(func(r *client.BakeRequest) { r.VCPUs = 9999 }), http.StatusBadRequest,
			[]string{"vcpus: 9999"}},
		{"taken tag", with(func(r *client.BakeRequest) { r.Tag = tag }), http.StatusConflict,
			[]string{`"` + tag + `"`, "exists"}},
		{"unknown CPU template", with(func(r *client.BakeRequest) { r.CPUTemplate = "magic" }), http.StatusBadRequest,
			[]string{"cpu_template", "magic"}},
		{"kernel that is none", with(func(r *client.BakeRequest) { r.Kernel = garbage }), 0, []string{`"bad"`, "kernel"}},
		{"image without a file system", with(func(r *client.BakeRequest) {
			r.Rootfs = garbage
		}), 0, []string{`"bad"`, "console", "/dev/vda"}},
		{"warm-up that fails", with(func(r *client.BakeRequest) {
			r.Warmup = client.Warmup{Commands: []string{"echo so >&2; exit 3"}}
		}), 0, []string{`"bad"`, "exit code 3", "so"}},
	} {
		_, err := d.Bake(d.ctx(t, bakeLimit), c.req)
		wantError(t, c.name, err, c.status, c.words...)
		if pids := d.vmms(t); len(pids) > 0 {
			t.Errorf("%s: VMMs are left: %v", c.name, pids)
		}
	}
	if after := left(); !slices.Equal(after, before) {
		t.Errorf("snapshots and layers in RAM: %q, before: %q", after, before)
	}
}

// TestDamagedSnapshots damages one file at a time in a copy of a snapshot.
func TestDamagedSnapshots(t *testing.T) {
	f := load(t)
	for _, c := range []struct {
		name, file string
		damage     func(t *testing.T, path string)
		words      []string
	}{
		{"truncated manifest", snapshot.ManifestFile, cut, nil},
		{"changed manifest", snapshot.ManifestFile, replace("forkd-snapshot", "other-snapshot"), nil},
		{"forged manifest", snapshot.ManifestFile, replace(`"vcpus"`, `"VCPUS"`), nil},
		{"missing manifest", snapshot.ManifestFile, remove, []string{"missing"}},
		{"truncated state", snapshot.StateFile, cut, []string{"truncated"}},
		{"missing state", snapshot.StateFile, remove, []string{"missing"}},
		{"truncated memory map", snapshot.MemoryMapFile, cut, []string{"100 bytes: the manifest says"}},
		{"truncated memory", snapshot.MemoryLayerFile, cut, []string{"truncated"}},
		{"missing memory", snapshot.MemoryLayerFile, remove, []string{"missing"}},
		{"truncated disk", snapshot.DiskLayerFile, cut, []string{"truncated"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := f.startDamaged(t, c.file, c.damage)
			_, err := d.Fork(d.ctx(t, quietLimit), client.ForkRequest{SnapshotTag: tag, N: 2})
			wantError(t, "fork", err, http.StatusConflict, append(c.words, `"`+tag+`"`, c.file)...)
			d.only(t)
		})
	}
}

// TestForeignSnapshots uses complete snapshots that this host cannot run, and snapshots with files
// that were changed but have the same size as before.
func TestForeignSnapshots(t *testing.T) {
	f := load(t)
	t.Run("other CPU template", func(t *testing.T) {
		d := f.startDamaged(t, snapshot.ManifestFile, func(t *testing.T, path string) {
			rewriteManifest(t, path, func(m *snapshot.Manifest) { m.Machine.Template = "magic" })
		})
		_, err := d.Fork(d.ctx(t, quietLimit), client.ForkRequest{SnapshotTag: tag, N: 1})
		wantError(t, "fork", err, 0, `"`+tag+`"`, "magic")
		d.only(t)
	})
	t.Run("other shape", func(t *testing.T) {
		d := f.startDamaged(t, snapshot.ManifestFile, func(t *testing.T, path string) {
			rewriteManifest(t, path, func(m *snapshot.Manifest) { m.Machine.VCPUs = 2 })
		})
		_, err := d.Fork(d.ctx(t, quietLimit), client.ForkRequest{SnapshotTag: tag, N: 1})
		wantError(t, "fork", err, 0, `"`+tag+`"`, "vCPU")
		d.only(t)
	})
	t.Run("changed state", func(t *testing.T) {
		d := f.startDamaged(t, snapshot.StateFile, func(t *testing.T, path string) {
			p := take(t, path, -1)
			for i := range p[len(p)/2:] {
				p[len(p)/2+i] ^= 0xff
			}
			put(t, path, p)
		})
		_, err := d.Fork(d.ctx(t, quietLimit), client.ForkRequest{SnapshotTag: tag, N: 1})
		wantError(t, "fork", err, 0, `"`+tag+`"`, "state is damaged")
		d.only(t)
	})
}

// startDamaged starts a daemon on a copy of the state in which one file of the snapshot is damaged.
func (f *fixture) startDamaged(t *testing.T, file string, damage func(*testing.T, string)) *daemon {
	t.Helper()
	state := f.copyState(t)
	damage(t, filepath.Join(state, "snapshots", tag, file))
	return f.start(t, withState(state), withRAM(filepath.Join(state, "ram")), withPool(0))
}

// copyState returns a state directory with the same snapshot. Its layers are hard links.
func (f *fixture) copyState(t *testing.T) string {
	t.Helper()
	state := f.newState(t)
	fillState(t, f.state, state, os.Link)
	return state
}

// newState makes a state directory for one test.
func (f *fixture) newState(t *testing.T) string {
	t.Helper()
	state, err := os.MkdirTemp(f.root, "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(state); err != nil {
			t.Error(err)
		}
	})
	return state
}

// fillState copies the parent's snapshot and the records of base images from one state directory to
// another. It calls put to copy or link one file. Only layers may have several hard links.
func fillState(t *testing.T, old, state string, put func(from, to string) error) {
	t.Helper()
	for _, dir := range []string{filepath.Join("snapshots", tag), "bases"} {
		from, to := filepath.Join(old, dir), filepath.Join(state, dir)
		if err := os.MkdirAll(to, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range tree(t, from) {
			place := copySparse
			switch {
			case strings.Contains(name, ".layer"):
				place = put
			case dir == "bases" && !strings.HasSuffix(name, ".json"):
				continue // the record names the path of the image
			}
			if err := place(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// take removes a file, which may have other hard links, and returns its first n bytes. A negative n
// means all bytes.
func take(t *testing.T, path string, n int64) []byte {
	t.Helper()
	r, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var from io.Reader = r
	if n >= 0 {
		from = io.LimitReader(r, n)
	}
	p, err := io.ReadAll(from)
	if err := errors.Join(err, os.Remove(path)); err != nil {
		t.Fatal(err)
	}
	return p
}

func put(t *testing.T, path string, p []byte) {
	t.Helper()
	if err := os.WriteFile(path, p, 0o600); err != nil {
		t.Fatal(err)
	}
}

func cut(t *testing.T, path string)    { put(t, path, take(t, path, 100)) }
func remove(t *testing.T, path string) { take(t, path, 0) }

func replace(old, now string) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		t.Helper()
		p := string(take(t, path, -1))
		if !strings.Contains(p, old) {
			t.Fatalf("no %s in %s", old, path)
		}
		put(t, path, []byte(strings.ReplaceAll(p, old, now)))
	}
}

// rewriteManifest changes a manifest and computes a new checksum for it.
func rewriteManifest(t *testing.T, path string, change func(*snapshot.Manifest)) {
	t.Helper()
	m, err := snapshot.ParseManifest(take(t, path, -1))
	if err != nil {
		t.Fatal(err)
	}
	change(m)
	p, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	put(t, path, p)
}
