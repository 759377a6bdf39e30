package v1

// CachedImage is an item of the daemon's image cache. A build makes a removed image again.
type CachedImage struct {
	Kind   string `json:"kind"`             // "image", or "leftover" of a killed build
	Dir    string `json:"dir"`              // on the daemon's host
	Detail string `json:"detail,omitempty"` // the image that it was first made from
	Bytes  int64  `json:"bytes"`            // on the disk; hard links from elsewhere count too
	UsedAt int64  `json:"used_at_unix"`     // time of the last build that used it
	InUse  bool   `json:"in_use"`           // the disk of a snapshot is based on it
}

// PrunedImages lists the items that were removed from the daemon's image cache.
type PrunedImages struct {
	Removed []CachedImage `json:"removed"`
	DryRun  bool          `json:"dry_run,omitempty"` // nothing was removed
}
