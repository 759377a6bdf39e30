package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/dirsync"
	"github.com/forkd/forkd/internal/treetar"
)

// hostDir is a directory of this host whose files new sandboxes receive.
type hostDir struct {
	local  string
	remote string   // absolute path in the sandboxes
	mode   string   // "ro", "sync", "both", or empty for a copy
	packed *os.File // nameless file with an archive of the directory; nil in the modes "sync" and "both"
	size   int64
}

// hostDirs are the directories and volumes that the flag --volume names.
type hostDirs struct {
	given   []string
	dirs    []hostDir
	volumes []client.VolumeMount
	stays   bool // whether the command keeps running while the sandboxes do, so that it can sync directories
}

func (h *hostDirs) register(f *pflag.FlagSet) {
	f.StringArrayVarP(&h.given, "volume", "v", nil,
		"NAME:/PATH mounts a volume to write to it, NAME:/PATH:ro to read it, NAME:/PATH:copy a private copy; the "+
			"snapshot needs --volume-slots. ./DIR:/PATH and /DIR:/PATH copy a directory of this host; with :ro all sandboxes "+
			"share one copy, read-only, in a volume slot. forkd run also has the modes :sync (keep it in sync) and :both "+
			"(changes also come back) (repeatable)")
}

// isHostDir reports whether a value of --volume names a directory of this host. Any other value
// names a volume.
func isHostDir(text string) bool { return text == "" || text[0] == '/' || text[0] == '.' }

// parseVolume parses NAME:/PATH, NAME:/PATH:ro and NAME:/PATH:copy. As in docker, NAME:/PATH:rw is
// accepted too, and means the same as NAME:/PATH. The daemon checks the parts.
func parseVolume(text string) (v client.VolumeMount, err error) {
	v.Name, v.Path, _ = strings.Cut(text, ":")
	v.Path, v.Mode, _ = strings.Cut(v.Path, ":")
	if v.Mode == "rw" {
		v.Mode = ""
	}
	if !path.IsAbs(v.Path) {
		return v, usageError{fmt.Errorf("--volume %.200q: want NAME:/PATH with the name of a volume ('forkd volume ls'), or "+
			"DIR:/PATH with a directory that begins with / or . ('forkd cp -r' copies into sandboxes that run)", text)}
	}
	v.Path = path.Clean(v.Path)
	return v, nil
}

// parseHostDir parses DIR:/PATH and DIR:/PATH:MODE.
func (h *hostDirs) parseHostDir(text string) (d hostDir, err error) {
	local, rest, _ := strings.Cut(text, ":")
	remote, mode, hasMode := strings.Cut(rest, ":")
	wrong := func(reason string) (hostDir, error) {
		return d, usageError{fmt.Errorf("--volume %.200q: %s", text, reason)}
	}
	switch {
	case local != "." && local != ".." && !strings.HasPrefix(local, "/") && !strings.HasPrefix(local, "./") &&
		!strings.HasPrefix(local, "../"):
		return wrong("want DIR:/PATH with a DIR that begins with / or . ('forkd cp -r' copies into sandboxes that run)")
	case !path.IsAbs(remote) || path.Clean(remote) == "/":
		return wrong("want DIR:/PATH with an absolute path in the sandbox, other than /")
	case !hasMode || mode == "copy":
		mode = ""
	case mode == "ro":
	case mode != "sync" && mode != "both":
		return wrong("the modes are copy (each sandbox gets files of its own), ro (all share one copy, read-only), and " +
			"sync and both of 'forkd run'")
	case !h.stays:
		return wrong("a directory stays in sync only while this command runs: use 'forkd run' without --detach and " +
			"--keep, or 'forkd sync'")
	}
	return hostDir{local: local, remote: path.Clean(remote), mode: mode}, nil
}

// pack parses the values of the flag. It reads each directory once, into a file without a name, before
// a sandbox is forked. So a wrong directory leaves no sandbox behind, and all sandboxes get the same
// files.
func (h *hostDirs) pack() (err error) {
	for _, text := range h.given {
		if !isHostDir(text) {
			v, err := parseVolume(text)
			if err != nil {
				return err
			}
			h.volumes = append(h.volumes, v)
			continue
		}
		d, err := h.parseHostDir(text)
		if err != nil {
			return err
		}
		h.dirs = append(h.dirs, d)
	}
	for i := range h.dirs {
		if err := h.dirs[i].pack(); err != nil {
			h.close()
			return fmt.Errorf("--volume %s: %w", h.dirs[i].local, err)
		}
	}
	return nil
}

