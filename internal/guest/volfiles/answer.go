package volfiles

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/filesproto"
)

// Bounds on a list.
const (
	maxDepth   = 64
	maxEntries = 10_000
)

// Modes of new files and directories, if the request gives none.
const (
	fileMode = 0o644
	dirMode  = 0o755
)

// problem is an error with the status of its answer.
type problem struct {
	status int
	error
}

func wrong(format string, args ...any) error {
	return problem{http.StatusBadRequest, fmt.Errorf(format, args...)}
}

// answer answers a request for the files below root.
func answer(root *os.Root, r *http.Request) *http.Response {
	status, body, err := handle(root, r)
	if err != nil {
		return failed(err)
	}
	if f, ok := body.(*os.File); ok {
		return fileResponse(f)
	}
	return jsonResponse(status, body)
}

// handle returns the status and the body of an answer: a value for JSON, an open file, or nil.
func handle(root *os.Root, r *http.Request) (status int, body any, err error) {
	q := r.URL.Query()
	name := strings.TrimPrefix(path.Clean("/"+q.Get("path")), "/")
	if name == "" {
		name = "."
	}
	set, err := changesIn(q)
	if err != nil {
		return 0, nil, err
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /dir":
		status = http.StatusOK
		body, err = list(root, name, q.Get("depth"))
	case "POST /dir":
		status = http.StatusCreated
		body, err = makeDir(root, name, set)
	case "GET /path":
		status = http.StatusOK
		body, err = statOf(root, name)
	case "PATCH /path":
		status = http.StatusOK
		body, err = change(root, name, r.Body)
	case "DELETE /path":
		return http.StatusNoContent, nil, remove(root, name)
	case "GET /file":
		status = http.StatusOK
		body, err = open(root, name)
	case "PUT /file":
		status = http.StatusCreated
		body, err = write(root, name, r.Body, set)
	default:
		err = problem{http.StatusMethodNotAllowed, fmt.Errorf("%s %s: there is no such request", r.Method, r.URL.Path)}
	}
	return status, body, err
}

// changes are the owner and the mode that a request gives to a file.
type changes struct {
	UID   *uint32 `json:"uid"`
	GID   *uint32 `json:"gid"`
	Mode  *uint32 `json:"mode"`
	force bool
}

func changesIn(q url.Values) (c changes, err error) {
	for field, to := range map[string]**uint32{"uid": &c.UID, "gid": &c.GID, "mode": &c.Mode} {
		text := q.Get(field)
		if text == "" {
			continue
		}
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return c, wrong("%s: %.20q: want a number", field, text)
		}
		*to = new(uint32(n))
	}
	if text := q.Get("force"); text != "" {
		if c.force, err = strconv.ParseBool(text); err != nil {
			return c, wrong("force: %.20q: want true or false", text)
		}
	}
	return c, c.check()
}

// anyMode has all bits of a mode that a request may set.
const anyMode = 0o7777

func (c *changes) check() error {
	if c.Mode != nil && *c.Mode&^anyMode != 0 {
		return wrong("mode: %#o: want at most %#o", *c.Mode, anyMode)
	}
	return nil
}

// apply sets the owner first, because a change of the owner clears the set-user-ID bit.
func (c *changes) apply(root *os.Root, name string) error {
	if c.UID != nil || c.GID != nil {
		if err := root.Lchown(name, idOf(c.UID), idOf(c.GID)); err != nil {
			return err
		}
	}
	if c.Mode == nil {
		return nil
	}
	return root.Chmod(name, modeOf(*c.Mode))
}

// applyTo is like apply, for an open file. The changes must have a mode.
func (c *changes) applyTo(f *os.File) error {
	if c.UID != nil || c.GID != nil {
		if err := f.Chown(idOf(c.UID), idOf(c.GID)); err != nil {
			return err
		}
	}
	return f.Chmod(modeOf(*c.Mode))
}

func idOf(id *uint32) int {
	if id == nil {
		return -1 // unchanged, see chown(2)
	}
	return int(*id)
}

func modeOf(bits uint32) fs.FileMode {
	mode := fs.FileMode(bits & 0o777)
	for bit, m := range map[uint32]fs.FileMode{unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid,
		unix.S_ISVTX: fs.ModeSticky} {
		if bits&bit != 0 {
			mode |= m
		}
	}
	return mode
}

