package build

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/forkd/forkd/internal/build/dockerfile"
	"github.com/forkd/forkd/internal/treetar"
)

// filtered returns a guest's archive in a form that another guest can safely unpack. The last
// argument is the path of the directory into which the archive is unpacked. The path is relative to
// the staging directory of a COPY. If file is not empty, the archive must have only one entry, a
// file with that name. Entries that match a pattern in leave are omitted. All other entries are
// checked against brought, the links that the COPY has already unpacked. A hard link to an excluded
// file is an error, because the archive does not have the file's content. Close waits until nothing
// uses the archive or these links any more. So the caller must first make the archive end, for
// example by closing it.
func filtered(archive io.Reader, file string, leave dockerfile.Ignore, brought *links, below string) io.ReadCloser {
	r, w := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.CloseWithError(filter(w, archive, file, leave, brought, below))
	}()
	return filteredArchive{r, ended}
}

type filteredArchive struct {
	*io.PipeReader
	ended <-chan struct{} // closed when the goroutine that filters has ended
}

// Close implements io.Closer.
func (f filteredArchive) Close() error {
	err := f.PipeReader.Close()
	<-f.ended
	return err
}

func filter(w io.Writer, archive io.Reader, file string, leave dockerfile.Ignore, brought *links, below string) error {
	if err := brought.check(below, true); err != nil {
		return err
	}
	in, out := treetar.NewReader(archive), tar.NewWriter(w)
	for n := 0; ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			if err := atEnd(archive); err != nil {
				return fmt.Errorf("read the guest's archive: %w", err)
			}
			if file != "" && n == 0 {
				return fmt.Errorf("the guest's archive does not have the file %.200q", file)
			}
			return out.Close()
		}
		if err != nil {
			return fmt.Errorf("read the guest's archive: %w", err)
		}
		if isOut(leave, h.Name) {
			continue
		}
		if h.Typeflag == tar.TypeLink && isOut(leave, h.Linkname) {
			return fmt.Errorf("%s is a hard link to %s, which --exclude leaves out", h.Name, h.Linkname)
		}
		if err := brought.add(h, below); err != nil {
			return err
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		n++
		if file != "" && (n > 1 || h.Name != file || h.Typeflag == tar.TypeDir) {
			return fmt.Errorf("the guest's archive has the entry %.200q: want only the file %.200q", h.Name, file)
		}
		if h.Format != tar.FormatPAX { // the other formats do not support every name
			h.Format = tar.FormatGNU
		}
		if err := out.WriteHeader(h); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
		if _, err := io.Copy(out, in); err != nil {
			return fmt.Errorf("read the guest's archive: %w", err)
		}
	}
}

// maxPadding bounds the bytes after the end of an archive. Programs such as tar pad an archive to
// whole records, which have 10 KiB by default.
const maxPadding = 1 << 20

// atEnd reads the bytes that follow the end of an archive. It returns the error of the program that
// wrote the archive, because that program may have omitted files that it could not read.
func atEnd(archive io.Reader) error {
	n, err := io.Copy(io.Discard, io.LimitReader(archive, maxPadding+1))
	if err == nil && n > maxPadding {
		err = fmt.Errorf("more than %d MiB follow its end", maxPadding>>20)
	}
	return err
}

// isOut reports whether an entry of an archive is excluded. The copied directory itself is never
// excluded.
func isOut(leave dockerfile.Ignore, name string) bool {
	name = path.Clean("/" + name)[1:]
	return name != "" && leave.Out(name)
}

// links holds the paths of the symbolic links that a COPY has unpacked. The COPY unpacks its
// archives one after another into the same directory. No entry may be unpacked through such a link:
// the link can lead anywhere.
type links struct {
	paths map[string]bool
	bytes int
}

// add checks an entry of an archive, and records the entry if it is a link. The second argument is
// the path of the directory into which the archive is unpacked.
func (l *links) add(h *tar.Header, below string) error {
	name, err := pathBelow(below, h.Name)
	if err != nil {
		return err
	}
	if err := l.check(name, h.Typeflag == tar.TypeDir); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeLink:
		if path.IsAbs(h.Linkname) { // busybox's tar would link to a file of the guest, and GNU tar to a file in the copy
			return fmt.Errorf("%.200s is a hard link to the absolute path %.200q", h.Name, h.Linkname)
		}
		to, err := pathBelow(below, h.Linkname)
		if err != nil {
			return err
		}
		if err := l.check(to, false); err != nil || !l.paths[to] {
			return err
		}
		return l.note(name) // a hard link to a symbolic link is a symbolic link too
	case tar.TypeSymlink:
		return l.note(name)
	}
	return nil
}

// note records the path of a symbolic link.
func (l *links) note(name string) error {
	if l.bytes += len(name); l.bytes > maxNames {
		return fmt.Errorf("the paths of the links to copy have more than %d MiB", maxNames>>20)
	}
	if l.paths == nil {
		l.paths = make(map[string]bool)
	}
	l.paths[name] = true
	return nil
}

// check refuses a path inside a linked directory, and a directory with the path of a link.
func (l *links) check(name string, dir bool) error {
	if len(l.paths) == 0 {
		return nil
	}
	if dir && l.paths[name] {
		return fmt.Errorf("%.200s is a directory, and before it a symbolic link came by that name: copy them by two COPYs",
			name)
	}
	for up := path.Dir(name); up != "." && up != "/"; up = path.Dir(up) {
		if l.paths[up] {
			return fmt.Errorf("%.200s is below %.200s, and before it a symbolic link came by that name: copy them by two COPYs",
				name, up)
		}
	}
	return nil
}

// pathBelow returns the path at which the entry with the given name is unpacked. The first argument
// is the path of the directory into which the archive is unpacked.
func pathBelow(below, name string) (string, error) {
	if path.IsAbs(below) {
		return "", fmt.Errorf("the directory %.200q of a COPY is absolute: want a relative one", below)
	}
	if err := treetar.CheckName(name); err != nil {
		return "", err
	}
	if slices.Contains(strings.Split(name, "/"), "..") {
		return "", fmt.Errorf("the guest's archive has the name %.200q, which leads out of it", name)
	}
	return path.Join(below, path.Clean("/" + name)[1:]), nil
}
