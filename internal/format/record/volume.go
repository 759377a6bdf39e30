package record

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Volume is the record of a volume. Its disk consists of a base image and layers.
type Volume struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Owner     string            `json:"owner"`
	Created   time.Time         `json:"created"`
	SizeBytes uint64            `json:"size_bytes"`
	Labels    map[string]string `json:"labels,omitempty"`

	Layers []string      `json:"layers,omitempty"` // files of the disk's immutable layers, oldest first
	Writer *VolumeWriter `json:"writer,omitempty"` // absent: no sandbox writes to the volume
}

// VolumeWriter is the sandbox that writes to a volume.
type VolumeWriter struct {
	SandboxID string `json:"sandbox_id"`
	Top       string `json:"top,omitempty"` // file that the sandbox's VM writes to; absent: there is no VM
	// Next is a new top that the VM may already write to instead of Top, during a branch or a
	// rollback. It is usually absent. The records of earlier versions of forkd do not have Next.
	Next string `json:"next,omitempty"`
	// Own has the layers that were tops of this writer until a branch. The writer's VM may have
	// damaged them. The list may also have names of layers that no longer exist, because they were
	// merged.
	Own []string `json:"own,omitempty"`
}

// volumeFile is the content of the record of a volume.
type volumeFile struct {
	Version int `json:"version"`
	Volume
}

// EncodeVolume returns the bytes of the record of a volume. It refuses a record that ParseVolume
// would refuse.
func EncodeVolume(v *Volume) ([]byte, error) {
	if f := v.check(); f != nil {
		return nil, f
	}
	return encode(volumeFile{Version, *v})
}

// ParseVolume decodes and checks the record of a volume. Errors are *Error with the given path. The
// file at this path is not opened.
func ParseVolume(path string, p []byte) (*Volume, error) {
	var now volumeFile
	var old struct{} // no forkd has written version 0
	if err := parse(path, p, &now, &old, func() {}); err != nil {
		return nil, err
	}
	if f := now.check(); f != nil {
		return nil, f.in(path)
	}
	return &now.Volume, nil
}

func (v *Volume) check() *fault {
	switch {
	case v.ID == "":
		return wrong("id", "empty: %s", otherForkd)
	case v.Name == "":
		return wrong("name", "empty: %s", otherForkd)
	case v.Owner == "":
		return wrong("owner", "empty: want the client whose quota the volume counts against; %s", otherForkd)
	case v.SizeBytes == 0:
		return wrong("size_bytes", "0: want the size of the volume; %s", otherForkd)
	}
	w := v.Writer
	if w == nil {
		w = &VolumeWriter{SandboxID: "none"}
	}
	if w.SandboxID == "" {
		return wrong("writer.sandbox_id", "empty: %s", otherForkd)
	}
	if w.Next != "" && w.Top == "" {
		return wrong("writer.next", "%.100q without a top: %s", w.Next, otherForkd)
	}
	seen := map[string]bool{}
	for _, f := range v.Files() {
		if seen[f] || f == "" || strings.HasPrefix(f, ".") || strings.ContainsAny(f, "/\x00") {
			return wrong("layers", "%.100q: want distinct file names that have no '/' and do not begin with '.'; %s", f,
				otherForkd)
		}
		seen[f] = true
	}
	return nil
}

// Files returns the files of all layers and of the tops, oldest first.
func (v *Volume) Files() []string { return append(slices.Clone(v.Layers), v.Tops()...) }

// Tops returns the files that the writer's VM may write to, oldest first.
func (v *Volume) Tops() (tops []string) {
	if v.Writer == nil {
		return nil
	}
	for _, top := range []string{v.Writer.Top, v.Writer.Next} {
		if top != "" {
			tops = append(tops, top)
		}
	}
	return tops
}

// Mount is a volume that a sandbox has mounted, or a free slot below the slot of another volume.
type Mount struct {
	Name string `json:"name"` // name of the volume
	Path string `json:"path"` // absolute path in the guest
	Mode string `json:"mode,omitempty"`
}

// Modes of a Mount.
const (
	MountWriter   = ""     // the sandbox writes to the volume
	MountReadOnly = "ro"   // the sandbox reads the content that the volume had at the time of the mount
	MountCopy     = "copy" // like MountReadOnly, but the sandbox may change its own copy of the content
	// MountFree is the mode of a slot without a volume. Such a Mount has no name and no path.
	MountFree = "free"
)

// IsFree reports whether m is a slot without a volume.
func (m *Mount) IsFree() bool { return m.Mode == MountFree }

func checkMounts(mounts []Mount) *fault {
	for i, m := range mounts {
		field := fmt.Sprintf("volumes[%d].", i)
		switch {
		case m.IsFree() && (m.Name != "" || m.Path != "" || i == len(mounts)-1):
			return wrong(field+"mode", "%q: want no name, no path, and a volume in a later slot; %s", MountFree, otherForkd)
		case m.IsFree():
		case m.Name == "":
			return wrong(field+"name", "empty: want the name of a volume; %s", otherForkd)
		case m.Path == "":
			return wrong(field+"path", "empty: want a path in the guest; %s", otherForkd)
		case m.Mode != MountWriter && m.Mode != MountReadOnly && m.Mode != MountCopy:
			return wrong(field+"mode", "%.70q: want no mode, %q or %q; %s", m.Mode, MountReadOnly, MountCopy, otherForkd)
		}
	}
	return nil
}
