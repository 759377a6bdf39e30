package build

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/forkd/forkd/internal/build/dockerfile"
)

// without returns an archive without the entries that are left out. A link to a file that is left out is an
// error: the archive does not have its content.
func without(archive io.Reader, leave dockerfile.Ignore) io.ReadCloser {
	r, w := io.Pipe()
	go func() { w.CloseWithError(filter(w, archive, leave)) }()
	return r
}

func filter(w io.Writer, archive io.Reader, leave dockerfile.Ignore) error {
	in, out := tar.NewReader(archive), tar.NewWriter(w)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err != nil {
			return fmt.Errorf("read the guest's archive: %w", err)
		}
		gone, err := isOut(leave, h.Name)
		if err != nil {
			return err
		}
		if gone {
			continue
		}
		if h.Typeflag == tar.TypeLink {
			if gone, err = isOut(leave, h.Linkname); err != nil || gone {
				return errors.Join(err, fmt.Errorf("%s is a hard link to %s, which --exclude leaves out", h.Name, h.Linkname))
			}
		}
		if err := out.WriteHeader(h); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
		if _, err := io.Copy(out, in); err != nil {
			return fmt.Errorf("read the guest's archive: %w", err)
		}
	}
}

// isOut reports whether an entry of an archive is left out. The directory itself never is.
func isOut(leave dockerfile.Ignore, name string) (bool, error) {
	name = path.Clean("/" + name)[1:]
	if name == "" {
		return false, nil
	}
	return leave.Out(name)
}