func (d *hostDir) pack() error {
	dir, err := filepath.EvalSymlinks(d.local) // treetar.Pack follows no link
	if err != nil {
		return err
	}
	if s, err := os.Stat(dir); err != nil {
		return err
	} else if !s.IsDir() {
		return errors.New("it is not a directory: 'forkd cp' copies files")
	}
	if d.mode == "sync" || d.mode == "both" {
		return nil
	}
	if d.packed, err = os.CreateTemp("", "forkd-volume-*"); err != nil {
		return err
	}
	err = os.Remove(d.packed.Name())
	if err == nil {
		err = treetar.Pack(d.packed, dir)
	}
	if err == nil {
		d.size, err = d.packed.Seek(0, io.SeekCurrent)
	}
	return err
}

func (h *hostDirs) close() {
	for _, d := range h.dirs {
		if d.packed != nil {
			d.packed.Close()
		}
	}
}

// explained adds advice to the error of a fork whose volume is missing.
func (h *hostDirs) explained(err error) error {
	if !errors.Is(err, client.ErrVolumeNotFound) {
		return err
	}
	for _, v := range h.volumes {
		if s, statErr := os.Stat(v.Name); statErr == nil && s.IsDir() {
			return fmt.Errorf("%w: to copy the directory %s of this host, give -v ./%s:%s", err, v.Name, v.Name, v.Path)
		}
	}
	return fmt.Errorf("%w: 'forkd volume ls' lists volumes, 'forkd volume create NAME' makes one", err)
}

// copiesAtOnce bounds how many sandboxes receive files at the same time.
const copiesAtOnce = 4

// copyInto copies the packed directories into new sandboxes. After an error it removes all of these
// sandboxes.
func (h *hostDirs) copyInto(ctx context.Context, cl *client.Client, boxes ...client.Sandbox) error {
	if len(h.dirs) == 0 {
		return nil
	}
	group, copying := errgroup.WithContext(ctx)
	group.SetLimit(copiesAtOnce)
	for _, box := range boxes {
		group.Go(func() error {
			for _, d := range h.dirs {
				if d.mode != "" {
					continue
				}
				archive := io.NewSectionReader(d.packed, 0, d.size)
				if err := cl.WriteTree(copying, box.ID, d.remote, archive); err != nil {
					return fmt.Errorf("copy %s to %s:%s: %w", d.local, box.ID, d.remote, err)
				}
			}
			return nil
		})
	}
	err := group.Wait()
	if err == nil {
		return nil
	}
	errs := []error{err}
	for _, box := range boxes {
		errs = append(errs, removeSandbox(context.WithoutCancel(ctx), cl, box.ID))
	}
	return errors.Join(errs...)
}

// whileSynced keeps directories in sync with a sandbox while it calls run. It returns the error of run,
// or the first error of a sync if run succeeds. It prints the other errors.
func (h *hostDirs) whileSynced(ctx context.Context, cl *client.Client, id string, errOut io.Writer,
	run func() error) error {
	var all []*liveDir
	for _, d := range h.dirs {
		if d.mode != "sync" && d.mode != "both" {
			continue
		}
		o := dirsync.Options{Dir: d.local, ID: id, Remote: d.remote, Both: d.mode == "both"}
		live, err := startSync(ctx, cl, o, errOut)
		if err != nil {
			run = func() error { return fmt.Errorf("--volume %s: %w", d.local, err) }
			break
		}
		all = append(all, live)
	}
	err := run()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSyncTimeout)
	defer cancel()
	for _, live := range all {
		switch ended := live.end(ctx); {
		case err == nil && ended != nil:
			err = fmt.Errorf("--volume: %w", ended)
		case ended != nil:
			printf(errOut, "forkd: --volume: %s\n", ended)
		}
	}
	return err
}

// lastSyncTimeout bounds the copy of the last changes after a command.
const lastSyncTimeout = 5 * time.Minute
