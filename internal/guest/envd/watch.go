package envd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"
	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guest/userenv"
	"github.com/forkd/forkd/internal/proto/envdproto/filesystem"
)

// watch converts the kernel's notifications about one directory to events.
type watch struct {
	root      string
	recursive bool
	entries   bool // whether create, write and chmod events describe the affected entry
	notices   *fsnotify.Watcher
	events    chan *filesystem.FilesystemEvent
	err       error // why the watch ended, if the client did not end it; valid after w.events is closed
	stop      chan struct{}
}

// watchRequest is the common part of WatchDirRequest and CreateWatcherRequest.
type watchRequest interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
	GetAllowNetworkMounts() bool
}

// networkMounts maps types of file systems (statfs(2)) to their names. On these file systems, the
// kernel does not notice changes that other hosts make.
var networkMounts = map[int64]string{
	unix.NFS_SUPER_MAGIC: "nfs", unix.SMB_SUPER_MAGIC: "smb", unix.SMB2_SUPER_MAGIC: "smb", unix.CIFS_SUPER_MAGIC: "cifs",
	unix.V9FS_MAGIC: "9p", unix.FUSE_SUPER_MAGIC: "fuse", unix.CEPH_SUPER_MAGIC: "ceph",
}

func newWatch(u *userenv.User, req watchRequest) (*watch, error) {
	root := userenv.Path(u, req.GetPath())
	info, err := os.Stat(root)
	if err != nil {
		return nil, fsError(err)
	}
	if !info.IsDir() {
		return nil, invalid(fmt.Errorf("path %q is not a directory", root))
	}
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err != nil {
		return nil, fsError(err)
	}
	if kind, network := networkMounts[int64(st.Type)]; network && !req.GetAllowNetworkMounts() {
		return nil, invalid(fmt.Errorf("path %q is on a network mount (%s); set allow_network_mounts to watch it all the same", root, kind))
	}
	notices, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("watch %q: %w", root, err))
	}
	w := &watch{
		root: root, recursive: req.GetRecursive(), entries: req.GetIncludeEntry(), notices: notices,
		events: make(chan *filesystem.FilesystemEvent), stop: make(chan struct{}),
	}
	if err := w.add(root); err != nil {
		notices.Close()
		return nil, fsError(err)
	}
	go w.run()
	return w, nil
}

// add watches dir and, if the watch is recursive, all directories below dir.
func (w *watch) add(dir string) error {
	if !w.recursive {
		return w.notices.Add(dir)
	}
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && (e.IsDir() || path == dir) {
			err = w.notices.Add(path)
		}
		if errors.Is(err, fs.ErrNotExist) && path != w.root {
			return nil // the directory was removed in the meantime
		}
		return err
	})
}

func (w *watch) close() {
	close(w.stop)
	w.notices.Close()
}

func (w *watch) run() {
	defer close(w.events)
	for {
		select {
		case n, ok := <-w.notices.Events:
			if !ok {
				return
			}
			if !w.translate(n) {
				return
			}
		case err, ok := <-w.notices.Errors:
			if !ok {
				return
			}
			// For example, the kernel's queue has overflowed. Events are then lost, and the client
			// must know.
			w.err = connect.NewError(connect.CodeDataLoss, fmt.Errorf("watch %q: %w", w.root, err))
			return
		case <-w.stop:
			return
		}
	}
}

// translate sends the events for one notification of the kernel. It reports whether the watch
// continues.
func (w *watch) translate(n fsnotify.Event) bool {
	name, err := filepath.Rel(w.root, n.Name)
	if err != nil || name == "." {
		return true // the notification is about the watched directory itself
	}
	if strings.HasPrefix(filepath.Base(name), uploadPrefix) {
		return true
	}
	if n.Has(fsnotify.Create) && w.recursive {
		if info, err := os.Lstat(n.Name); err == nil && info.IsDir() {
			if err := w.add(n.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				w.err = fsError(fmt.Errorf("watch %q: %w", n.Name, err))
				return false
			}
		}
	}
	for _, k := range []struct {
		op    fsnotify.Op
		event filesystem.EventType
		entry bool
	}{
		{fsnotify.Create, filesystem.EventType_EVENT_TYPE_CREATE, true},
		{fsnotify.Write, filesystem.EventType_EVENT_TYPE_WRITE, true},
		{fsnotify.Remove, filesystem.EventType_EVENT_TYPE_REMOVE, false},
		{fsnotify.Rename, filesystem.EventType_EVENT_TYPE_RENAME, false},
		{fsnotify.Chmod, filesystem.EventType_EVENT_TYPE_CHMOD, true},
	} {
		if !n.Has(k.op) {
			continue
		}
		ev := &filesystem.FilesystemEvent{Name: text(name), Type: k.event}
		if k.entry && w.entries {
			ev.Entry, _ = newDescriber().entry(n.Name) // nil if the entry is gone
		}
		select {
		case w.events <- ev:
		case <-w.stop:
			return false
		}
	}
	return true
}

// WatchDir streams changes below a directory until the client disconnects.
func (fsv *filesystemService) WatchDir(ctx context.Context, req *connect.Request[filesystem.WatchDirRequest],
	out *connect.ServerStream[filesystem.WatchDirResponse]) error {
	u, err := fsv.s.rpcUser(req.Header())
	if err != nil {
		return err
	}
	w, err := newWatch(u, req.Msg)
	if err != nil {
		return err
	}
	defer w.close()
	begin := &filesystem.WatchDirResponse_Start{Start: &filesystem.WatchDirResponse_StartEvent{}}
	if err := out.Send(&filesystem.WatchDirResponse{Event: begin}); err != nil {
		return err
	}
	send := func(ev *filesystem.FilesystemEvent) error {
		return out.Send(&filesystem.WatchDirResponse{Event: &filesystem.WatchDirResponse_Filesystem{Filesystem: ev}})
	}
	alive := func() error {
		none := &filesystem.WatchDirResponse_Keepalive{Keepalive: &filesystem.WatchDirResponse_KeepAlive{}}
		return out.Send(&filesystem.WatchDirResponse{Event: none})
	}
	if err := streamEvents(ctx, w.events, keepalive(req.Header()), send, alive); err != nil {
		return err
	}
	return w.err
}
