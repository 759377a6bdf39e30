package v1

// DiffRequest asks for the differences between two snapshots or sandboxes.
type DiffRequest struct {
	// From and To are tags of snapshots or ids of sandboxes. If From is empty, To must be a
	// sandbox. The sandbox is then compared with the snapshot that it runs from.
	From string `json:"from,omitempty"`
	To   string `json:"to"`

	Path          string `json:"path,omitempty"`            // absolute path of the only file or directory to compare
	Patch         *bool  `json:"patch,omitempty"`           // send patches of text files; absent: true
	MaxFiles      *int   `json:"max_files,omitempty"`       // number of files to list; absent: 10,000
	MaxPatchBytes *int   `json:"max_patch_bytes,omitempty"` // bytes of all patches together; absent: 1 MiB
}

// ExportRequest asks for a tar archive of the files that differ between two snapshots or sandboxes.
type ExportRequest struct {
	// From and To are as in a DiffRequest.
	From string `json:"from,omitempty"`
	To   string `json:"to"`

	Path    string `json:"path,omitempty"`    // absolute path of the only file or directory to compare
	Partial bool   `json:"partial,omitempty"` // omit files that an archive cannot represent exactly
}

// ApplyRequest asks to apply the changes of a snapshot or sandbox to a running sandbox.
type ApplyRequest struct {
	From string `json:"from"`           // tag of a snapshot, or id of a sandbox, of the same family
	Base string `json:"base,omitempty"` // tag of a common ancestor of both sides; empty: the nearest one

	Paths    []string `json:"paths,omitempty"`     // absolute paths of the only files or directories to apply; empty: all
	Prefer   string   `json:"prefer,omitempty"`    // at conflicts: "from" or "onto"; empty: refuse the request
	DryRun   bool     `json:"dry_run,omitempty"`   // only list the changes and conflicts
	MaxFiles *int     `json:"max_files,omitempty"` // number of files to list; absent: 1,000
}

// Applied is the answer to an ApplyRequest.
type Applied struct {
	From    string      `json:"from"`
	Onto    string      `json:"onto"`           // id of the sandbox
	Base    string      `json:"base,omitempty"` // tag of the base; empty if the client cannot see it
	Applied bool        `json:"applied"`        // the sandbox has been changed
	Files   []ApplyFile `json:"files"`          // in the order of their paths

	// Numbers of all files, including files that are not in Files. A conflict in which the sandbox
	// keeps its file is counted only as a conflict.
	Added     uint64 `json:"added"`
	Changed   uint64 `json:"changed"`
	Deleted   uint64 `json:"deleted"`
	Conflicts uint64 `json:"conflicts"`
	Omitted   bool   `json:"omitted,omitempty"` // Files does not list all changed files and conflicts

	ApplyMS float64 `json:"apply_ms"`
}

// ApplyFile is a file that an ApplyRequest changes, or that has a conflict.
type ApplyFile struct {
	Path       string `json:"path"`                  // U+FFFD replaces bytes that are not UTF-8
	PathBase64 string `json:"path_base64,omitempty"` // base64 of the path, if the path is not UTF-8
	Change     string `json:"change"`                // what applying does: "added", "changed" or "deleted"

	// For a conflict, From and Onto say what each side has done to the file since the base:
	// "added", "changed", "deleted" or "none".
	Conflict bool   `json:"conflict,omitempty"`
	From     string `json:"from,omitempty"`
	Onto     string `json:"onto,omitempty"`
	Kept     bool   `json:"kept,omitempty"` // the sandbox keeps its file
}

// Diff has the differences between two snapshots or sandboxes.
type Diff struct {
	From  string     `json:"from"`
	To    string     `json:"to"`
	Files []DiffFile `json:"files"` // in the order of their paths

	// Numbers of all files that differ, including files that are not in Files.
	Added   uint64 `json:"added"`
	Changed uint64 `json:"changed"`
	Deleted uint64 `json:"deleted"`

	LinesAdded   uint64 `json:"lines_added"` // number of added lines in the text files of Files
	LinesDeleted uint64 `json:"lines_deleted"`
	Omitted      uint64 `json:"omitted,omitempty"` // number of files that differ and are not in Files
	Skipped      uint64 `json:"skipped,omitempty"` // number of files that could not be compared

	// MemoryBytes is an upper bound of the memory that differs; nil if one side has no memory.
	MemoryBytes *uint64 `json:"memory_bytes,omitempty"`
	DiffMS      float64 `json:"diff_ms"`
}

// DiffFile is a path at which the two sides differ.
type DiffFile struct {
	Path       string `json:"path"`                  // U+FFFD replaces bytes that are not UTF-8
	PathBase64 string `json:"path_base64,omitempty"` // base64 of the path, if the path is not UTF-8
	Change     string `json:"change"`                // "added", "changed" or "deleted"

	Old *DiffNode `json:"old,omitempty"` // nil if the file was added
	New *DiffNode `json:"new,omitempty"` // nil if the file was deleted

	Content bool     `json:"content,omitempty"` // the bytes, the link's target or the type differ
	Xattrs  []string `json:"xattrs,omitempty"`  // names of the extended attributes that differ

	LinesAdded   uint32 `json:"lines_added,omitempty"`
	LinesDeleted uint32 `json:"lines_deleted,omitempty"`
	Patch        string `json:"patch,omitempty"` // a part of a patch for git apply, which refuses paths in .git

	// PatchOmitted is the reason why Patch does not have the content: "binary", "large" or "limit".
	PatchOmitted string `json:"patch_omitted,omitempty"`
}

// DiffNode describes a file on one of the sides.
type DiffNode struct {
	Type   string `json:"type"` // file, dir, symlink, char, block, fifo or socket
	Mode   uint32 `json:"mode"` // permission bits
	UID    uint32 `json:"uid"`
	GID    uint32 `json:"gid"`
	Size   uint64 `json:"size"`
	Target string `json:"target,omitempty"` // target of a symbolic link
}
