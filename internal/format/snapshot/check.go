package snapshot

import (
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/forkd/forkd/internal/proto/vm"
)

// idBytes is the number of random bytes in an ID: 128 bits cannot be guessed and do not collide.
const idBytes = 16

// idEncoding encodes IDs in lower-case letters and digits, which are safe in file names, host names
// and URLs.
func idEncoding() *base32.Encoding {
	return base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
}

// NewID returns a new random identifier: 26 characters of [a-z2-7] with 128 bits of entropy.
func NewID() string {
	var p [idBytes]byte
	rand.Read(p[:]) // never fails: crypto/rand crashes the process instead
	return idEncoding().EncodeToString(p[:])
}

// CheckID returns an error unless id is an identifier that NewID can return.
func CheckID(id string) error {
	p, err := idEncoding().DecodeString(id)
	if err != nil || len(p) != idBytes || idEncoding().EncodeToString(p) != id {
		return fmt.Errorf("id %q: not a forkd id", id)
	}
	return nil
}

// Bounds on the labels of a branch.
const (
	maxLabels     = 64
	maxLabelBytes = 4 << 10 // sum over names and values
)

// check reports the first rule that b violates. A nil b is valid: its snapshot is not a branch.
func (b *Branch) check() error {
	if b == nil {
		return nil
	}
	if b.After != nil {
		if err := errors.Join(CheckID(b.After.ID), CheckTag(b.After.Tag)); err != nil {
			return fmt.Errorf("after: %w", err)
		}
	}
	total := 0
	for name, value := range b.Labels {
		total += len(name) + len(value)
		if name == "" || !utf8.ValidString(name) || !utf8.ValidString(value) {
			return fmt.Errorf("labels: %.70q: want a name, and text", name)
		}
	}
	if len(b.Labels) > maxLabels || total > maxLabelBytes {
		return fmt.Errorf("labels: %d of %d bytes: want at most %d of %d bytes", len(b.Labels), total, maxLabels,
			maxLabelBytes)
	}
	return nil
}

// check reports the first rule that the manifest violates.
func (m *Manifest) check() error {
	if err := CheckID(m.ID); err != nil {
		return err
	}
	if err := CheckTag(m.Tag); err != nil {
		return err
	}
	if m.Parent != nil {
		if err := errors.Join(CheckID(m.Parent.ID), CheckTag(m.Parent.Tag)); err != nil {
			return fmt.Errorf("parent: %w", err)
		}
		if m.Parent.ID == m.ID {
			return errors.New("parent: the snapshot itself")
		}
	}
	switch err := CheckID(m.Root); {
	case m.Root == "":
	case m.Version == oldest:
		return fmt.Errorf("root: version %d has no such field", m.Version)
	case err != nil:
		return fmt.Errorf("root: %w", err)
	case m.Branch == nil:
		return errors.New("root: the snapshot is not a branch")
	}
	if err := m.Machine.check(); err != nil {
		return fmt.Errorf("machine: %w", err)
	}
	if err := m.Guest.Defaults.check(m.Version); err != nil {
		return fmt.Errorf("guest: %w", err)
	}
	if m.Guest.Network != nil {
		if err := m.Guest.Network.Check(); err != nil {
			return fmt.Errorf("guest: network: %w", err)
		}
	}
	if err := m.Guest.Limits.Check(); err != nil {
		return fmt.Errorf("guest: limits: %w", err)
	}
	if err := m.Guest.Hooks.Check(); err != nil {
		return fmt.Errorf("guest: hooks: %w", err)
	}
	if err := m.Branch.check(); err != nil {
		return fmt.Errorf("branch: %w", err)
	}
	if err := m.checkMemory(); err != nil {
		return err
	}
	if m.Boot != nil {
		if err := errors.Join(m.Boot.Kernel.check(), m.Boot.Initrd.check()); err != nil {
			return fmt.Errorf("boot: %w", err)
		}
	}
	if err := m.checkVolumes(); err != nil {
		return err
	}
	if m.Disk == nil {
		return nil
	}
	if err := m.Disk.check(m.ID, m.Parent != nil); err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	return nil
}

// checkMemory checks the memory and state files. A disk-only snapshot must have none.
func (m *Manifest) checkMemory() error {
	if m.DiskOnly() {
		switch {
		case m.State != File{} || m.Map != File{}:
			return errors.New("memory_layers: none, but there is a state or a memory_map")
		case m.Disk == nil:
			return errors.New("neither memory_layers nor a disk")
		case m.Boot == nil:
			return errors.New("boot: a snapshot without memory_layers needs it")
		}
		return nil
	}
	if err := errors.Join(m.State.checkOwn(m.ID), m.Map.checkOwn(m.ID)); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	if m.State.Bytes > vm.MaxStateBytes {
		return fmt.Errorf("state: %d bytes, at most %d", m.State.Bytes, vm.MaxStateBytes)
	}
	if err := checkChain(m.Memory, m.ID, m.Parent != nil, m.Machine.MemoryBytes); err != nil {
		return fmt.Errorf("memory_layers: %w", err)
	}
	return nil
}

// check returns an error unless b has a digest and a size.
func (b *Base) check() error {
	if b.Bytes == 0 || b.Digest == "" {
		return errors.New("a file without length or digest")
	}
	return checkDigest(b.Digest)
}

