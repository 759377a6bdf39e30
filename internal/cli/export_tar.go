package cli

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/forkd/forkd/internal/treetar"
)

// maxExportNames bounds the memory for the names in an archive, in bytes.
const maxExportNames = 256 << 20

// exportEntry is an entry of an exported archive.
type exportEntry struct {
	*tar.Header
	path    string // without a slash at the beginning or end; "." for the root
	deleted bool   // path was deleted
	content io.Reader
}

// readExport reads an exported archive and calls each, unless it is nil, for its entries. The guest determines
// what the archive has. So readExport refuses an archive from which a program could be led to a place outside
// of the directory in which it unpacks the archive.
func readExport(archive io.Reader, each func(exportEntry) error) error {
	archive = io.LimitReader(archive, treetar.MaxBytes)
	in := tar.NewReader(archive) // the limit bounds headers too; a hole may have any size, and is not read here
	left, names, entries := int64(treetar.MaxBytes), 0, 0
	links := make(map[string]bool) // symbolic links
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, archive) // an answer that was broken off ends with an error
			return err
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if names += len(h.Name) + len(h.Linkname); names > maxExportNames {
			return fmt.Errorf("the archive has more than %d MiB of names: name a PATH", maxExportNames>>20)
		}
		if entries++; entries > treetar.MaxEntries {
			return fmt.Errorf("the archive has more than %d entries: name a PATH", treetar.MaxEntries)
		}
		e := exportEntry{Header: h, content: in}
		if e.path, err = exportedPath(h.Name); err != nil {
			return err
		}
		for at := path.Dir(e.path); at != "."; at = path.Dir(at) {
			if links[at] {
				return fmt.Errorf("the archive has a file below the symbolic link %.100q", at)
			}
		}
		dir, base := path.Split(e.path)
		base, e.deleted = strings.CutPrefix(base, ".wh.")
		if e.deleted {
			if e.path = dir + base; base == "" || base == "." || base == ".." || strings.HasPrefix(base, ".wh.") || h.Size > 0 {
				return fmt.Errorf("the archive has the name %.100q", h.Name)
			}
		}
		delete(links, e.path)
		if err := e.check(links); err != nil {
			return err
		}
		if left -= h.Size; left < 0 && h.Size > 0 && each != nil {
			return fmt.Errorf("the files have more than %d GiB: name a PATH", treetar.MaxBytes>>30)
		}
		if each != nil {
			if err := each(e); err != nil {
				return err
			}
		}
	}
}

// check returns an error for a type or a link that an export cannot have. It adds symbolic links to links.
func (e *exportEntry) check(links map[string]bool) error {
	switch e.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeDir, tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
	case tar.TypeSymlink:
		if len(e.Linkname) == 0 {
			return fmt.Errorf("the archive has a symbolic link %.100q to nowhere", e.Name)
		}
		links[e.path] = true
	case tar.TypeLink:
		target, err := exportedPath(e.Linkname)
		if err != nil {
			return err
		}
		for at := target; at != "."; at = path.Dir(at) {
			if links[at] {
				return fmt.Errorf("the archive has a hard link %.100q through a symbolic link", e.Name)
			}
		}
	default:
		return fmt.Errorf("the archive has an entry %.100q of the type %q", e.Name, e.Typeflag)
	}
	return nil
}

// exportedPath checks a name in an archive. It returns the path without a slash at the end.
func exportedPath(name string) (string, error) {
	if err := treetar.CheckName(name); err != nil {
		return "", err
	}
	at := strings.TrimSuffix(name, "/")
	if at == "." || at != "" && path.Clean(at) == at && !path.IsAbs(at) && at != ".." &&
		!strings.HasPrefix(at, "../") && !strings.ContainsRune(at, 0) {
		return at, nil
	}
	return "", fmt.Errorf("the archive has the name %.100q, which leads out of a directory", name)
}
