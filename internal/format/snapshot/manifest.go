// Package snapshot is the format of snapshots: manifests, memory maps, digests, tags, and the rules
// for a snapshot's references to its parents.
//
// It encodes, decodes and checks. Package store decides where files are stored, when they are
// flushed, and which of them stay in RAM.
package snapshot

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/proto/vm"
)

// Format and Version are the first fields of every manifest. Version changes whenever the meaning
// of a snapshot's files changes. A reader refuses versions that it does not know. Manifests of the
// oldest version that it reads have no root, no default user and no default directory. Manifests
// before version 7 have no free volume slots.
const (
	Format  = "forkd-snapshot"
	Version = 7
	oldest  = 5
)

// The files of a snapshot directory.
const (
	ManifestFile    = "manifest.json"
	MemoryMapFile   = "memory.map"   // extents over the memory layers of the whole chain
	MemoryLayerFile = "memory.layer" // the pages that this snapshot adds
	StateFile       = "vmstate"      // vCPU and device state, in the VMM's own versioned format
	DiskLayerFile   = "disk.layer"   // the clusters that this snapshot adds
	VolumeFile      = "volume"       // begins the names of the files of volumes, see Volume
)

// LayerFile returns the file name of a layer in the directory of the snapshot with the given id. If
// the snapshot owns the layer, the name is unchanged. Otherwise the name contains the owner's id.
func LayerFile(name, id, owner string) string {
	if owner == id {
		return name
	}
	return name + "." + owner
}

// PortableName returns a name for a file in the directory of the snapshot with the given id. All
// snapshots that have a layer get the same name for it.
func PortableName(file, id string) string {
	for _, kind := range []string{MemoryLayerFile, DiskLayerFile} {
		if owner, ok := strings.CutPrefix(file, kind+"."); ok {
			return kind + " " + owner
		}
	}
	return file + " " + id
}

// Bounds on a manifest. They limit the memory and the time that a hostile manifest can cost its
// reader.
const (
	MaxManifest = 1 << 20 // bytes of manifest.json
	MaxChain    = 64      // layers of one snapshot
	maxEnv      = 256     // environment variables of a request
	maxGuestEnv = 4096    // environment variables of a guest: variables of a build and of its base
	maxName     = 4096    // bytes of the default user or directory
)

// Manifest describes a snapshot: the saved machine, and the files of the snapshot. It contains no
// paths, because the files have fixed names in the snapshot's directory, and a digest identifies
// the base image.
type Manifest struct {
	Format  string    `json:"format"`
	Version int       `json:"version"`
	ID      string    `json:"id"` // random, see NewID; a layer names its owner by this ID
	Tag     string    `json:"tag"`
	Created time.Time `json:"created"`
	Parent  *Ref      `json:"parent,omitempty"` // the snapshot below the topmost layers
	// ID of the ancestor that was taken of a booted VM, and from which this snapshot descends by
	// branches; empty if this snapshot was itself taken of a booted VM, or if its version is 5
	Root string `json:"root,omitempty"`

	Machine Machine `json:"machine"`
	Guest   Guest   `json:"guest"`

	// A disk-only snapshot lacks State and Memory, see DiskOnly.
	State  File   `json:"state,omitzero"`
	Map    File   `json:"memory_map,omitzero"`
	Memory []File `json:"memory_layers,omitempty"` // base first; the last layer is this snapshot's own

	Disk *Disk `json:"disk,omitempty"`
	Boot *Boot `json:"boot,omitempty"` // the files that the parent booted from; nil: unknown

	// The disks in the first volume slots. An older manifest has none.
	Volumes []Volume `json:"volumes,omitempty"`

	Branch    *Branch `json:"branch,omitempty"`    // nil unless it was branched from a running sandbox
	Transient bool    `json:"transient,omitempty"` // deleted with the last sandbox that needs it

	// Checksum is the hexadecimal SHA-256 of this manifest's encoding with an empty checksum.
	Checksum string `json:"checksum"`
}

// Ref names a snapshot. The ID identifies the snapshot; the tag only makes messages readable.
type Ref struct {
	ID  string `json:"id"`
	Tag string `json:"tag"`
}

// Ref returns the ID and the tag of the snapshot.
func (m *Manifest) Ref() *Ref { return &Ref{ID: m.ID, Tag: m.Tag} }

