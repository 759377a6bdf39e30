// Package artifact is the format of snapshots that travel between hosts: an OCI artifact with the
// manifest of the snapshot as its configuration, and one blob for each file of the snapshot.
//
// It encodes, decodes and checks, and treats all of its input as hostile. All input that it reads
// has a bound, every byte is compared with a SHA-256 before it is used, and no text in an artifact
// is used as a path. The package neither fetches nor stores blobs, and does not decide whether this
// host may use a snapshot.
package artifact

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Media types of an artifact, of its configuration, and of its blobs.
const (
	Type       = "application/vnd.forkd.snapshot.v1"
	ConfigType = "application/vnd.forkd.snapshot.config.v1+json"
	FileType   = "application/vnd.forkd.snapshot.file.v1+zstd"
)

// Annotations of a blob.
const (
	annotationFile        = "dev.forkd.file"         // name of the Part
	annotationIndexBytes  = "dev.forkd.index.bytes"  // length of the index, at the end of the blob
	annotationIndexDigest = "dev.forkd.index.digest" // SHA-256 of the index
)

// MaxManifest is the largest OCI manifest, in bytes.
const MaxManifest = 1 << 20

// Bounds, in bytes, on the files whose size a snapshot's manifest does not limit.
const (
	maxKernel    = 512 << 20
	maxInitramfs = 256 << 20 // real initramfses have 20 to 40 MiB
)

// parentTag replaces the tag of a parent, because that tag may be private to the packing host.
const parentTag = "parent"

// Error reports that bytes are not a valid artifact.
type Error struct{ Err error }

func (e *Error) Error() string { return "not a valid snapshot artifact: " + e.Err.Error() }

func (e *Error) Unwrap() error { return e.Err }

func invalid(format string, args ...any) error { return &Error{fmt.Errorf(format, args...)} }

// Part describes one file of a snapshot. One blob contains the file.
type Part struct {
	Name   string
	Bytes  uint64
	Digest string // see snapshot.Digester
}

// Names of parts. The name of a layer is MemoryPart or DiskPart, followed by the layer's number in
// the chain. The lowest layer has the number 0.
const (
	StatePart     = "vmstate"
	MapPart       = "memory.map"
	MemoryPart    = "memory.layer."
	DiskPart      = "disk.layer."
	BasePart      = "base"
	KernelPart    = "kernel"
	InitramfsPart = "initramfs"
)

// Parts returns the files of a snapshot in the order of the blobs.
func Parts(m *snapshot.Manifest) []Part {
	var list []Part
	if !m.DiskOnly() {
		list = append(list, Part{StatePart, m.State.Bytes, m.State.Digest}, Part{MapPart, m.Map.Bytes, m.Map.Digest})
	}
	for i, l := range m.Memory {
		list = append(list, Part{MemoryPart + strconv.Itoa(i), l.Bytes, l.Digest})
	}
	if m.Disk != nil {
		for i, l := range m.Disk.Layers {
			list = append(list, Part{DiskPart + strconv.Itoa(i), l.Bytes, l.Digest})
		}
		list = append(list, Part{BasePart, m.Disk.Base.Bytes, m.Disk.Base.Digest})
	}
	if m.Boot != nil {
		list = append(list, Part{KernelPart, m.Boot.Kernel.Bytes, m.Boot.Kernel.Digest},
			Part{InitramfsPart, m.Boot.Initrd.Bytes, m.Boot.Initrd.Digest})
	}
	return list
}

// Portable returns the manifest with which a snapshot travels. This manifest has no network policy,
// no limits, no hooks, no labels, and no names of sandboxes and other snapshots. m must have all
// digests.
func Portable(m *snapshot.Manifest) *snapshot.Manifest {
	out := *m
	out.Root, out.Branch, out.Transient = "", nil, false
	out.Guest.Network, out.Guest.Limits, out.Guest.Strict = nil, vm.Limits{}, false
	out.Guest.Hooks = snapshot.Hooks{}
	if m.Parent != nil {
		out.Parent = &snapshot.Ref{ID: m.Parent.ID, Tag: parentTag}
	}
	return &out
}

