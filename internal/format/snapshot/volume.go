package snapshot

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/forkd/forkd/internal/proto/vm"
)

// maxVolumePath bounds the path of a volume in the guest, in bytes.
const maxVolumePath = 4096

// checkVolumes checks the volumes. A disk-only snapshot has none, because a machine that boots from
// its disk mounts none.
func (m *Manifest) checkVolumes() error {
	switch n := len(m.Volumes); {
	case n == 0:
		return nil
	case m.DiskOnly() || m.Disk == nil:
		return errors.New("volumes: a snapshot without memory or without a disk has none")
	case n > int(m.Machine.VolumeSlots):
		return fmt.Errorf("volumes: %d for %d volume slots", n, m.Machine.VolumeSlots)
	}
	for i := range m.Volumes {
		v := &m.Volumes[i]
		if err := v.check(); err != nil {
			return fmt.Errorf("volumes[%d]: %w", i, err)
		}
		switch {
		case !v.Free:
		case m.Version < 7:
			return fmt.Errorf("volumes[%d]: free: version %d has no such field", i, m.Version)
		case i == len(m.Volumes)-1:
			return fmt.Errorf("volumes[%d]: free: want a volume in a later slot", i)
		}
	}
	return nil
}

func (v *Volume) check() error {
	if v.Free {
		if v.ID != "" || v.Name != "" || v.Path != "" || v.ReadOnly || v.SizeBytes != 0 || v.Files != nil {
			return errors.New("free: want no other field")
		}
		return nil
	}
	own, isVolume := strings.CutPrefix(v.ID, VolumeID)
	switch {
	case !isVolume:
		return fmt.Errorf("id %.70q: want %s and an id", v.ID, VolumeID)
	case v.SizeBytes == 0 || v.SizeBytes > vm.MaxVolumeBytes:
		return fmt.Errorf("size_bytes %d: want 1 to %d", v.SizeBytes, uint64(vm.MaxVolumeBytes))
	case !path.IsAbs(v.Path) || path.Clean(v.Path) != v.Path || len(v.Path) > maxVolumePath ||
		strings.Contains(v.Path, "\x00"):
		return fmt.Errorf("path %.70q: want a clean absolute path", v.Path)
	case len(v.Files) == 0 || len(v.Files) > MaxChain:
		return fmt.Errorf("%d files: want 1 to %d", len(v.Files), MaxChain)
	case v.Files[0].Owner != own || v.Files[0].Bytes != v.SizeBytes:
		return fmt.Errorf("base image of %d bytes, with owner %.70q: want %d bytes and owner %q", v.Files[0].Bytes,
			v.Files[0].Owner, v.SizeBytes, own)
	}
	if err := CheckTag(v.Name); err != nil {
		return fmt.Errorf("name: %w", err)
	}
	owners := make(map[string]bool, len(v.Files))
	for i, f := range v.Files {
		if owners[f.Owner] {
			return fmt.Errorf("file %d: owner %q appears twice", i, f.Owner)
		}
		owners[f.Owner] = true
		if f.Bytes > maxDiskLayer(v.SizeBytes) {
			return fmt.Errorf("file %d: %d bytes, at most %d", i, f.Bytes, maxDiskLayer(v.SizeBytes))
		}
		if err := f.check(); err != nil {
			return fmt.Errorf("file %d: %w", i, err)
		}
	}
	return nil
}