// Machine is the shape of the VM, and the properties that the saved state depends on.
type Machine struct {
	MemoryBytes uint64 `json:"memory_bytes"`
	VCPUs       uint32 `json:"vcpus"`
	Template    string `json:"cpu_template"`
	Accel       string `json:"accel"` // accelerator that the saved VM ran on: "kvm", or "tcg" on an emulated host
	// number of disks after the root disk that are volume slots; an older manifest has none
	VolumeSlots uint32 `json:"volume_slots,omitempty"`
}

// Shape returns the shape of a VM for the snapshot's state.
func (m *Machine) Shape() vm.Shape {
	return vm.Shape{MemoryBytes: m.MemoryBytes, VCPUs: m.VCPUs, Template: m.Template}
}

// Guest holds what the guest's agent reported about the guest, and the properties that forks
// inherit.
type Guest struct {
	Kernel   string   `json:"kernel"` // uname -r
	Warm     []string `json:"warm,omitempty"`
	Hostname string   `json:"hostname"` // host name of the parent; forks get their own
	Defaults
	Network *Network  `json:"network,omitempty"` // nil: the default at the time of a fork
	Limits  vm.Limits `json:"limits,omitzero"`   // default for forks
	Hooks   Hooks     `json:"hooks,omitzero"`    // default for forks; an older manifest has none
	// whether forks that repeat random numbers are refused by default
	Strict bool `json:"unique_strict,omitempty"`
}

// Defaults holds properties of processes, for requests that do not set them. The agent in the
// memory of a snapshot already has them. A machine that boots from a snapshot's disk receives them
// from the manifest.
type Defaults struct {
	Env  map[string]string `json:"env,omitempty"`
	User string            `json:"user,omitempty"`    // account in the guest; empty: the agent's default
	Dir  string            `json:"workdir,omitempty"` // empty: the account's home
}

// With returns a copy of d with changes. Each nonempty field of the argument replaces the field of
// d, and each variable of the argument replaces the variable of d with the same name.
func (d Defaults) With(more Defaults) Defaults {
	if len(more.Env) > 0 {
		env := make(map[string]string, len(d.Env)+len(more.Env))
		maps.Copy(env, d.Env)
		maps.Copy(env, more.Env)
		d.Env = env
	}
	d.User, d.Dir = cmp.Or(more.User, d.User), cmp.Or(more.Dir, d.Dir)
	return d
}

// Branch describes how a snapshot was taken from a running sandbox.
type Branch struct {
	SandboxID string `json:"sandbox_id"`
	Mode      string `json:"mode"`
	Template  bool   `json:"template,omitempty"` // the sandbox existed only to build a template
	Fallback  string `json:"fallback,omitempty"` // why the mode differs from the requested one
	Pause     Micros `json:"pause_us"`           // time for which the sandbox was stopped
	// length of a second pause, which is needed if the sandbox writes faster than its memory is
	// copied
	Stop       Micros `json:"stop_us,omitempty"`
	Ready      Micros `json:"ready_us"`    // time from the request until children could start
	DirtyBytes uint64 `json:"dirty_bytes"` // bytes of memory that the sandbox had written
	// number of pages that were copied early, because the sandbox was about to write them
	Faults uint64 `json:"faults,omitempty"`

	// the snapshot that the sandbox was at before the branch; nil: the parent of this snapshot
	After  *Ref              `json:"after,omitempty"`
	Labels map[string]string `json:"labels,omitempty"` // labels in the request
}

// Micros is a duration that a manifest stores in whole microseconds.
type Micros time.Duration