// Provisional returns the manifest of a snapshot that is used before all of its files have arrived.
// It combines a manifest that describes the snapshot without its own files (fresh) with the
// manifest in the artifact (from). The snapshot's own layers have no digests, so no other import
// reuses these layers.
func Provisional(fresh, from *snapshot.Manifest, id, tag string) *snapshot.Manifest {
	m := *fresh
	m.ID, m.Tag, m.Created = id, tag, time.Now().UTC()
	hide := func(list []snapshot.File, from []snapshot.File) []snapshot.File {
		list = append(slices.Clone(list), snapshot.File{Owner: id, Bytes: from[len(from)-1].Bytes})
		for n := range list {
			list[n].Digest = ""
		}
		return list
	}
	m.Memory = hide(m.Memory, from.Memory)
	m.State = snapshot.File{Owner: id, Bytes: from.State.Bytes}
	m.Map = snapshot.File{Owner: id, Bytes: from.Map.Bytes}
	if m.Disk != nil {
		disk := *m.Disk
		disk.Layers = hide(disk.Layers, from.Disk.Layers)
		m.Disk = &disk
	}
	return &m
}

// checkPortable returns an error unless m is a manifest that Portable returns.
func checkPortable(m *snapshot.Manifest) error {
	switch {
	case m.Version != snapshot.Version:
		return fmt.Errorf("manifest version %d: want %d", m.Version, snapshot.Version)
	case m.Root != "" || m.Branch != nil || m.Transient:
		return errors.New("the manifest says how a sandbox was branched")
	case m.Guest.Network != nil || m.Guest.Limits != vm.Limits{} || m.Guest.Strict:
		return errors.New("the manifest has a policy")
	case m.Guest.Hooks != snapshot.Hooks{}:
		return errors.New("the manifest has hooks")
	case m.Parent != nil && m.Parent.Tag != parentTag:
		return errors.New("the manifest names another snapshot")
	case max(len(m.Guest.Hostname), len(m.Machine.Template), len(m.Machine.Accel)) > snapshot.MaxName:
		return fmt.Errorf("the manifest has a name of more than %d bytes", snapshot.MaxName)
	case m.Disk != nil && m.Disk.SizeBytes > disklayer.MaxSize:
		return fmt.Errorf("a disk of %d bytes: at most %d", m.Disk.SizeBytes, uint64(disklayer.MaxSize))
	case m.Boot != nil && (m.Boot.Kernel.Bytes > maxKernel || m.Boot.Initrd.Bytes > maxInitramfs):
		return fmt.Errorf("a kernel of %d bytes and an initramfs of %d: at most %d and %d", m.Boot.Kernel.Bytes,
			m.Boot.Initrd.Bytes, maxKernel, maxInitramfs)
	case m.Map.Bytes > uint64(snapshot.MaxMemoryMap):
		return fmt.Errorf("a memory map of %d bytes: at most %d", m.Map.Bytes, snapshot.MaxMemoryMap)
	}
	for _, p := range Parts(m) {
		if p.Digest == "" {
			return fmt.Errorf("%s: no digest", p.Name)
		}
	}
	return snapshot.CheckReport(m.Guest.Kernel, m.Guest.Warm)
}

// Blob describes the encoded form of a part.
type Blob struct {
	Part        Part
	Digest      digest.Digest // SHA-256 of the blob
	Size        int64         // bytes
	IndexBytes  int64         // length of the index at the end
	IndexDigest digest.Digest
}

// Artifact is a snapshot in its portable form, without the content of the blobs.
type Artifact struct {
	Manifest []byte // OCI manifest
	Config   []byte // the snapshot's manifest
	Snapshot *snapshot.Manifest
	Blobs    []Blob // one for each of the snapshot's Parts
}

// Digest returns the digest of the OCI manifest. This digest identifies the artifact.
func (a *Artifact) Digest() digest.Digest { return digest.FromBytes(a.Manifest) }

// Bytes returns the sum of the sizes of all blobs.
func (a *Artifact) Bytes() (n int64) {
	for _, b := range a.Blobs {
		n += b.Size
	}
	return n
}

// New returns the artifact of a snapshot. The manifest must be a result of Portable. The same
// arguments give the same bytes.
func New(m *snapshot.Manifest, blobs []Blob) (*Artifact, error) {
	config, err := m.Encode()
	if err != nil {
		return nil, err
	}
	out := oci.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: oci.MediaTypeImageManifest,
		ArtifactType: Type, Layers: []oci.Descriptor{},
		Config: oci.Descriptor{MediaType: ConfigType, Digest: digest.FromBytes(config), Size: int64(len(config))}}
	for _, b := range blobs {
		out.Layers = append(out.Layers, oci.Descriptor{MediaType: FileType, Digest: b.Digest, Size: b.Size,
			Annotations: map[string]string{annotationFile: b.Part.Name,
				annotationIndexBytes:  strconv.FormatInt(b.IndexBytes, 10),
				annotationIndexDigest: b.IndexDigest.String()}})
	}
	manifest, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	return Parse(manifest, config) // checks the result, so that a mistake here does not reach a reader
}

