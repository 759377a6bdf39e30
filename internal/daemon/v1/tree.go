package v1

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/invalid"
)

// maxLook bounds the time of requests that read or rename files. The guest determines how long they
// take.
const maxLook = 2 * time.Minute

func fileOf(e agentclient.Entry) apiv1.File {
	return apiv1.File{Name: e.Name, Path: e.Path, Type: e.Type, Size: e.Size, Mode: e.Mode, Permissions: e.Permissions,
		Owner: e.Owner, Group: e.Group, Modified: e.Modified, LinkTarget: e.LinkTarget,
		LinkText: e.LinkText}
}

// onFiles calls f with a client of the guest for at most maxLook.
func (a *api) onFiles(r *http.Request, op string, f func(context.Context, *agentclient.Client) error) error {
	ctx, cancel := context.WithTimeout(r.Context(), maxLook)
	defer cancel()
	return a.onGuest(ctx, r, op, f)
}

func (a *api) statFile(r *http.Request) (out apiv1.File, err error) {
	path, user, err := fileQuery(r)
	if err != nil {
		return out, err
	}
	var e agentclient.Entry
	err = a.onFiles(r, "look at a file of", func(ctx context.Context, guest *agentclient.Client) (err error) {
		e, err = guest.Stat(ctx, path, user)
		return err
	})
	if err != nil {
		return out, err
	}
	return fileOf(e), nil
}

func (a *api) listFiles(r *http.Request) (out []apiv1.File, err error) {
	path, user, err := fileQuery(r)
	if err != nil {
		return out, err
	}
	depth := uint64(1)
	if text := r.URL.Query().Get("depth"); text != "" {
		if depth, err = strconv.ParseUint(text, 10, 32); err != nil || depth < 1 || depth > maxDepth {
			return out, invalid.Errorf("depth", "%.100q: want 1 to %d", text, maxDepth)
		}
	}
	var entries []agentclient.Entry
	err = a.onFiles(r, "list files of", func(ctx context.Context, guest *agentclient.Client) (err error) {
		entries, err = guest.List(ctx, path, user, uint32(depth))
		return err
	})
	if err != nil {
		return out, err
	}
	list := make([]apiv1.File, len(entries))
	for i, e := range entries {
		list[i] = fileOf(e)
	}
	return list, nil
}

func (a *api) makeDir(r *http.Request, req *apiv1.MakeDirRequest) (out apiv1.File, err error) {
	if err := checkPath("path", req.Path); err != nil {
		return out, err
	}
	var e agentclient.Entry
	err = a.onFiles(r, "make a directory in", func(ctx context.Context, guest *agentclient.Client) (err error) {
		e, err = guest.MakeDir(ctx, req.Path, req.Username)
		return err
	})
	if err != nil {
		return out, err
	}
	return fileOf(e), nil
}

func (a *api) moveFile(r *http.Request, req *apiv1.MoveRequest) (out apiv1.File, err error) {
	if err := errors.Join(checkPath("from", req.From), checkPath("to", req.To)); err != nil {
		return out, err
	}
	var e agentclient.Entry
	err = a.onFiles(r, "move a file of", func(ctx context.Context, guest *agentclient.Client) (err error) {
		e, err = guest.Move(ctx, req.From, req.To, req.Username)
		return err
	})
	if err != nil {
		return out, err
	}
	return fileOf(e), nil
}

func checkPath(field, path string) error {
	if path == "" || strings.ContainsRune(path, 0) {
		return invalid.Errorf(field, "%.100q: want a path without NUL bytes", path)
	}
	return nil
}

func (a *api) removeFile(r *http.Request) error {
	path, user, err := fileQuery(r)
	if err != nil {
		return err
	}
	return a.onFiles(r, "remove a file of", func(ctx context.Context, guest *agentclient.Client) error {
		return guest.Remove(ctx, path, user)
	})
}

// watchFiles streams the changes below a directory. The stream ends when the client leaves or
// stalls, when the sandbox is stopped or rolled back, or when the daemon stops. The sandbox counts
// as in use during the stream.
func (a *api) watchFiles(w http.ResponseWriter, r *http.Request) error {
	path, user, err := fileQuery(r)
	if err != nil {
		return err
	}
	recursive, err := boolQuery(r, "recursive")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(a.Face.Stopping, cancel)()
	var out *face.SSE // nil before the watch has begun
	err = a.onGuest(ctx, r, "watch files of", func(ctx context.Context, guest *agentclient.Client) error {
		ctx, cancel := context.WithCancel(ctx)
		changes, ended := make(chan agentclient.Change), make(chan error, 1)
		go func() {
			ended <- guest.Watch(ctx, path, user, recursive, func(c agentclient.Change) error {
				select {
				case changes <- c:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		}()
		defer func() { cancel(); <-ended }()
		for {
			var err error
			select {
			case c := <-changes:
				if out == nil {
					out, c.Type = face.NewSSE(w, a.Face.Limits.Stall), apiv1.WatchBegun
				}
				err = out.Send("", c.Type, apiv1.FileChange{Type: c.Type, Name: c.Name})
			case <-time.After(a.Face.Limits.Keepalive):
				if out != nil {
					err = out.Text(":\n\n")
				}
			case err = <-ended:
				ended <- err
			}
			if err != nil {
				return err
			}
		}
	})
	switch {
	case out == nil:
		return err
	case ctx.Err() == nil:
		problem := face.ProblemOf(err)
		// This fails only if the client has left.
		_ = out.Send("", apiv1.WatchError, apiv1.FileChange{Type: apiv1.WatchError, Problem: &problem})
	}
	return nil
}
