package v1

// CachedImage is an item of the daemon's image cache. If an image was removed, the next build that
// needs it makes it again.
type CachedImage struct {
	Kind   string `json:"kind"`             // "image", or "leftover" of a killed build
	Dir    string `json:"dir"`              // path on the daemon's host
	Detail string `json:"detail,omitempty"` // name of the image from which the item was first made
	Bytes  int64  `json:"bytes"`            // disk usage, including files with hard links elsewhere
	UsedAt int64  `json:"used_at_unix"`     // time of the last build that used it
	InUse  bool   `json:"in_use"`           // the disk of a snapshot is based on this item
}

// PrunedImages lists the items that were removed from the daemon's image cache.
type PrunedImages struct {
	Removed []CachedImage `json:"removed"`
	DryRun  bool          `json:"dry_run,omitempty"` // nothing was removed
}