// MarshalJSON writes the microseconds.
func (m Micros) MarshalJSON() ([]byte, error) {
	return strconv.AppendInt(nil, time.Duration(m).Microseconds(), 10), nil
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (m *Micros) UnmarshalJSON(p []byte) error {
	us, err := strconv.ParseUint(string(p), 10, 64)
	if err != nil || us > math.MaxInt64/uint64(time.Microsecond) {
		return fmt.Errorf("%s: want a duration in microseconds", p)
	}
	*m = Micros(time.Duration(us) * time.Microsecond)
	return nil
}

// File is one file of a snapshot.
type File struct {
	Owner  string `json:"owner"` // ID of the snapshot that wrote the file
	Bytes  uint64 `json:"bytes"`
	Digest string `json:"digest,omitempty"` // see Digester; empty until it is computed in the background
}

// Disk is the root disk: an immutable base image and the layers over it.
type Disk struct {
	SizeBytes uint64 `json:"size_bytes"`
	Base      Base   `json:"base"`
	Layers    []File `json:"layers"` // base first; the last layer is this snapshot's own
}

// Volume is a volume that the guest has mounted, with its content at the instant of the snapshot. The
// snapshot's directory has links to the volume's files.
type Volume struct {
	Free      bool   `json:"free,omitempty"` // the slot has no volume, and all other fields are absent
	ID        string `json:"id,omitempty"`   // VolumeID and an ID
	Name      string `json:"name,omitempty"`
	Path      string `json:"path,omitempty"` // where the guest has mounted it
	ReadOnly  bool   `json:"read_only,omitempty"`
	SizeBytes uint64 `json:"size_bytes,omitempty"`
	// The base image and the layers, base first. The owner of the base image is the ID of the
	// volume without the prefix VolumeID; the owner of a layer is the layer's own ID.
	Files []File `json:"files,omitempty"`
}

// VolumeID begins the IDs of volumes.
const VolumeID = "vol-"

// Boot names the files from which a machine with the snapshot's disk boots. Both files are outside
// the snapshot, like the base image.
type Boot struct {
	Kernel Base `json:"kernel"`
	Initrd Base `json:"initrd"` // contains the agent and the kernel's modules
}

// DiskOnly reports whether the snapshot has a disk and no memory. Such a snapshot cannot be
// restored. Instead, a new machine boots from its disk.
func (m *Manifest) DiskOnly() bool { return len(m.Memory) == 0 }

// Base is an immutable file outside the snapshot: a boot file, or the raw disk image below all
// layers. The store finds the host's file with this digest.
type Base struct {
	Bytes  uint64 `json:"bytes"`
	Digest string `json:"digest"` // see Digester; always present
}

// Encode returns the bytes of manifest.json and sets m.Checksum. It refuses a manifest that Parse
// would refuse.
func (m *Manifest) Encode() ([]byte, error) {
	m.Format, m.Version = Format, Version
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	sum, err := m.sum()
	if err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	m.Checksum = sum
	p, err := m.marshal()
	if err == nil && len(p) > MaxManifest {
		err = fmt.Errorf("encode manifest: %d bytes: more than %d; give it a smaller environment", len(p), MaxManifest)
	}
	return p, err
}

func (m *Manifest) marshal() ([]byte, error) {
	p, err := json.MarshalIndent(m, "", "  ")
	return append(p, '\n'), err
}

// sum returns the Checksum that m must have.
func (m *Manifest) sum() (string, error) {
	p, err := m.marshal()
	return sumOf(p, m.Checksum), err
}

// sumOf returns the Checksum that a manifest must have. The parameter p is the result of marshal,
// and checksum is the Checksum that p contains. To encode the manifest again without the checksum
// would take as long as the rest of ParseManifest. Only a line with a field of the manifest itself
// begins with exactly two spaces: the lines of inner fields begin with more spaces, and text has no
// line breaks.
func sumOf(p []byte, checksum string) string {
	const field = "\n  \"checksum\": \""
	bare := bytes.Replace(p, []byte(field+checksum+`"`), []byte(field+`"`), 1)
	sum := sha256.Sum256(bare)
	return hex.EncodeToString(sum[:])
}

// ParseManifest decodes and checks the bytes of manifest.json. It accepts only bytes that Encode
// writes, because any other content is damaged or was edited by hand.
func ParseManifest(p []byte) (*Manifest, error) {
	if len(p) > MaxManifest {
		return nil, fmt.Errorf("manifest of %d bytes: more than %d", len(p), MaxManifest)
	}
	var head struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(p, &head); err != nil {
		return nil, fmt.Errorf("manifest is not valid JSON (truncated or damaged): %w", err)
	}
	if head.Format != Format {
		return nil, fmt.Errorf("manifest format %q: not a forkd snapshot (want %q)", head.Format, Format)
	}
	if head.Version < oldest || head.Version > Version {
		return nil, fmt.Errorf("manifest version %d: this forkd reads versions %d to %d; bake the snapshot again or use the forkd that wrote it",
			head.Version, oldest, Version)
	}
	m := new(Manifest)
	dec := json.NewDecoder(bytes.NewReader(p))
	dec.DisallowUnknownFields()
	if err := dec.Decode(m); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	again, err := m.marshal()
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	if sum := sumOf(again, m.Checksum); sum != m.Checksum {
		return nil, fmt.Errorf("manifest checksum %.16q: the content has %.16q: the file is damaged", m.Checksum, sum)
	}
	if !bytes.Equal(again, p) {
		return nil, fmt.Errorf("manifest is not in canonical form: the file is damaged")
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	return m, nil
}
