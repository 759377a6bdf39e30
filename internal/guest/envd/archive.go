package envd

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guest/userenv"
	"github.com/forkd/forkd/internal/treetar"
)

// archiveTarget returns the path and the user of a request for an archive. forkd adds the routes
// for archives to E2B's protocol.
func (s *Server) archiveTarget(r *http.Request) (string, *userenv.User, error) {
	u, err := s.cfg.Env.User(r.URL.Query().Get("username"))
	if err != nil {
		return "", nil, httpFailure{http.StatusUnauthorized, err}
	}
	return userenv.Path(u, r.URL.Query().Get("path")), u, nil
}

// handlePack sends a directory as an archive. If an error occurs after the answer has begun, the
// connection is aborted.
func (s *Server) handlePack(w http.ResponseWriter, r *http.Request) {
	path, _, err := s.archiveTarget(r)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-tar")
	if err := treetar.Pack(w, path); err != nil {
		s.cfg.Log.Warnf("pack %s: %v", path, err)
		panic(http.ErrAbortHandler)
	}
}

// handleUnpack unpacks an archive in a directory, and creates the directory if it is missing. The
// user owns all created files and directories. After an error, the entries that were already
// unpacked remain.
func (s *Server) handleUnpack(w http.ResponseWriter, r *http.Request) {
	path, u, err := s.archiveTarget(r)
	if err == nil {
		err = makeDirs(path, u)
	}
	if err == nil {
		err = unpack(r, path, u)
	}
	if err != nil {
		fail(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// maxLeft is the maximum number of entries that an error names.
const maxLeft = 5

func unpack(r *http.Request, path string, u *userenv.User) error {
	root, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer root.Close()
	to := treetar.Target{Root: root, Bits: true, Made: func(name string) error {
		if u.Credential() == nil {
			return nil // no change, because u is the agent's own user
		}
		return root.Lchown(name, int(u.UID), int(u.GID))
	}}
	var left []string
	to.Left = func(name string) {
		if len(left) < maxLeft {
			left = append(left, name)
		}
	}
	err = treetar.Unpack(r.Body, to)
	if err == nil && len(left) > 0 {
		return failf(http.StatusBadRequest,
			"unpack in %s: %.300q: neither a file nor a directory nor a link, such as a device or a pipe: "+
				"leave it out of the archive; everything else is unpacked", path, left)
	}
	if err == nil || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return err
	}
	return failf(http.StatusBadRequest, "unpack in %s: %w", path, err)
}
