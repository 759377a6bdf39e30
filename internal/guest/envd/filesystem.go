package envd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guest/userenv"
	"github.com/forkd/forkd/internal/proto/envdproto/filesystem"
)

// filesystemService implements filesystem.Filesystem.
type filesystemService struct {
	s        *Server
	watchers *watchers
}

// maxEntries bounds one listing, so that the answer does not exceed the message limits of the
// clients.
const maxEntries = 20000

// target resolves a request's path, and returns the user of the request.
func (fsv *filesystemService) target(req connect.AnyRequest, path string) (string, *userenv.User, error) {
	u, err := fsv.s.rpcUser(req.Header())
	if err != nil {
		return "", nil, err
	}
	return userenv.Path(u, path), u, nil
}

// fsError maps a file system error to a Connect code.
func fsError(err error) error {
	code := connect.CodeInternal
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code = connect.CodeNotFound
	case errors.Is(err, fs.ErrExist):
		code = connect.CodeAlreadyExists
	case isDenied(err):
		code = connect.CodePermissionDenied
	case isWrongPath(err):
		code = connect.CodeInvalidArgument
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		code = connect.CodeResourceExhausted
	}
	return connect.NewError(code, err)
}

// isDenied reports whether err means that the kernel refuses the operation even to root. Examples
// are a new file in /sys, and a new name for a mount point.
func isDenied(err error) bool {
	return errors.Is(err, fs.ErrPermission) || isOneOf(err, unix.EROFS, unix.ETXTBSY, unix.EBUSY)
}

// isWrongPath reports whether err means that the path does not suit the operation.
func isWrongPath(err error) bool {
	return isOneOf(err, unix.ENOTDIR, unix.EISDIR, unix.ENOTEMPTY, unix.ELOOP, unix.ENAMETOOLONG, unix.EINVAL)
}

func isOneOf(err error, of ...unix.Errno) bool {
	var got unix.Errno
	return errors.As(err, &got) && slices.Contains(of, got)
}

// Stat describes one entry.
func (fsv *filesystemService) Stat(_ context.Context,
	req *connect.Request[filesystem.StatRequest]) (*connect.Response[filesystem.StatResponse], error) {
	path, _, err := fsv.target(req, req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	e, err := newDescriber().entry(path)
	if err != nil {
		return nil, fsError(err)
	}
	return connect.NewResponse(&filesystem.StatResponse{Entry: e}), nil
}

// ListDir lists a directory, down to the requested depth. The entries of a directory are sorted by
// name, and each subdirectory is followed by its own entries. If the requested directory is a
// symbolic link, ListDir follows it. It does not follow links inside the directory.
func (fsv *filesystemService) ListDir(_ context.Context,
	req *connect.Request[filesystem.ListDirRequest]) (*connect.Response[filesystem.ListDirResponse], error) {
	path, _, err := fsv.target(req, req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fsError(err)
	}
	if !info.IsDir() {
		return nil, invalid(fmt.Errorf("path %q is not a directory", path))
	}
	out := &filesystem.ListDirResponse{}
	if err := list(newDescriber(), path, max(req.Msg.GetDepth(), 1), out); err != nil {
		return nil, err
	}
	return connect.NewResponse(out), nil
}

func list(d *describer, dir string, depth uint32, out *filesystem.ListDirResponse) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fsError(err)
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		e, err := d.entry(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the entry was removed in the meantime
		}
		if err != nil {
			return fsError(err)
		}
		if len(out.Entries) == maxEntries {
			return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("more than %d entries; list a smaller depth",
				maxEntries))
		}
		out.Entries = append(out.Entries, e)
		if entry.IsDir() && depth > 1 {
			if err := list(d, path, depth-1, out); err != nil && connect.CodeOf(err) != connect.CodeNotFound {
				return err
			}
		}
	}
	return nil
}

// MakeDir makes a directory and its parents.
func (fsv *filesystemService) MakeDir(_ context.Context,
	req *connect.Request[filesystem.MakeDirRequest]) (*connect.Response[filesystem.MakeDirResponse], error) {
	path, u, err := fsv.target(req, req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err == nil {
		if info.IsDir() {
			return nil, connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("directory %q exists already", path))
		}
		return nil, invalid(fmt.Errorf("path %q is a file", path))
	}
	if err := makeDirs(path, u); err != nil {
		return nil, fsError(err)
	}
	e, err := newDescriber().entry(path)
	if err != nil {
		return nil, fsError(err)
	}
	return connect.NewResponse(&filesystem.MakeDirResponse{Entry: e}), nil
}

// makeDirs makes a directory and its missing parents, all owned by u.
func makeDirs(path string, u *userenv.User) error {
	info, err := os.Stat(path)
	if err == nil {
		if !info.IsDir() {
			return &fs.PathError{Op: "mkdir", Path: path, Err: unix.ENOTDIR}
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeDirs(filepath.Dir(path), u); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return give(path, u)
}

// give makes u the owner of a file or directory that a request has created.
func give(path string, u *userenv.User) error {
	if u.Credential() == nil {
		return nil // no change, because u is the agent's own user
	}
	return os.Lchown(path, int(u.UID), int(u.GID))
}

// Move renames an entry, and creates the missing parents of the new path.
func (fsv *filesystemService) Move(_ context.Context,
	req *connect.Request[filesystem.MoveRequest]) (*connect.Response[filesystem.MoveResponse], error) {
	source, u, err := fsv.target(req, req.Msg.GetSource())
	if err != nil {
		return nil, err
	}
	destination := userenv.Path(u, req.Msg.GetDestination())
	if _, err := os.Lstat(source); err != nil {
		return nil, fsError(err)
	}
	if err := makeDirs(filepath.Dir(destination), u); err != nil {
		return nil, fsError(err)
	}
	if err := os.Rename(source, destination); err != nil {
		return nil, fsError(err)
	}
	e, err := newDescriber().entry(destination)
	if err != nil {
		return nil, fsError(err)
	}
	return connect.NewResponse(&filesystem.MoveResponse{Entry: e}), nil
}

// Remove removes an entry with everything below it; a missing entry is not an error.
func (fsv *filesystemService) Remove(_ context.Context,
	req *connect.Request[filesystem.RemoveRequest]) (*connect.Response[filesystem.RemoveResponse], error) {
	path, _, err := fsv.target(req, req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(path); err != nil {
		return nil, fsError(err)
	}
	return connect.NewResponse(&filesystem.RemoveResponse{}), nil
}