func (m *Machine) check() error {
	switch {
	case m.MemoryBytes == 0 || m.MemoryBytes%vm.PageSize != 0 || m.MemoryBytes > vm.MaxMemoryBytes:
		return fmt.Errorf("memory_bytes %d: want whole pages, at most %d", m.MemoryBytes, uint64(vm.MaxMemoryBytes))
	case m.VCPUs == 0 || m.VCPUs > vm.MaxVCPUs:
		return fmt.Errorf("vcpus %d: want 1 to %d", m.VCPUs, vm.MaxVCPUs)
	case m.Template == "":
		return errors.New("cpu_template is empty")
	case m.VolumeSlots > vm.MaxVolumeSlots:
		return fmt.Errorf("volume_slots %d: want at most %d", m.VolumeSlots, vm.MaxVolumeSlots)
	}
	return nil
}

// check checks the defaults in a manifest of the given version.
func (d *Defaults) check(version int) error {
	for _, f := range []struct{ name, value string }{{"user", d.User}, {"workdir", d.Dir}} {
		switch {
		case f.value != "" && version == oldest:
			return fmt.Errorf("%s: version %d has no such field", f.name, version)
		case len(f.value) > maxName:
			return fmt.Errorf("%s: %d bytes: want at most %d", f.name, len(f.value), maxName)
		case !utf8.ValidString(f.value) || strings.Contains(f.value, "\x00"):
			return fmt.Errorf("%s: %.70q: want UTF-8 without zero bytes", f.name, f.value)
		}
	}
	if version == oldest {
		return CheckEnv(d.Env)
	}
	return checkEnv(d.Env, maxGuestEnv)
}

// CheckEnv checks that env can be the environment of a request: at most 256 variables of UTF-8 text,
// names not empty and without '=', no zero bytes.
func CheckEnv(env map[string]string) error { return checkEnv(env, maxEnv) }

func checkEnv(env map[string]string, most int) error {
	if len(env) > most {
		return fmt.Errorf("env has %d variables: at most %d", len(env), most)
	}
	for name, value := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return fmt.Errorf("env %q: want a name without '=' and no zero bytes", name)
		}
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return fmt.Errorf("env %q: not UTF-8", name)
		}
	}
	return nil
}

func (d *Disk) check(id string, branched bool) error {
	switch {
	case d.SizeBytes == 0 || d.SizeBytes < d.Base.Bytes:
		return fmt.Errorf("size_bytes %d: smaller than the base image of %d", d.SizeBytes, d.Base.Bytes)
	case d.Base.Digest == "":
		return errors.New("base: no digest")
	}
	if err := checkDigest(d.Base.Digest); err != nil {
		return fmt.Errorf("base: %w", err)
	}
	if err := checkChain(d.Layers, id, branched, maxDiskLayer(d.SizeBytes)); err != nil {
		return fmt.Errorf("layers: %w", err)
	}
	return nil
}

// maxDiskLayer returns the maximum length of a layer file of a disk of the given size. The file has
// the data, one bit per cluster, and the footer, each in whole clusters (package disklayer).
func maxDiskLayer(size uint64) uint64 {
	const cluster = 4096
	return size + size/(8*cluster) + 3*cluster
}

// checkChain checks a list of layers. The last layer belongs to the snapshot with the given id, and
// the other layers to its ancestors. VMMs wrote the layers and are not trusted, so checkChain also
// checks that no layer is longer than the given number of bytes.
func checkChain(layers []File, id string, branched bool, most uint64) error {
	if len(layers) == 0 || len(layers) > MaxChain {
		return fmt.Errorf("%d layers: want 1 to %d", len(layers), MaxChain)
	}
	if len(layers) > 1 && !branched {
		return fmt.Errorf("%d layers in a snapshot without a parent", len(layers))
	}
	owners := make(map[string]bool, len(layers))
	for i, l := range layers {
		if owners[l.Owner] {
			return fmt.Errorf("layer %d: owner %q appears twice", i, l.Owner)
		}
		owners[l.Owner] = true
		if l.Bytes > most {
			return fmt.Errorf("layer %d: %d bytes, at most %d", i, l.Bytes, most)
		}
		if err := l.check(); err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
	}
	return layers[len(layers)-1].checkOwn(id)
}

func (f *File) check() error {
	if err := CheckID(f.Owner); err != nil {
		return fmt.Errorf("owner: %w", err)
	}
	return checkDigest(f.Digest)
}

// checkOwn checks a file that must belong to the snapshot with the given id, and not to an
// ancestor.
func (f *File) checkOwn(id string) error {
	if err := f.check(); err != nil {
		return err
	}
	if f.Owner != id {
		return fmt.Errorf("owner %q: want the snapshot's own id %q", f.Owner, id)
	}
	return nil
}

// Bounds on texts that a guest or another host has chosen. They must be short, because each list of
// snapshots contains them.
const (
	MaxName = 256 // bytes of one text
	maxWarm = 16  // number of languages
)

// CheckReport returns an error if the release of a guest's kernel, or the list of its languages
// with warm interpreters, is too long.
func CheckReport(kernel string, warm []string) error {
	if len(warm) > maxWarm {
		return fmt.Errorf("%d warm languages: at most %d", len(warm), maxWarm)
	}
	for _, name := range append([]string{kernel}, warm...) {
		if len(name) > MaxName {
			return fmt.Errorf("the kernel's release or a language has %d bytes: at most %d", len(name), MaxName)
		}
	}
	return nil
}
