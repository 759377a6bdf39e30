package record

import "time"

// Workspace is the record of a workspace, which is a name for one sandbox.
type Workspace struct {
	ID         string    `json:"id"`
	Name       string    `json:"name"`
	SourceTag  string    `json:"source_snapshot_tag"`
	SandboxID  string    `json:"sandbox_id"`
	Created    time.Time `json:"created"`
	LastActive time.Time `json:"last_active"`
}

// workspaceFile is the content of the record of a workspace.
type workspaceFile struct {
	Version int `json:"version"`
	Workspace
}

// EncodeWorkspace returns the bytes of the record of a workspace. It refuses a record that
// ParseWorkspace would refuse.
func EncodeWorkspace(w *Workspace) ([]byte, error) {
	if err := w.check(); err != nil {
		return nil, err
	}
	return encode(workspaceFile{Version, *w})
}

// ParseWorkspace decodes and checks the record of a workspace. Errors are *Error with the given
// path. The file at this path is not opened.
func ParseWorkspace(path string, p []byte) (*Workspace, error) {
	var now workspaceFile
	var old workspaceV0
	if err := parse(path, p, &now, &old, func() { now.Workspace = Workspace(old) }); err != nil {
		return nil, err
	}
	if err := now.check(); err != nil {
		return nil, err.in(path)
	}
	return &now.Workspace, nil
}

func (w *Workspace) check() *fault {
	switch {
	case w.ID == "":
		return wrong("id", "empty: %s", otherForkd)
	case w.Name == "":
		return wrong("name", "empty: %s", otherForkd)
	case w.SandboxID == "":
		return wrong("sandbox_id", "empty: %s", otherForkd)
	}
	return nil
}
