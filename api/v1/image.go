package v1

// CachedBlob is the Kind of a compressed file that belongs to a snapshot. The daemon keeps such
// files for pushes and pulls.
const CachedBlob = "blob"

// CachedImage is an item of the daemon's caches. If an image was removed, the next build that needs
// it makes it again. If a blob was removed, the next push or pull makes or fetches it again.
type CachedImage struct {
	Kind   string `json:"kind"`             // "image", "leftover" of a killed build, or CachedBlob
	Dir    string `json:"dir"`              // path on the daemon's host
	Detail string `json:"detail,omitempty"` // image that it was first made from; for a blob: name of the file
	Bytes  int64  `json:"bytes"`            // disk usage, including files with hard links elsewhere
	UsedAt int64  `json:"used_at_unix"`     // time of its last use
	InUse  bool   `json:"in_use"`           // the disk of a snapshot is based on this item
}

// PrunedImages lists the items that were removed from the daemon's caches.
type PrunedImages struct {
	Removed []CachedImage `json:"removed"`
	DryRun  bool          `json:"dry_run,omitempty"` // nothing was removed
}
