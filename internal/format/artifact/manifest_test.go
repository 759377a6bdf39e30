package artifact

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/proto/vm"
)

// sample returns an artifact of two layers of each kind, and its blobs.
func sample(t testing.TB) (*Artifact, map[digest.Digest][]byte) {
	t.Helper()
	id, parent := snapshot.NewID(), snapshot.NewID()
	m := &snapshot.Manifest{ID: id, Tag: "b1", Created: time.Unix(1700000000, 5).UTC(),
		Parent: &snapshot.Ref{ID: parent, Tag: "team-a.secret"}, Root: parent,
		Machine: snapshot.Machine{MemoryBytes: 1 << 20, VCPUs: 1, Template: vm.TemplatePortable, Accel: "kvm"},
		Guest: snapshot.Guest{Kernel: "6.12", Network: &snapshot.Network{Mode: "open"}, Limits: vm.Limits{},
			Strict: true},
		Branch: &snapshot.Branch{SandboxID: "sb-1", Mode: "live", Labels: map[string]string{"team": "a"}}}
	blobs, list := make(map[digest.Digest][]byte), []Blob{}
	file := func(name, owner string, n int, seed uint64) snapshot.File {
		p := content(n, seed)
		b, coded := encode(t, name, p)
		blobs[b.Digest], list = coded, append(list, b)
		return snapshot.File{Owner: owner, Bytes: uint64(n), Digest: b.Part.Digest}
	}
	base := func(name string, n int, seed uint64) snapshot.Base {
		f := file(name, "", n, seed)
		return snapshot.Base{Bytes: f.Bytes, Digest: f.Digest}
	}
	m.State, m.Map = file(StatePart, id, 5000, 1), file(MapPart, id, 300, 2)
	m.Memory = []snapshot.File{file(MemoryPart+"0", parent, 1<<20, 3), file(MemoryPart+"1", id, 1<<20, 4)}
	m.Disk = &snapshot.Disk{SizeBytes: 1 << 20, Layers: []snapshot.File{file(DiskPart+"0", parent, 1<<20, 5),
		file(DiskPart+"1", id, 1<<20, 6)}}
	m.Disk.Base = base(BasePart, 1<<20, 7)
	m.Boot = &snapshot.Boot{Kernel: base(KernelPart, 70000, 8), Initrd: base(InitramfsPart, 90000, 9)}
	a, err := New(Portable(m), list)
	if err != nil {
		t.Fatal(err)
	}
	return a, blobs
}

// An artifact contains nothing that belongs to its host: no policy, no labels, and no names of
// other snapshots and sandboxes.
func TestPortableManifest(t *testing.T) {
	a, _ := sample(t)
	text := string(a.Config) + string(a.Manifest)
	for _, secret := range []string{"team-a", "open", "sb-1", `"team"`, "strict"} {
		if strings.Contains(text, secret) {
			t.Errorf("%q travels", secret)
		}
	}
	if again, err := New(a.Snapshot, a.Blobs); err != nil || again.Digest() != a.Digest() {
		t.Errorf("a second artifact of the same blobs differs, %v", err)
	}
	if len(a.Blobs) != len(Parts(a.Snapshot)) || a.Bytes() == 0 {
		t.Errorf("%d blobs of %d bytes", len(a.Blobs), a.Bytes())
	}
}

// rewrite returns the artifact's OCI manifest and its configuration after changes. It changes the
// OCI manifest by calling outer, and the snapshot's manifest by calling inner. The checksum of the
// snapshot's manifest and the digest of the configuration are correct afterwards, unless outer
// changes the digest.
func rewrite(t *testing.T, a *Artifact, outer func(*oci.Manifest), inner func(*snapshot.Manifest)) ([]byte, []byte) {
	t.Helper()
	s, err := snapshot.ParseManifest(a.Config)
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
	var m oci.Manifest
	if err := json.Unmarshal(a.Manifest, &m); err != nil {
		t.Fatal(err)
	}
	m.Config.Digest, m.Config.Size = digest.FromBytes(config), int64(len(config))
	if outer != nil {
		outer(&m)
	}
	manifest, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return manifest, config
}

