package dirsync

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/treetar"
)

// guestEntry converts the description of a file of the guest. The guest determines all fields.
func guestEntry(f *client.File) Entry {
	const perms = len("rwxrwxrwx")
	if len(f.Permissions) < perms {
		return Entry{Kind: Other}
	}
	e := Entry{Kind: File, Mode: f.Mode & 0o777, Size: f.Size, Time: f.Modified.UnixNano()}
	switch kind := f.Permissions[:len(f.Permissions)-perms]; {
	case len(f.LinkText) > maxText:
		return Entry{Kind: Other} // Linux has no such links
	case strings.Contains(kind, "L"):
		e.Kind, e.Mode, e.Link = Link, 0, f.LinkText
	case strings.Contains(kind, "d"):
		return Entry{Kind: Dir, Mode: e.Mode}
	case strings.ContainsAny(kind, "DpSc?"), e.Size < 0:
		return Entry{Kind: Other}
	}
	return e
}

// remote returns the path of a file in the sandbox.
func (s *Sync) remote(rel string) string { return path.Join(s.Remote, rel) }

// list adds the entries below a directory of the guest, down to a depth. For each directory at that
// depth it calls descend. If descend returns true, it also lists the content of this directory. A
// guest can send any path, so only paths below the directory are accepted.
func (s *Sync) list(ctx context.Context, rel string, depth int, into *listing, descend func(dir string) bool) error {
	deeper := map[string]bool{} // a guest can name a directory any number of times
	err := s.cl.EachFile(ctx, s.ID, s.remote(rel), depth, func(f client.File) error {
		name, ok := strings.CutPrefix(f.Path, strings.TrimSuffix(s.Remote, "/")+"/")
		if !ok || name == rel || !below(name, rel) || !goodName(name) {
			s.leftOut(f.Path, "the sandbox has a file whose name cannot be synced")
			return nil
		}
		if s.ignored(name) && !s.ignore.Exceptions() {
			return nil
		}
		e := guestEntry(&f)
		parts := strings.Count(strings.TrimPrefix(name, rel+"/"), "/") + 1
		if e.Kind == Dir && parts == depth && descend(name) {
			deeper[name] = true
		}
		if !s.ignored(name) {
			into.add(name, e)
		}
		if into.bytes > maxNames {
			return &StopError{fmt.Errorf("the names of the files in %s of the sandbox have more than %d MiB", s.Remote,
				maxNames>>20)}
		}
		return tooMany(into.entries, "the directory "+s.Remote+" of the sandbox")
	})
	if tooLong(err) && depth > 1 { // the daemon bounds the entries of one answer: list directory by directory
		return s.list(ctx, rel, 1, into, descend)
	}
	if err != nil {
		return err
	}
	for _, dir := range slices.Sorted(maps.Keys(deeper)) {
		if err := s.list(ctx, dir, maxDepth, into, descend); err != nil && !errors.Is(err, client.ErrNotFoundInSandbox) {
			return err
		}
	}
	return nil
}

// listing holds entries of the guest.
type listing struct {
	entries map[string]Entry
	bytes   int // bytes of the names and of the targets of links
}

func (l *listing) add(name string, e Entry) {
	if _, known := l.entries[name]; !known {
		l.bytes += len(name)
	}
	l.bytes += len(e.Link)
	l.entries[name] = e
}

// maxDepth is the largest depth of one listing.
const maxDepth = 64

// tooLong reports whether a listing may have failed because it has too many entries.
func tooLong(err error) bool {
	return errors.Is(err, client.ErrNoSpace) || errors.Is(err, client.ErrSandboxFailed)
}

