package envd

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guest/userenv"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

// httpFailure is an error with the HTTP status of its answer.
type httpFailure struct {
	status int
	error
}

func failf(status int, format string, args ...any) error {
	return httpFailure{status, fmt.Errorf(format, args...)}
}

func fail(w http.ResponseWriter, err error) {
	var f httpFailure
	status := http.StatusInternalServerError
	switch {
	case errors.As(err, &f):
		status = f.status
	case errors.Is(err, fs.ErrNotExist):
		status = http.StatusNotFound
	case isDenied(err):
		status = http.StatusForbidden
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		status = http.StatusInsufficientStorage
	case isWrongPath(err):
		status = http.StatusBadRequest
	}
	writeError(w, status, err.Error())
}

// filesUser checks whether a /files request is authorized for operation ("read" or "write"), and
// returns the user that the request names.
func (s *Server) filesUser(r *http.Request, operation string) (*userenv.User, error) {
	if err := s.checkSignature(r, operation); err != nil {
		return nil, err
	}
	u, err := s.cfg.Env.UserOr(r.URL.Query().Get("username"), r.Header.Get(agentproto.DefaultUserHeader))
	if err != nil {
		return nil, httpFailure{http.StatusUnauthorized, err}
	}
	return u, nil
}

// checkSignature accepts a request that has the access token or a valid signature. A signature is
// "v1_" and the unpadded base64 of a SHA-256. The hash is over path, operation, user and token,
// joined by colons, followed by a colon and the expiry in seconds if the URL expires.
func (s *Server) checkSignature(r *http.Request, operation string) error {
	token := s.accessToken()
	if token == "" {
		return nil
	}
	if given := r.Header.Get("X-Access-Token"); given != "" {
		if !equal(given, token) {
			return failf(http.StatusUnauthorized, "X-Access-Token is wrong")
		}
		return nil
	}
	q := r.URL.Query()
	parts := []string{q.Get("path"), operation, q.Get("username"), token}
	expiration := q.Get("signature_expiration")
	if expiration != "" {
		parts = append(parts, expiration)
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, ":")))
	if !equal(q.Get("signature"), "v1_"+base64.RawStdEncoding.EncodeToString(sum[:])) {
		return failf(http.StatusUnauthorized, "signature is missing or wrong")
	}
	if expiration != "" {
		at, err := strconv.ParseInt(expiration, 10, 64)
		if err != nil {
			return failf(http.StatusUnauthorized, "signature_expiration %q is not a number", expiration)
		}
		if at < time.Now().Unix() {
			return failf(http.StatusUnauthorized, "signature is already expired")
		}
	}
	return nil
}

func (s *Server) handleRead(w http.ResponseWriter, r *http.Request) {
	u, err := s.filesUser(r, "read")
	if err != nil {
		fail(w, err)
		return
	}
	path := userenv.Path(u, r.URL.Query().Get("path"))
	// non-blocking: in blocking mode, opening a FIFO would wait for a writer
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		fail(w, err)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		fail(w, err)
		return
	}
	if !info.Mode().IsRegular() {
		fail(w, failf(http.StatusBadRequest, "path %q is not a regular file", path))
		return
	}
	if strings.HasPrefix(path, "/proc/") || strings.HasPrefix(path, "/sys/") {
		// No Content-Length here: files in /proc and /sys report a wrong size.
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = io.Copy(w, f)
		return
	}
	w.Header().Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": info.Name()}))
	http.ServeContent(w, r, info.Name(), info.ModTime(), f)
}

// written is the answer for one uploaded file; clients compare it exactly.
type written struct {
	Path     string            `json:"path"`
	Name     string            `json:"name"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

func (s *Server) handleWrite(w http.ResponseWriter, r *http.Request) {
	u, err := s.filesUser(r, "write")
	if err != nil {
		fail(w, err)
		return
	}
	meta, err := metadataOf(r.Header)
	if err != nil {
		fail(w, err)
		return
	}
	up := upload{user: u, path: r.URL.Query().Get("path"), meta: meta}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch kind {
	case "multipart/form-data":
		err = up.multipart(r)
	case "application/octet-stream":
		err = up.raw(r)
	default:
		err = failf(http.StatusBadRequest, "Content-Type %q is not multipart/form-data or application/octet-stream",
			r.Header.Get("Content-Type"))
	}
	if err != nil {
		fail(w, err)
		return
	}
	writeJSON(w, up.done)
}

type upload struct {
	user *userenv.User
	path string // path in the query; empty if the parts of the form name their files
	meta map[string]string
	done []written
}

// multipart writes every part named "file". The file name of a part is a whole path. Part.FileName
// would return only its last element, so multipart parses the header itself.
func (up *upload) multipart(r *http.Request) error {
	parts, err := r.MultipartReader()
	if err != nil {
		return failf(http.StatusBadRequest, "multipart body: %w", err)
	}
	for {
		part, err := parts.NextPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			return failf(http.StatusBadRequest, "multipart body: %w", err)
		}
		if part.FormName() != "file" {
			continue
		}
		path := up.path
		if path == "" {
			_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
			if err != nil || params["filename"] == "" {
				return failf(http.StatusBadRequest, "a file part has no filename and the query no path")
			}
			path = params["filename"]
		} else if len(up.done) > 0 {
			return failf(http.StatusBadRequest, "several files with one path in the query; name them in the parts")
		}
		if err := up.write(path, part); err != nil {
			return err
		}
	}
	if len(up.done) == 0 {
		return failf(http.StatusBadRequest, "the multipart body has no part named \"file\"")
	}
	return nil
}

func (up *upload) raw(r *http.Request) error {
	if up.path == "" {
		return failf(http.StatusBadRequest, "the query has no path")
	}
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return failf(http.StatusBadRequest, "gzip body: %w", err)
		}
		body = z
	}
	return up.write(up.path, body)
}

func (up *upload) write(path string, content io.Reader) error {
	path = userenv.Path(up.user, path)
	if err := makeDirs(filepath.Dir(path), up.user); err != nil {
		return err
	}
	if err := replaceFile(path, content, up.meta, up.user); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	up.done = append(up.done, written{Path: path, Name: filepath.Base(path), Type: "file", Metadata: up.meta})
	return nil
}

// metadataOf reads the X-Metadata-* headers of an upload.
func metadataOf(h http.Header) (map[string]string, error) {
	var out map[string]string
	total := 0
	for name, values := range h {
		key, ok := strings.CutPrefix(strings.ToLower(name), "x-metadata-")
		if !ok {
			continue
		}
		value := strings.Join(values, ",")
		total += len(key) + len(value)
		if key == "" || len(key) > maxMetadataKey || total > maxMetadataTotal {
			return nil, failf(http.StatusBadRequest, "metadata %q: keys have 1 to %d bytes, all metadata at most %d", key,
				maxMetadataKey, maxMetadataTotal)
		}
		for i := range len(value) {
			if value[i] < ' ' || value[i] > '~' {
				return nil, failf(http.StatusBadRequest, "metadata %q: the value is not printable ASCII", key)
			}
		}
		if out == nil {
			out = map[string]string{}
		}
		out[key] = value
	}
	return out, nil
}