// stat describes a file, a directory or a link.
type stat struct {
	Name   string    `json:"name"`
	Type   string    `json:"type"`
	Path   string    `json:"path"`
	Size   int64     `json:"size"`
	Mode   uint32    `json:"mode"`
	UID    uint32    `json:"uid"`
	GID    uint32    `json:"gid"`
	ATime  time.Time `json:"atime"`
	MTime  time.Time `json:"mtime"`
	CTime  time.Time `json:"ctime"`
	Target string    `json:"target,omitempty"`
}

func statOf(root *os.Root, name string) (s stat, err error) {
	info, err := root.Lstat(name)
	if err != nil {
		return s, err
	}
	sys, err := sysOf(info)
	if err != nil {
		return s, err
	}
	at := func(t unix.Timespec) time.Time { return time.Unix(t.Unix()).UTC() }
	s = stat{Name: path.Base(path.Join("/", name)), Path: path.Join("/", name), Size: info.Size(), Type: "unknown",
		Mode: sys.Mode & anyMode, UID: sys.Uid, GID: sys.Gid, ATime: at(unix.Timespec(sys.Atim)),
		MTime: at(unix.Timespec(sys.Mtim)), CTime: at(unix.Timespec(sys.Ctim))}
	switch info.Mode().Type() {
	case 0:
		s.Type = "file"
	case fs.ModeDir:
		s.Type = "directory"
	case fs.ModeSymlink:
		s.Type = "symlink"
		s.Target, err = root.Readlink(name)
	}
	return s, err
}

// list returns the entries of a directory, in the order of their paths. With a depth of 1, which is
// the default, the list omits the entries of subdirectories.
func list(root *os.Root, name, depth string) ([]stat, error) {
	levels := uint64(1)
	if depth != "" {
		var err error
		if levels, err = strconv.ParseUint(depth, 10, 32); err != nil || levels == 0 || levels > maxDepth {
			return nil, wrong("depth: %.20q: want 1 to %d", depth, maxDepth)
		}
	}
	found := []stat{}
	err := walk(root, name, levels, &found)
	return found, err
}

func walk(root *os.Root, name string, levels uint64, found *[]stat) error {
	const flags = os.O_RDONLY | unix.O_DIRECTORY | unix.O_NONBLOCK
	f, err := root.OpenFile(name, flags, 0)
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(maxEntries + 1 - len(*found))
	_ = f.Close() // open for reading only
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	slices.Sort(names)
	for _, n := range names {
		if len(*found) == maxEntries {
			return problem{http.StatusRequestEntityTooLarge,
				fmt.Errorf("more than %d entries: list a directory below, or with a smaller depth", maxEntries)}
		}
		s, err := statOf(root, path.Join(name, n))
		if err != nil {
			return err
		}
		if *found = append(*found, s); s.Type == "directory" && levels > 1 {
			if err := walk(root, path.Join(name, n), levels-1, found); err != nil {
				return err
			}
		}
	}
	return nil
}

// makeDir makes a directory. With force, it also makes the missing directories above, and the
// directory may exist.
func makeDir(root *os.Root, name string, set changes) (stat, error) {
	var err error
	if set.force {
		err = root.MkdirAll(name, dirMode)
	} else if err = root.Mkdir(name, dirMode); err == nil && set.Mode == nil {
		set.Mode = new(uint32(dirMode))
	}
	if err == nil {
		err = set.apply(root, name)
	}
	if err != nil {
		return stat{}, err
	}
	return statOf(root, name)
}

// maxBody is the maximum size of a JSON body, in bytes.
const maxBody = 64 << 10

func change(root *os.Root, name string, body io.Reader) (stat, error) {
	var set changes
	dec := json.NewDecoder(io.LimitReader(body, maxBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&set); err != nil {
		return stat{}, wrong("body: %v", err)
	}
	err := set.check()
	if err == nil {
		err = set.apply(root, name)
	}
	if err != nil {
		return stat{}, err
	}
	return statOf(root, name)
}

func remove(root *os.Root, name string) error {
	if name == "." {
		return wrong("path: the root directory cannot be removed")
	}
	if _, err := root.Lstat(name); err != nil {
		return err
	}
	return root.RemoveAll(name)
}

func open(root *os.Root, name string) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // non-blocking, because it may be a FIFO
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = wrong("path: %q is not a regular file", "/"+name)
	}
	if err != nil {
		_ = f.Close() // report the first error
		return nil, err
	}
	return f, nil
}

