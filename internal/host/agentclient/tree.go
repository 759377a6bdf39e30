package agentclient

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/forkd/forkd/internal/proto/envdproto/filesystem"
	"github.com/forkd/forkd/internal/proto/envdproto/filesystem/filesystemconnect"
)

// Entry is the agent's description of a file, a directory or a symbolic link.
type Entry struct {
	Name, Path   string
	Type         string // "file", "directory", "symlink" or "other"; for a link whose target exists, the target's type
	Size         int64
	Mode         uint32 // permission bits
	Permissions  string // such as "-rw-r--r--"
	Owner, Group string
	Modified     time.Time
	LinkTarget   string // final target of a symbolic link
	LinkText     string // target as written in the symbolic link; empty if the agent does not report it
}

func entryOf(e *filesystem.EntryInfo) Entry {
	kind := "other"
	switch e.GetType() {
	case filesystem.FileType_FILE_TYPE_FILE:
		kind = "file"
	case filesystem.FileType_FILE_TYPE_DIRECTORY:
		kind = "directory"
	case filesystem.FileType_FILE_TYPE_SYMLINK:
		kind = "symlink"
	}
	return Entry{Name: e.GetName(), Path: e.GetPath(), Type: kind, Size: e.GetSize(), Mode: e.GetMode(),
		Permissions: e.GetPermissions(),
		Owner:       e.GetOwner(), Group: e.GetGroup(), Modified: e.GetModifiedTime().AsTime(),
		LinkTarget: e.GetSymlinkTarget(), LinkText: e.GetSymlinkText()}
}

// asUser returns a request that the agent executes as the given user.
func asUser[T any](user string, message *T) *connect.Request[T] {
	req := connect.NewRequest(message)
	setUser(req.Header(), user)
	return req
}

// Stat describes the file or directory at a path of the guest.
func (c *Client) Stat(ctx context.Context, path, user string) (Entry, error) {
	e, err := call[filesystem.StatRequest, filesystem.StatResponse](ctx, c, filesystemconnect.FilesystemStatProcedure,
		small, asUser(user, &filesystem.StatRequest{Path: path}))
	if err != nil {
		return Entry{}, remote("stat "+path, err)
	}
	return entryOf(e.GetEntry()), nil
}

// List describes the entries of a directory of the guest, down to the given depth. With depth 1 it
// lists only the entries of the directory itself.
func (c *Client) List(ctx context.Context, path, user string, depth uint32) ([]Entry, error) {
	answer, err := call[filesystem.ListDirRequest, filesystem.ListDirResponse](ctx, c,
		filesystemconnect.FilesystemListDirProcedure,
		listing, asUser(user, &filesystem.ListDirRequest{Path: path, Depth: depth}))
	if err != nil {
		return nil, remote("list "+path, err)
	}
	list := make([]Entry, len(answer.GetEntries()))
	for i, e := range answer.GetEntries() {
		list[i] = entryOf(e)
	}
	return list, nil
}

// MakeDir makes a directory of the guest, and missing parent directories. If the directory exists,
// the error has CodeExists.
func (c *Client) MakeDir(ctx context.Context, path, user string) (Entry, error) {
	e, err := call[filesystem.MakeDirRequest, filesystem.MakeDirResponse](ctx, c,
		filesystemconnect.FilesystemMakeDirProcedure,
		small, asUser(user, &filesystem.MakeDirRequest{Path: path}))
	if err != nil {
		return Entry{}, remote("make directory "+path, err)
	}
	return entryOf(e.GetEntry()), nil
}

// Move moves a file or directory of the guest to another path, and makes the missing parent
// directories of that path.
func (c *Client) Move(ctx context.Context, from, to, user string) (Entry, error) {
	e, err := call[filesystem.MoveRequest, filesystem.MoveResponse](ctx, c, filesystemconnect.FilesystemMoveProcedure,
		small, asUser(user, &filesystem.MoveRequest{Source: from, Destination: to}))
	if err != nil {
		return Entry{}, remote("move "+from, err)
	}
	return entryOf(e.GetEntry()), nil
}

// Remove removes a file or directory of the guest with everything below it. A missing path is not
// an error.
func (c *Client) Remove(ctx context.Context, path, user string) error {
	_, err := call[filesystem.RemoveRequest, filesystem.RemoveResponse](ctx, c,
		filesystemconnect.FilesystemRemoveProcedure,
		small, asUser(user, &filesystem.RemoveRequest{Path: path}))
	if err != nil {
		return remote("remove "+path, err)
	}
	return nil
}

// Change is one change in a directory of a guest.
type Change struct {
	Type string // "create", "write", "remove", "rename" or "chmod"
	Name string // relative to the directory
}

// Watch calls f with the changes in a directory of the guest. If recursive is set, it also reports
// changes in subdirectories. When the watch has begun, Watch calls f with a zero Change. The watch
// ends when ctx ends, when the guest ends it, or when f returns an error, which Watch then returns.
func (c *Client) Watch(ctx context.Context, path, user string, recursive bool, f func(Change) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	op := "watch " + path
	stream, err := follow[filesystem.WatchDirRequest, filesystem.WatchDirResponse](ctx, c,
		filesystemconnect.FilesystemWatchDirProcedure,
		asUser(user, &filesystem.WatchDirRequest{Path: path, Recursive: recursive}))
	if err != nil {
		return remote(op, err)
	}
	defer stream.Close()
	for stream.Receive() {
		change := Change{}
		switch e := stream.Msg().GetEvent().(type) {
		case *filesystem.WatchDirResponse_Start:
		case *filesystem.WatchDirResponse_Filesystem:
			change = Change{Type: changeType(e.Filesystem.GetType()), Name: e.Filesystem.GetName()}
		default:
			continue
		}
		if err := f(change); err != nil {
			return err
		}
	}
	if err := stream.Err(); err != nil {
		return remote(op, err)
	}
	return fmt.Errorf("%s: the guest has ended the watch", op)
}

func changeType(t filesystem.EventType) string {
	switch t {
	case filesystem.EventType_EVENT_TYPE_CREATE:
		return "create"
	case filesystem.EventType_EVENT_TYPE_REMOVE:
		return "remove"
	case filesystem.EventType_EVENT_TYPE_RENAME:
		return "rename"
	case filesystem.EventType_EVENT_TYPE_CHMOD:
		return "chmod"
	}
	return "write" // also for unknown types, because something has changed
}