// scanGuest lists the whole directory of the guest.
func (s *Sync) scanGuest(ctx context.Context) error {
	now := listing{entries: map[string]Entry{}}
	err := s.list(ctx, ".", maxDepth, &now, func(string) bool { return true })
	if errors.Is(err, client.ErrNotFoundInSandbox) {
		if s.Both && len(s.base) > 0 {
			return &StopError{fmt.Errorf("the directory %s is missing in the sandbox: nothing was removed on this host; start "+
				"again to copy the files into the sandbox", s.Remote)}
		}
		clear(s.base)
		err = s.cl.WriteTree(ctx, s.ID, s.Remote, tarOf(nil)) // makes the directory
	}
	if err == nil {
		s.guest, s.seen = now.entries, 0
	}
	return err
}

// relist lists some directories of the guest again. If one of them is gone, it scans everything.
func (s *Sync) relist(ctx context.Context, dirs []string) error {
	if len(dirs) > maxHints {
		return s.scanGuest(ctx)
	}
	for _, dir := range dirs {
		now := listing{entries: map[string]Entry{}}
		isNew := func(name string) bool { return s.guest[name].Kind != Dir }
		if err := s.list(ctx, dir, 1, &now, isNew); err != nil {
			var answer *client.Error
			if errors.As(err, &answer) && answer.Status < 500 {
				return s.scanGuest(ctx)
			}
			return err
		}
		for name, old := range s.guest {
			if path.Dir(name) == dir && now.entries[name].Kind != old.Kind {
				drop(s.guest, name)
			}
		}
		maps.Copy(s.guest, now.entries)
		if s.seen += now.bytes; s.seen > maxNames {
			return s.scanGuest(ctx) // checks the bounds for the whole directory
		}
	}
	return nil
}

// stillGuest returns errMoved if a file of the guest differs from its entry.
func (s *Sync) stillGuest(ctx context.Context, rel string) error {
	f, err := s.cl.StatFile(ctx, s.ID, s.remote(rel))
	if err == nil && guestEntry(&f) != s.guest[rel] || errors.Is(err, client.ErrNotFoundInSandbox) {
		return errMoved
	}
	return err
}

// tarOf returns an empty archive, or the archive that fill writes.
func tarOf(fill func(*tar.Writer) error) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		out := tar.NewWriter(w)
		var err error
		if fill != nil {
			err = fill(out)
		}
		if err == nil {
			err = out.Close()
		}
		w.CloseWithError(err)
	}()
	return r
}

// send writes files of the host to the guest in one archive. It returns the entries of the files
// that were sent. Files that are gone or cannot be read are omitted.
func (s *Sync) send(ctx context.Context, names []string) (sent map[string]Agreed, err error) {
	sent = map[string]Agreed{}
	failed := map[string]error{}
	archive := tarOf(func(out *tar.Writer) error {
		for _, rel := range names {
			done, err := s.sendOne(out, rel)
			var file *fs.PathError
			switch {
			case errors.As(err, &file) || errors.Is(err, errMoved):
				failed[rel] = err
			case err != nil:
				return err
			default:
				sent[rel] = done
			}
		}
		return nil
	})
	err = s.cl.WriteTree(ctx, s.ID, s.Remote, archive)
	archive.Close()
	if err != nil {
		return nil, err // the goroutine may still write to the maps
	}
	for rel, why := range failed {
		s.failed(rel, why)
	}
	return sent, nil
}

// sendOne adds one file to an archive. It returns the file's entry, and the entry that the guest has
// when it has unpacked the file.
func (s *Sync) sendOne(out *tar.Writer, rel string) (Agreed, error) {
	e := s.host[rel]
	h := &tar.Header{Name: rel, Mode: int64(e.Mode), Format: tar.FormatPAX}
	there := e
	switch e.Kind {
	case Dir:
		h.Typeflag, h.Name, there.Mode = tar.TypeDir, rel+"/", e.Mode|0o700
		return Agreed{e, there}, out.WriteHeader(h)
	case Link:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.Link
		return Agreed{e, there}, out.WriteHeader(h)
	}
	f, e, err := s.openHost(rel)
	if err != nil {
		return Agreed{}, err
	}
	defer f.Close()
	h.Typeflag, h.Size, h.Mode, h.ModTime = tar.TypeReg, e.Size, int64(e.Mode), e.modified()
	return Agreed{e, e}, treetar.WriteFile(out, h, f)
}

