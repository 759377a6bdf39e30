package v1

// Volume is a named disk that outlives sandboxes.
type Volume struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Owner     string            `json:"owner,omitempty"` // client that created it; empty if that client has a label prefix
	SizeBytes uint64            `json:"size_bytes"`
	DiskBytes uint64            `json:"disk_bytes"`       // bytes on the disk of the daemon's host
	Writer    string            `json:"writer,omitempty"` // id of the sandbox that writes to it
	Labels    map[string]string `json:"labels,omitempty"`
	CreatedAt int64             `json:"created_at_unix"`
}

// VolumeSnapshotRequest requests a volume with the content and the size of another volume.
type VolumeSnapshotRequest struct {
	Name   string            `json:"name"` // name of the new volume
	Labels map[string]string `json:"labels,omitempty"`
}

// VolumeRequest requests a volume.
type VolumeRequest struct {
	Name    string            `json:"name"`
	SizeMiB uint64            `json:"size_mib,omitempty"` // 0 means 1024 MiB
	Labels  map[string]string `json:"labels,omitempty"`
}

// VolumeMount is a volume that a sandbox mounts.
type VolumeMount struct {
	Name string `json:"name"`
	Path string `json:"path"`           // absolute path in the guest
	Mode string `json:"mode,omitempty"` // "ro" or "copy"; empty: the sandbox writes to the volume
}