// write replaces a file by the given content. The file is replaced as a whole, when all content has
// arrived. A file that existed keeps its owner and its mode, unless the request sets them. With
// force, write makes missing directories.
func write(root *os.Root, name string, content io.Reader, set changes) (_ stat, err error) {
	dir := path.Dir(name)
	old, err := root.Lstat(name)
	switch {
	case err == nil && old.IsDir():
		return stat{}, wrong("path: %q is a directory", "/"+name)
	case err == nil:
		err = set.keep(old)
	case errors.Is(err, fs.ErrNotExist):
		if err = nil; set.force {
			err = root.MkdirAll(dir, dirMode)
		}
	}
	if err != nil {
		return stat{}, err
	}
	if set.Mode == nil {
		set.Mode = new(uint32(fileMode))
	}
	f, err := root.OpenFile(dir, os.O_WRONLY|unix.O_TMPFILE, 0o600)
	if err != nil {
		return stat{}, err
	}
	_, err = io.Copy(f, content)
	if err == nil {
		err = set.applyTo(f)
	}
	if err == nil {
		err = replace(root, name, f)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return stat{}, err
	}
	return statOf(root, name)
}

// replace gives a name to a file that has none. If the VM is killed before that, nothing of the
// file is left: the next mount of the volume frees it.
func replace(root *os.Root, name string, f *os.File) error {
	dir, err := root.OpenFile(path.Dir(name), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	temp := ".forkd-" + rand.Text()
	err = unix.Linkat(int(f.Fd()), "", int(dir.Fd()), temp, unix.AT_EMPTY_PATH)
	if errors.Is(err, unix.ENOENT) { // without CAP_DAC_READ_SEARCH; forkd-files has it
		err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), int(dir.Fd()), temp, unix.AT_SYMLINK_FOLLOW)
	}
	if err != nil {
		return fmt.Errorf("name the new file: %w", err)
	}
	temp = path.Join(path.Dir(name), temp)
	if err = root.Rename(temp, name); err != nil {
		_ = root.Remove(temp) // report the first error
	}
	return err
}

// keep adds the owner and the mode of the old file, unless the request sets them. Links have no mode
// of their own.
func (c *changes) keep(old fs.FileInfo) error {
	sys, err := sysOf(old)
	if err != nil {
		return err
	}
	if c.UID == nil {
		c.UID = &sys.Uid
	}
	if c.GID == nil {
		c.GID = &sys.Gid
	}
	if c.Mode == nil && old.Mode().IsRegular() {
		c.Mode = new(sys.Mode & anyMode)
	}
	return nil
}

// failed returns the answer for an error.
func failed(err error) *http.Response {
	var p problem
	status := http.StatusInternalServerError
	switch {
	case errors.As(err, &p):
		status = p.status
	case errors.Is(err, fs.ErrNotExist):
		status = http.StatusNotFound
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		status = http.StatusInsufficientStorage
	case errors.Is(err, fs.ErrExist):
		status = http.StatusConflict
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ELOOP),
		errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EPERM),
		strings.Contains(err.Error(), "path escapes from parent"): // package os exports no such error
		status = http.StatusBadRequest
	}
	return jsonResponse(status, filesproto.Error{Code: codes[status], Message: err.Error()})
}

// codes has the codes of errors by their statuses.
var codes = map[int]string{
	http.StatusBadRequest:            "invalid_argument",
	http.StatusNotFound:              "not_found",
	http.StatusMethodNotAllowed:      "invalid_argument",
	http.StatusConflict:              "already_exists",
	http.StatusRequestEntityTooLarge: "resource_exhausted",
	http.StatusInsufficientStorage:   "resource_exhausted",
	http.StatusInternalServerError:   "internal",
}

func jsonResponse(status int, body any) *http.Response {
	var p []byte
	if body != nil {
		var err error
		if p, err = json.Marshal(body); err != nil {
			status, p = http.StatusInternalServerError, []byte("{}")
		}
	}
	return response(status, "application/json", int64(len(p)), io.NopCloser(bytes.NewReader(p)))
}

// fileResponse returns an answer with the content of a file. The file has fewer bytes than its size
// says only if the file system is damaged.
func fileResponse(f *os.File) *http.Response {
	info, err := f.Stat()
	if err != nil {
		_ = f.Close() // report the first error
		return failed(err)
	}
	return response(http.StatusOK, "application/octet-stream", info.Size(), f)
}

func response(status int, kind string, size int64, body io.ReadCloser) *http.Response {
	return &http.Response{StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, ContentLength: size, Body: body,
		Header: http.Header{"Content-Type": {kind}}, Close: true}
}
