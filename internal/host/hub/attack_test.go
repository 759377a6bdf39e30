package hub

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/store"
)

// entries returns the files of an archive.
func entries(t *testing.T, archive []byte) (names []string, files map[string][]byte) {
	t.Helper()
	files = make(map[string][]byte)
	for in := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return names, files
		}
		if err != nil {
			t.Fatal(err)
		}
		p, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			names, files[h.Name] = append(names, h.Name), p
		}
	}
}

// archiveOf is the reverse of entries.
func archiveOf(t *testing.T, names []string, files map[string][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range names {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(files[name])), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// forge changes the manifests of an archive, and corrects all digests that depend on them.
func forge(t *testing.T, archive []byte, inner func(*snapshot.Manifest), outer func(*oci.Manifest)) []byte {
	t.Helper()
	names, files := entries(t, archive)
	blob := func(d digest.Digest) string { return "blobs/sha256/" + d.Encoded() }
	var index oci.Index
	var m oci.Manifest
	if err := json.Unmarshal(files["index.json"], &index); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(files[blob(index.Manifests[0].Digest)], &m); err != nil {
		t.Fatal(err)
	}
	s, err := snapshot.ParseManifest(files[blob(m.Config.Digest)])
	if err != nil {
		t.Fatal(err)
	}
	if inner != nil {
		inner(s)
	}
	config, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	m.Config.Digest, m.Config.Size = digest.FromBytes(config), int64(len(config))
	if outer != nil {
		outer(&m)
	}
	add := func(p []byte) digest.Digest {
		d := digest.FromBytes(p)
		if files[blob(d)] == nil {
			names = append(names, blob(d))
		}
		files[blob(d)] = p
		return d
	}
	add(config)
	manifest, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	index.Manifests[0].Digest = add(manifest)
	if files["index.json"], err = json.Marshal(index); err != nil {
		t.Fatal(err)
	}
	return archiveOf(t, names, files)
}

// isClean fails the test if the host has files of a snapshot that was not published.
func (h *host) isClean(t *testing.T, name string, want int) {
	t.Helper()
	for _, dir := range []string{filepath.Join(h.root, "staging"), filepath.Join(h.root, "hub", "blobs")} {
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("%s: %d files are left in %s, %v", name, len(left), dir, err)
		}
	}
	if n := len(h.store.List()); n != want {
		t.Errorf("%s: there are %d snapshots, want %d", name, n, want)
	}
}

// Hostile archives are refused, with the reason, and leave nothing behind.
func TestHostileArchives(t *testing.T) {
	a, b := newHost(t), newHost(t)
	a.make(t, "parent", "", 2, 'p')
	a.make(t, "child", "parent", 10, 'c')
	b.make(t, "victim", "", 2, 'v')
	good, other := a.pack(t, "child"), a.pack(t, "parent")
	names, files := entries(t, good)
	_, otherFiles := entries(t, other)
	largest := slices.MaxFunc(names, func(x, y string) int { return len(files[x]) - len(files[y]) })
	change := func(f func(files map[string][]byte)) []byte {
		copied := make(map[string][]byte)
		for name, p := range files {
			copied[name] = bytes.Clone(p)
		}
		f(copied)
		return archiveOf(t, names, copied)
	}
	swap := func(x, y int) func(*oci.Manifest) {
		return func(m *oci.Manifest) {
			x, y := &m.Layers[x], &m.Layers[y]
			x.Digest, y.Digest, x.Size, y.Size = y.Digest, x.Digest, y.Size, x.Size
			for _, name := range []string{"dev.forkd.index.bytes", "dev.forkd.index.digest"} {
				x.Annotations[name], y.Annotations[name] = y.Annotations[name], x.Annotations[name]
			}
		}
	}
	for name, c := range map[string]struct {
		archive []byte
		want    string
	}{
		"nothing":          {nil, "no index.json"},
		"no archive":       {bytes.Repeat([]byte("x"), 4096), "tar"},
		"truncated":        {good[:len(good)/2], ""},
		"a flipped bit":    {change(func(f map[string][]byte) { f[largest][100] ^= 1 }), "and the digest"},
		"a truncated blob": {change(func(f map[string][]byte) { f[largest] = f[largest][:100] }), "has 100 bytes"},
		"a longer blob": {change(func(f map[string][]byte) { f[largest] = append(f[largest], 0) }),
			"and the digest"},
		"another manifest": {change(func(f map[string][]byte) { f["index.json"] = otherFiles["index.json"] }),
			"is missing"},
		"a missing blob": {archiveOf(t, slices.DeleteFunc(slices.Clone(names),
			func(n string) bool { return n == largest }), files), "is missing"},
		"swapped memory layers":  {forge(t, good, nil, swap(2, 3)), "its content has the digest"},
		"swapped disk layers":    {forge(t, good, nil, swap(4, 5)), "its content has the digest"},
		"a file of another size": {forge(t, good, nil, swap(0, 1)), "as the manifest says"},
		"too much memory": {forge(t, good, func(m *snapshot.Manifest) { m.Machine.MemoryBytes = 1 << 40 }, nil),
			"the guest has 1048576 MiB of memory"},
		"an unknown CPU template": {forge(t, good, func(m *snapshot.Manifest) { m.Machine.Template = "magic" }, nil),
			`unknown cpu template "magic"`},
		"a map of another layer": {forge(t, good, func(m *snapshot.Manifest) { m.Memory = m.Memory[1:] },
			func(m *oci.Manifest) {
				m.Layers = slices.Delete(m.Layers, 2, 3)
				m.Layers[2].Annotations["dev.forkd.file"] = "memory.layer.0"
			}), "memory map: extent"},
		"a disk of another size": {forge(t, good, func(m *snapshot.Manifest) { m.Disk.SizeBytes *= 2 }, nil),
			"a layer of a disk of"},
		"a policy": {forge(t, good, func(m *snapshot.Manifest) { m.Guest.Network = &snapshot.Network{Mode: "open"} }, nil),
			"has a policy"},
		"a step of a build": {forge(t, good, func(m *snapshot.Manifest) {
			m.Tag = snapshot.StepTag("",
				strings.Repeat("a", 40))
		}, nil),
			"steps of builds"},
		"the tag of another": {forge(t, good, func(m *snapshot.Manifest) { m.Tag = "victim" }, nil), "exists"},
	} {
		err := b.unpack(t, "", c.archive)
		var format *artifact.Error
		var field *invalid.Error
		var exists *store.ExistsError
		if !errors.As(err, &format) && !errors.As(err, &field) && !errors.As(err, &exists) ||
			!strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		b.isClean(t, name, 1)
	}
	b.check(t, "victim", map[int64]byte{2: 'v'})
}

// A forged snapshot has the ID of a snapshot of this host: as its own ID, as the ID of its parent,
// or as the owner of its layers. When the forged snapshot is unpacked, it neither replaces that
// snapshot nor depends on it.
func TestForgedIdentity(t *testing.T) {
	a, b := newHost(t), newHost(t)
	a.make(t, "parent", "", 2, 'p')
	a.make(t, "child", "parent", 10, 'c')
	b.make(t, "victim", "", 2, 'v')
	lease, err := b.store.Acquire("victim")
	if err != nil {
		t.Fatal(err)
	}
	id := lease.Manifest().ID
	lease.Release()
	forged := forge(t, a.pack(t, "child"), func(m *snapshot.Manifest) {
		m.Parent.ID, m.Memory[0].Owner, m.Disk.Layers[0].Owner = id, id, id
	}, nil)
	if err := b.unpack(t, "", forged); err != nil {
		t.Fatal(err)
	}
	b.check(t, "child", map[int64]byte{2: 'p', 10: 'c'})
	d, err := b.store.Detail("victim")
	if err != nil || len(d.Dependents) != 0 {
		t.Errorf("%v builds on it, %v", d.Dependents, err)
	}
	forged = forge(t, a.pack(t, "parent"), func(m *snapshot.Manifest) {
		m.ID, m.Tag = id, "twin"
		m.State.Owner, m.Map.Owner, m.Memory[0].Owner, m.Disk.Layers[0].Owner = id, id, id, id
	}, nil)
	if err := b.unpack(t, "", forged); err != nil {
		t.Fatal(err)
	}
	b.store.Close()
	b.open(t)
	b.check(t, "twin", map[int64]byte{2: 'p'})
	b.check(t, "victim", map[int64]byte{2: 'v'})
}
