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

// Bounds of an archive. They bound the memory for the names in the archive.
const (
	maxExportNames   = 256 << 20 // bytes
	maxExportEntries = 1 << 20   // forkd-diff packs no more entries
)

// exportEntry is an entry of an exported archive.
type exportEntry struct {
	*tar.Header
	path    string // without a slash at the beginning or end; "." for the root
	deleted bool   // path was deleted
	content io.Reader
}

// readExport reads an exported archive, and calls each(e) for every entry e. It fails if the
// archive has more than the given number of bytes. The guest determines the content of the archive.
// So readExport refuses an archive that could make a program write outside of the directory in
// which it unpacks the archive.
func readExport(archive io.Reader, most int64, each func(exportEntry) error) error {
	var form tarForm
	limited := &io.LimitedReader{R: archive, N: most + 1} // bounds headers too
	archive = io.TeeReader(limited, &form)
	in, paths, names := tar.NewReader(archive), exportPaths{kinds: make(map[string]byte)}, 0
	for {
		h, err := in.Next()
		isEnd := errors.Is(err, io.EOF)
		if isEnd {
			_, err = io.Copy(io.Discard, archive) // an answer that was broken off ends with an error
		}
		switch {
		case limited.N <= 0:
			return fmt.Errorf("the archive has more than %d bytes: name a PATH with fewer files", most)
		case isEnd && err == nil && !form.ended:
			return errors.New("the archive has no end")
		case isEnd:
			return err
		case err != nil:
			return fmt.Errorf("read the archive: %w", err)
		}
		if names += len(h.Name) + len(h.Linkname); names > maxExportNames {
			return fmt.Errorf("the archive has more than %d MiB of names: name a PATH", maxExportNames>>20)
		}
		e := exportEntry{Header: h, content: in}
		if e.path, err = exportedPath(h.Name); err != nil {
			return err
		}
		dir, base := path.Split(e.path)
		if base, e.deleted = strings.CutPrefix(base, ".wh."); e.deleted {
			e.path = dir + base
		}
		if e.deleted && (base == "" || base == "." || base == ".." || h.Typeflag != tar.TypeReg || h.Size > 0) ||
			strings.Contains("/"+e.path, "/.wh.") ||
			h.Typeflag != tar.TypeDir && (e.path == "." || strings.HasSuffix(h.Name, "/")) {
			return fmt.Errorf("the archive has the name %.100q", h.Name)
		}
		if err := paths.add(&e); err != nil {
			return err
		}
		if err := each(e); err != nil {
			return err
		}
	}
}

// whiteoutKind is the kind of a path with a whiteout.
const whiteoutKind = 'w'

// exportPaths holds the paths of the entries so far.
type exportPaths struct {
	kinds map[string]byte // type of the entry at a path, or whiteoutKind
	last  string          // path of the previous entry, if that entry is a whiteout
}

// add adds the path of an entry. It returns an error for a path or a link that no export has. If
// one entry makes a path a symbolic link, the path counts as a link even after a later entry with
// this path. A program may keep the link in spite of the later entry.
func (p *exportPaths) add(e *exportEntry) error {
	for at := path.Dir(e.path); at != "."; at = path.Dir(at) {
		if kind, ok := p.kinds[at]; ok && kind != tar.TypeDir && kind != whiteoutKind {
			return fmt.Errorf("the archive has a file below %.100q, which is a link or a file", at)
		}
	}
	// A path may occur twice only if one type of file replaces another: first a whiteout, then the
	// new entry.
	if _, ok := p.kinds[e.path]; ok && (e.deleted || e.path != p.last) {
		return fmt.Errorf("the archive has the path %.100q twice", e.path)
	}
	kind := e.Typeflag
	switch kind {
	case tar.TypeReg, tar.TypeDir, tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
	case tar.TypeSymlink:
		if e.Linkname == "" {
			return fmt.Errorf("the archive has a symbolic link %.100q to nowhere", e.Name)
		}
	case tar.TypeLink:
		if p.kinds[e.Linkname] != tar.TypeReg {
			return fmt.Errorf("the archive has a hard link %.100q to something else than a file before it", e.Name)
		}
	default:
		return fmt.Errorf("the archive has an entry %.100q of the type %q", e.Name, e.Typeflag)
	}
	if p.last = ""; e.deleted {
		kind, p.last = whiteoutKind, e.path
	}
	if p.kinds[e.path] = kind; len(p.kinds) > maxExportEntries {
		return fmt.Errorf("the archive has more than %d files: name a PATH", maxExportEntries)
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
