package v1

import "time"

// Tar is the media type of a directory as an archive.
const Tar = "application/x-tar"

// File describes a file, a directory or a link in a sandbox, as the sandbox says.
type File struct {
	Name string `json:"name"`
	Path string `json:"path"`
	// "file", "directory", "symlink" or "other"; of what a link leads to, if that is there
	Type        string    `json:"type"`
	Size        int64     `json:"size"` // bytes
	Mode        uint32    `json:"mode"` // permission bits
	Permissions string    `json:"permissions"`
	Owner       string    `json:"owner"`
	Group       string    `json:"group"`
	Modified    time.Time `json:"modified"`
	LinkTarget  string    `json:"symlink_target,omitempty"` // of a link: where it leads in the end
}

// MakeDirRequest asks for a directory and its parents.
type MakeDirRequest struct {
	Path     string `json:"path"`
	Username string `json:"username,omitempty"` // whose it is; empty: the default user
}

// MoveRequest asks for another path for a file or directory.
type MoveRequest struct {
	From     string `json:"from"`
	To       string `json:"to"`                 // its parents are made
	Username string `json:"username,omitempty"` // whose these are; empty: the default user
}

// FileChange is one change below a watched directory. The first of a stream has the type "begun":
// what happens after it is told. The last one may have the type "error".
type FileChange struct {
	Type    string `json:"type"`              // "begun", "create", "write", "remove", "rename", "chmod" or "error"
	Name    string `json:"name,omitempty"`    // relative to the directory
	Problem *Error `json:"problem,omitempty"` // why the stream ends
}

// The types of a FileChange that is none.
const (
	WatchBegun = "begun"
	WatchError = "error"
)
