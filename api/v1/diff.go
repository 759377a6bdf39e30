package v1

// DiffRequest asks for the differences between two snapshots or sandboxes.
type DiffRequest struct {
	// Tag of a snapshot, or id of a sandbox. If from is empty, it is the snapshot that the sandbox to runs
	// from.
	From string `json:"from,omitempty"`
	To   string `json:"to"`

	Path          string `json:"path,omitempty"`            // absolute; compare only this file or directory
	Patch         *bool  `json:"patch,omitempty"`           // send patches of text files; absent: true
	MaxFiles      *int   `json:"max_files,omitempty"`       // further files are only counted; absent: 10,000
	MaxPatchBytes *int   `json:"max_patch_bytes,omitempty"` // of all patches; absent: 1 MiB
}

// Diff has the differences between two snapshots or sandboxes.
type Diff struct {
	From  string     `json:"from"`
	To    string     `json:"to"`
	Files []DiffFile `json:"files"` // in the order of their paths

	// Numbers of all files that differ, whether Files has them or not.
	Added   uint64 `json:"added"`
	Changed uint64 `json:"changed"`
	Deleted uint64 `json:"deleted"`

	LinesAdded   uint64 `json:"lines_added"` // of text in Files
	LinesDeleted uint64 `json:"lines_deleted"`
	Omitted      uint64 `json:"omitted,omitempty"` // number of files that differ and are not in Files
	Skipped      uint64 `json:"skipped,omitempty"` // number of files that could not be compared

	// Bytes of memory that the guests have at different places; nil if one side has no memory.
	MemoryBytes *uint64 `json:"memory_bytes,omitempty"`
	DiffMS      float64 `json:"diff_ms"`
}

// DiffFile is a path at which the two sides differ.
type DiffFile struct {
	Path       string `json:"path"`                  // bytes that are not UTF-8 are replaced by U+FFFD
	PathBase64 string `json:"path_base64,omitempty"` // the path, if it is not UTF-8
	Change     string `json:"change"`                // "added", "changed" or "deleted"

	Old *DiffNode `json:"old,omitempty"` // nil: added
	New *DiffNode `json:"new,omitempty"` // nil: deleted

	Content bool     `json:"content,omitempty"` // the bytes, the link's target or the type differ
	Xattrs  []string `json:"xattrs,omitempty"`  // names of the extended attributes that differ

	LinesAdded   uint32 `json:"lines_added,omitempty"`
	LinesDeleted uint32 `json:"lines_deleted,omitempty"`
	Patch        string `json:"patch,omitempty"` // a part of a patch for git apply, which refuses paths in .git

	// Why there is no patch of the content: "binary", "large" or "limit".
	PatchOmitted string `json:"patch_omitted,omitempty"`
}

// DiffNode is a file on one of the sides.
type DiffNode struct {
	Type   string `json:"type"` // file, dir, symlink, char, block, fifo or socket
	Mode   uint32 `json:"mode"` // permission bits
	UID    uint32 `json:"uid"`
	GID    uint32 `json:"gid"`
	Size   uint64 `json:"size"`
	Target string `json:"target,omitempty"` // of a symbolic link
}
