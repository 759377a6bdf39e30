package v1

import "time"

// Tar is the media type of a directory as an archive.
const Tar = "application/x-tar"

// File describes a file, a directory or a link in a sandbox, as reported by the sandbox.
type File struct {
	Name string `json:"name"`
	Path string `json:"path"`
	// "file", "directory", "symlink" or "other". For a link, it is the type of the target if the
	// target exists.
	Type        string    `json:"type"`
	Size        int64     `json:"size"` // bytes
	Mode        uint32    `json:"mode"` // permission bits
	Permissions string    `json:"permissions"`
	Owner       string    `json:"owner"`
	Group       string    `json:"group"`
	Modified    time.Time `json:"modified"`
	LinkTarget  string    `json:"symlink_target,omitempty"` // final target of a symbolic link
	// Target of a symbolic link, exactly as stored in the link. Empty if it is not UTF-8, or if the
	// agent comes from a snapshot that an older forkd made.
	LinkText string `json:"symlink_text,omitempty"`
}

// MakeDirRequest asks to create a directory and its parents.
type MakeDirRequest struct {
	Path     string `json:"path"`
	Username string `json:"username,omitempty"` // owner; empty: the default user
}

// MoveRequest requests a new path for a file or directory.
type MoveRequest struct {
	From     string `json:"from"`
	To       string `json:"to"`                 // missing parents are created
	Username string `json:"username,omitempty"` // owner of created parents; empty: the default user
}

// FileChange is one change below a watched directory. The first change of a stream has the type
// "begun". From then on, all changes are reported. The last change may have the type "error".
type FileChange struct {
	Type    string `json:"type"`              // "begun", "create", "write", "remove", "rename", "chmod" or "error"
	Name    string `json:"name,omitempty"`    // relative to the directory
	Problem *Error `json:"problem,omitempty"` // why the stream ends
}

// Types of a FileChange that reports no change.
const (
	WatchBegun = "begun"
	WatchError = "error"
)