// ConfigOf returns the descriptor of the configuration that Parse needs. The parameter manifest is
// an OCI manifest.
func ConfigOf(manifest []byte) (d oci.Descriptor, err error) {
	m, err := parseManifest(manifest)
	if err != nil {
		return d, err
	}
	return m.Config, nil
}

// Parse decodes and checks an OCI manifest and the configuration that it names.
func Parse(manifest, config []byte) (*Artifact, error) {
	m, err := parseManifest(manifest)
	if err != nil {
		return nil, err
	}
	if int64(len(config)) != m.Config.Size || digest.FromBytes(config) != m.Config.Digest {
		return nil, invalid("the configuration is not that of the manifest")
	}
	s, err := snapshot.ParseManifest(config)
	if err == nil {
		err = checkPortable(s)
	}
	if err != nil {
		return nil, &Error{err}
	}
	if len(s.Volumes) > 0 {
		return nil, invalid("its snapshot includes volumes, which this forkd cannot import")
	}
	parts := Parts(s)
	if len(m.Layers) != len(parts) {
		return nil, invalid("it has %d blobs, and the snapshot has %d files", len(m.Layers), len(parts))
	}
	a := &Artifact{Manifest: manifest, Config: config, Snapshot: s}
	for i := range parts {
		b, err := blobOf(&m.Layers[i], parts[i])
		if err != nil {
			return nil, invalid("%s: %w", parts[i].Name, err)
		}
		a.Blobs = append(a.Blobs, b)
	}
	return a, nil
}

// parseManifest decodes and checks a manifest. Its errors quote no field: a registry can lead the
// daemon to another server, whose answer the client must not see.
func parseManifest(p []byte) (*oci.Manifest, error) {
	if len(p) > MaxManifest {
		return nil, invalid("a manifest of %d bytes: at most %d", len(p), MaxManifest)
	}
	m := new(oci.Manifest)
	if err := json.NewDecoder(bytes.NewReader(p)).Decode(m); err != nil {
		return nil, &Error{err}
	}
	if m.ArtifactType != Type || m.Config.MediaType != ConfigType {
		return nil, invalid("its type is not %s: it is another kind of artifact, such as a container image", Type)
	}
	if m.SchemaVersion != 2 || m.MediaType != oci.MediaTypeImageManifest {
		return nil, invalid("want schema version 2 and media type %s", oci.MediaTypeImageManifest)
	}
	if m.Config.Size < 1 || m.Config.Size > snapshot.MaxManifest {
		return nil, invalid("a configuration of %d bytes: at most %d", m.Config.Size, snapshot.MaxManifest)
	}
	return m, checkDigest(m.Config.Digest)
}

// blobOf checks the descriptor of the blob for a part.
func blobOf(d *oci.Descriptor, p Part) (b Blob, err error) {
	b = Blob{Part: p, Digest: d.Digest, Size: d.Size, IndexDigest: digest.Digest(d.Annotations[annotationIndexDigest])}
	if name := d.Annotations[annotationFile]; name != p.Name || d.MediaType != FileType {
		return b, errors.New("the blob in its place has another name or type")
	}
	if err := errors.Join(checkDigest(b.Digest), checkDigest(b.IndexDigest)); err != nil {
		return b, err
	}
	if b.IndexBytes, err = strconv.ParseInt(d.Annotations[annotationIndexBytes], 10, 64); err != nil {
		return b, errors.New("length of the index: want a number")
	}
	if b.IndexBytes < minIndex || b.IndexBytes > maxIndex || b.Size < b.IndexBytes || b.Size > maxBlob(p.Bytes) {
		return b, fmt.Errorf("a blob of %d bytes with an index of %d, for a file of %d", b.Size, b.IndexBytes, p.Bytes)
	}
	return b, nil
}

// maxBlob returns the maximum size of a blob for a file of n bytes. Incompressible data grows a little.
func maxBlob(n uint64) int64 {
	const slack = 1 << 20
	if n > math.MaxInt64/2 {
		return math.MaxInt64
	}
	return int64(n + n/4 + slack)
}

// checkDigest returns an error unless d is a SHA-256. The hexadecimal part of a SHA-256 is a safe
// file name.
func checkDigest(d digest.Digest) error {
	if err := d.Validate(); err != nil || d.Algorithm() != digest.SHA256 {
		return invalid("digest: want sha256 and 64 hexadecimal digits")
	}
	return nil
}