// removeGuest removes files and directories of the guest. In names, parents come before children. A
// directory with other files stays.
func (s *Sync) removeGuest(ctx context.Context, names []string) error {
	doomed := map[string]bool{}
	for _, rel := range names {
		doomed[rel] = true
	}
	var whole []string
	for _, rel := range names {
		if s.guest[rel].Kind != Dir || slices.ContainsFunc(whole, func(dir string) bool { return below(rel, dir) }) {
			continue
		}
		all, _, err := s.onlyDoomed(ctx, rel, doomed)
		if err != nil {
			return err
		}
		if all {
			whole = append(whole, rel)
		}
	}
	for _, rel := range slices.Backward(names) {
		inside := slices.ContainsFunc(whole, func(dir string) bool { return rel != dir && below(rel, dir) })
		kept := s.guest[rel].Kind == Dir && !slices.Contains(whole, rel)
		if kept {
			if all, _, err := s.onlyDoomed(ctx, rel, nil); err != nil {
				return err
			} else if kept = !all; kept {
				delete(s.base, rel) // the directory belongs to the guest from now on
				continue
			}
		}
		if !inside {
			if err := s.cl.RemoveFile(ctx, s.ID, s.remote(rel)); err != nil {
				return err
			}
		}
		delete(s.guest, rel)
		delete(s.base, rel)
		s.say("removed_in_sandbox", rel, "")
	}
	return nil
}

// onlyDoomed reports whether a set (doomed) contains all files below a directory of the guest. If
// Options.Both is set, these files must also be unchanged. The set never contains excluded files.
// If there is a file that is not in the set or has changed, onlyDoomed returns false and the name
// of this file. If the directory is too large, it returns false and an empty name.
func (s *Sync) onlyDoomed(ctx context.Context, rel string, doomed map[string]bool) (only bool, other string,
	err error) {
	only = true
	stop := errors.New("another file")
	err = s.cl.EachFile(ctx, s.ID, s.remote(rel), maxDepth, func(f client.File) error {
		name, _ := strings.CutPrefix(f.Path, strings.TrimSuffix(s.Remote, "/")+"/")
		if only = doomed[name] && (!s.Both || guestEntry(&f) == s.guest[name]); !only {
			other = name
			return stop
		}
		return nil
	})
	switch {
	case errors.Is(err, stop) || tooLong(err):
		return false, other, nil
	case errors.Is(err, client.ErrNotFoundInSandbox):
		return true, "", nil
	}
	return only, other, err
}

// guestLink returns the target of a link of the guest.
func (s *Sync) guestLink(rel string) (string, error) {
	if target := s.guest[rel].Link; target != "" {
		return target, nil
	}
	return "", errors.New("the sandbox does not report the target of the link: it is not UTF-8, or the snapshot was made " +
		"by an older forkd")
}

// sameContent reports whether a file or a link has the same content on both sides.
func (s *Sync) sameContent(ctx context.Context, rel string) (bool, error) {
	if e := s.host[rel]; e.Kind == Link {
		target, err := s.guestLink(rel)
		return target == e.Link, err
	}
	f, _, err := s.openHost(rel)
	if err != nil {
		return false, err
	}
	defer f.Close()
	there, err := s.cl.ReadFile(ctx, s.ID, s.remote(rel))
	if err != nil {
		return false, err
	}
	defer there.Close()
	return equal(f, io.LimitReader(there, s.host[rel].Size+1))
}

// equal reports whether two readers have the same content.
func equal(a, b io.Reader) (bool, error) {
	p, q := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, err := io.ReadFull(a, p)
		m, err2 := io.ReadFull(b, q)
		for _, err := range []error{err, err2} {
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return false, err
			}
		}
		if n != m || string(p[:n]) != string(q[:m]) || err != nil || err2 != nil {
			return n == m && string(p[:n]) == string(q[:m]), nil
		}
	}
}
