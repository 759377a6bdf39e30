package snapshot

import "slices"

// DiskLayers returns the disk layers of a snapshot, which may have no disk.
func (m *Manifest) DiskLayers() []File {
	if m.Disk == nil {
		return nil
	}
	return m.Disk.Layers
}

// VolumeFiles returns the files of all volumes of a snapshot. Files that several volumes share are in
// the result several times.
func (m *Manifest) VolumeFiles() (files []File) {
	for _, v := range m.Volumes {
		files = append(files, v.Files...)
	}
	return files
}

// Bases returns the files that the manifest names by their digests. It returns nil if m is nil.
func (m *Manifest) Bases() (bases []Base) {
	if m != nil && m.Disk != nil {
		bases = append(bases, m.Disk.Base)
	}
	if m != nil && m.Boot != nil {
		bases = append(bases, m.Boot.Kernel, m.Boot.Initrd)
	}
	return bases
}

// HasMemory reports whether the snapshot has the memory layer of the given owner.
func (m *Manifest) HasMemory(owner string) bool {
	return slices.ContainsFunc(m.Memory, func(l File) bool { return l.Owner == owner })
}

// MemorySizes returns the lengths of the memory layers in bytes, base first.
func (m *Manifest) MemorySizes() []uint64 {
	sizes := make([]uint64, len(m.Memory))
	for i, l := range m.Memory {
		sizes[i] = l.Bytes
	}
	return sizes
}

// Sealed reports whether the manifest contains all digests.
func (m *Manifest) Sealed() bool {
	if !m.DiskOnly() && (m.State.Digest == "" || m.Map.Digest == "") {
		return false
	}
	return !slices.ContainsFunc(slices.Concat(m.Memory, m.DiskLayers(), m.VolumeFiles()),
		func(f File) bool { return f.Digest == "" })
}