// Hostile manifests are refused.
func TestHostileManifests(t *testing.T) {
	a, _ := sample(t)
	note := func(name, value string) func(*oci.Manifest) {
		return func(m *oci.Manifest) { m.Layers[2].Annotations[name] = value }
	}
	for name, c := range map[string]struct {
		outer func(*oci.Manifest)
		inner func(*snapshot.Manifest)
		want  string
	}{
		"a container image": {func(m *oci.Manifest) {
			m.ArtifactType, m.Config.MediaType = "", oci.MediaTypeImageConfig
		}, nil, "another kind of artifact"},
		"another configuration": {func(m *oci.Manifest) { m.Config.Digest = digest.FromString("x") }, nil,
			"not that of the manifest"},
		"a huge configuration": {func(m *oci.Manifest) { m.Config.Size = 1 << 40 }, nil, "a configuration of"},
		"a digest as a path": {func(m *oci.Manifest) { m.Layers[0].Digest = "sha256:../../../../etc/passwd" }, nil,
			"digest"},
		"another algorithm": {func(m *oci.Manifest) {
			m.Layers[0].Digest = "sha512:" + digest.Digest(strings.Repeat("ab", 64))
		}, nil, "want sha256"},
		"a missing blob": {func(m *oci.Manifest) { m.Layers = m.Layers[1:] }, nil, "8 blobs"},
		"blobs in another order": {func(m *oci.Manifest) {
			m.Layers[2], m.Layers[3] = m.Layers[3], m.Layers[2]
		}, nil, "memory.layer.0: the blob in its place"},
		"a long kernel": {nil, func(m *snapshot.Manifest) { m.Guest.Kernel = strings.Repeat("x", 257) }, "257 bytes"},
		"many languages": {nil, func(m *snapshot.Manifest) { m.Guest.Warm = make([]string, 17) },
			"17 warm languages"},
		"a long host name": {nil, func(m *snapshot.Manifest) { m.Guest.Hostname = strings.Repeat("x", 257) },
			"a name of more than 256 bytes"},
		"a long accelerator": {nil, func(m *snapshot.Manifest) { m.Machine.Accel = strings.Repeat("x", 257) },
			"a name of more than 256 bytes"},
		"many blobs":       {func(m *oci.Manifest) { m.Layers = append(m.Layers, m.Layers...) }, nil, "18 blobs"},
		"a huge blob":      {func(m *oci.Manifest) { m.Layers[2].Size = 1 << 50 }, nil, "a blob of"},
		"a negative blob":  {func(m *oci.Manifest) { m.Layers[2].Size = -1 }, nil, "a blob of"},
		"a huge index":     {note(annotationIndexBytes, "99999999999"), nil, "an index of"},
		"a negative index": {note(annotationIndexBytes, "-5"), nil, "an index of"},
		"no index":         {note(annotationIndexBytes, ""), nil, "length of the index"},
		"no digest":        {note(annotationIndexDigest, ""), nil, "digest"},
		"another name":     {note(annotationFile, "../x"), nil, "the blob in its place"},
		"another type":     {func(m *oci.Manifest) { m.Layers[0].MediaType = "x" }, nil, "the blob in its place"},
		"a policy": {nil, func(m *snapshot.Manifest) { m.Guest.Network = &snapshot.Network{Mode: "open"} },
			"policy"},
		"limits": {nil, func(m *snapshot.Manifest) { m.Guest.Limits.CPUWeight = 100 }, "policy"},
		"labels": {nil, func(m *snapshot.Manifest) {
			m.Branch = &snapshot.Branch{Mode: "live", Labels: map[string]string{"a": "b"}}
		}, "branched"},
		"a transient snapshot": {nil, func(m *snapshot.Manifest) { m.Transient = true }, "branched"},
		"the name of another":  {nil, func(m *snapshot.Manifest) { m.Parent.Tag = "prod" }, "names another"},
		"no content digest":    {nil, func(m *snapshot.Manifest) { m.Memory[0].Digest = "" }, "memory.layer.0: no digest"},
		"a huge kernel":        {nil, func(m *snapshot.Manifest) { m.Boot.Kernel.Bytes = 1 << 50 }, "a kernel of"},
		"a huge memory map":    {nil, func(m *snapshot.Manifest) { m.Map.Bytes = 1 << 50 }, "a memory map of"},
		"a huge disk": {nil, func(m *snapshot.Manifest) {
			m.Disk.SizeBytes = 1 << 60
		}, "a disk of"},
		"volumes": {nil, func(m *snapshot.Manifest) {
			id := snapshot.NewID()
			m.Machine.VolumeSlots = 1
			m.Volumes = []snapshot.Volume{{ID: snapshot.VolumeID + id, Name: "data", Path: "/data", SizeBytes: 16 << 20,
				Files: []snapshot.File{{Owner: id, Bytes: 16 << 20}}}}
		}, "includes volumes"},
	} {
		manifest, config := rewrite(t, a, c.outer, c.inner)
		_, err := Parse(manifest, config)
		var format *Error
		if !errors.As(err, &format) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	for name, p := range map[string][]byte{"nothing": nil, "no JSON": []byte("{"), "too long": make([]byte,
		MaxManifest+1)} {
		if _, err := Parse(p, a.Config); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if manifest, config := rewrite(t, a, nil, nil); !bytes.Equal(manifest, a.Manifest) ||
		!bytes.Equal(config, a.Config) {
		t.Error("rewrite changes more than asked for")
	}
}

// A registry can redirect the request for a manifest to another server. Errors do not show the client
// what that server has answered.
func TestErrorsQuoteNoFields(t *testing.T) {
	a, _ := sample(t)
	const private = "private-text"
	for name, change := range map[string]func(*oci.Manifest){
		"type":          func(m *oci.Manifest) { m.ArtifactType = private },
		"configuration": func(m *oci.Manifest) { m.Config.MediaType = private },
		"media type":    func(m *oci.Manifest) { m.MediaType = private },
		"digest":        func(m *oci.Manifest) { m.Config.Digest = private },
		"blob's type":   func(m *oci.Manifest) { m.Layers[0].MediaType = private },
		"blob's digest": func(m *oci.Manifest) { m.Layers[0].Digest = private },
		"blob's name":   func(m *oci.Manifest) { m.Layers[0].Annotations[annotationFile] = private },
		"index":         func(m *oci.Manifest) { m.Layers[0].Annotations[annotationIndexBytes] = private },
	} {
		manifest, config := rewrite(t, a, change, nil)
		if _, err := Parse(manifest, config); err == nil || strings.Contains(err.Error(), private) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
