package docker

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/treetar"
)

// statHeader is the header of an answer that describes a path. Its value is JSON in base64.
const statHeader = "X-Docker-Container-Path-Stat"

// root is the account that owns copied files, as in Docker.
const root = "root"

// pathStat describes a file or directory of a container.
type pathStat struct {
	Name       string      `json:"name"`
	Size       int64       `json:"size"`
	Mode       fs.FileMode `json:"mode"`
	Mtime      time.Time   `json:"mtime"`
	LinkTarget string      `json:"linkTarget"` // always empty: links are followed
}

// filePath is a path in a container that a request names.
type filePath struct {
	c    found
	path string // absolute
	base string // last element of the path; "." if that is not a name. Names in an archive begin with it.
}

func (s *Server) filePath(r *http.Request) (f filePath, err error) {
	asked := r.URL.Query().Get("path")
	if asked == "" {
		return f, face.BadRequest("path: missing: want a path in the container")
	}
	if f.c, err = s.find(r); err != nil {
		return f, err
	}
	f.path, f.base = path.Join("/", asked), path.Base(asked)
	if f.base == "/" || f.base == ".." {
		f.base = "."
	}
	return f, s.wake(r, &f.c)
}

// wake resumes the sandbox of an exited container, so that clients can read the container's files.
// The sandbox is suspended again later.
func (s *Server) wake(r *http.Request, c *found) error {
	if c.info.State != sandbox.Suspended || c.status() != exited || !c.isOwn() {
		return nil
	}
	unlock, err := c.lock(r.Context())
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := s.view(r).Resume(r.Context(), c.id); err != nil {
		return err
	}
	s.suspendLater(c.container, s.view(r))
	return nil
}

// onGuest calls f with a client for the agent of a container. During the call, suspendLater does not
// suspend the sandbox.
func (s *Server) onGuest(ctx context.Context, r *http.Request, c *found, op string,
	f func(context.Context, *agentclient.Client) error) error {
	c.changeUsers(1)
	defer c.changeUsers(-1)
	return s.view(r).Use(ctx, c.id, op, func(ctx context.Context, dial agentclient.DialFunc) error {
		guest := agentclient.New(dial)
		guest.Keep = face.ShareOf(r).Keep
		return f(ctx, guest)
	})
}

func (c *container) changeUsers(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users += n
}

// stat describes a path. It follows links.
func (f *filePath) stat(ctx context.Context, guest *agentclient.Client) (pathStat, error) {
	e, err := guest.Stat(ctx, f.path, root)
	var refused *agentclient.Error
	if errors.As(err, &refused) && refused.Code == agentclient.CodeNotFound {
		return pathStat{}, &missingError{fmt.Sprintf("Could not find the file %.1000s in container %.100s", f.path,
			f.c.name()), err}
	}
	if err != nil {
		return pathStat{}, err
	}
	out := pathStat{Name: path.Base(f.path), Size: e.Size, Mode: fs.FileMode(e.Mode).Perm(), Mtime: e.Modified}
	if e.Type == "directory" {
		out.Mode |= fs.ModeDir
	}
	return out, nil
}

func (p *pathStat) describe(h http.Header) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	h.Set(statHeader, base64.StdEncoding.EncodeToString(text))
	return nil
}

func (s *Server) statArchive(w http.ResponseWriter, r *http.Request) error {
	f, err := s.filePath(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), controlFor)
	defer cancel()
	err = s.onGuest(ctx, r, &f.c, "read a file of", func(ctx context.Context, guest *agentclient.Client) error {
		stat, err := f.stat(ctx, guest)
		if err != nil {
			return err
		}
		return stat.describe(w.Header())
	})
	if err == nil {
		w.WriteHeader(http.StatusOK)
	}
	return err
}

// begun records whether an answer has begun. Once it has begun, an error can only cut the answer
// off.
type begun struct {
	io.Writer
	yes bool
}

// Write implements io.Writer.
func (b *begun) Write(p []byte) (int, error) {
	b.yes = true
	return b.Writer.Write(p)
}

// readArchive answers with a file or a directory as a tar archive.
func (s *Server) readArchive(w http.ResponseWriter, r *http.Request) error {
	if r.Method == http.MethodHead {
		return s.statArchive(w, r)
	}
	f, err := s.filePath(r)
	if err != nil {
		return err
	}
	move := face.NewTransfer(r.Context(), w, s.Face.Limits.Stall)
	out := &begun{Writer: move.To(w)}
	err = s.onGuest(move.Context(), r, &f.c, "read a file of", func(ctx context.Context,
		guest *agentclient.Client) error {
		stat, err := f.stat(ctx, guest)
		if err != nil {
			return err
		}
		content, err := guest.ReadTree(ctx, f.path, root)
		if err != nil {
			return err
		}
		defer content.Close()
		if err := stat.describe(w.Header()); err != nil {
			return err
		}
		w.Header().Set("Content-Type", "application/x-tar")
		return f.rebase(out, content, &stat, face.ShareOf(r).Take)
	})
	if err = move.End(err); err != nil && out.yes {
		s.Face.Abort(r, err)
	}
	return err
}

// rebase copies an archive from the guest, and makes all names in it begin with f.base. The guest
// is not trusted. So rebase returns an error for an entry that would be unpacked outside of f.base,
// and omits entries other than files, directories and symbolic links. rebase calls take() to count
// the bytes that it holds in memory.
func (f *filePath) rebase(w io.Writer, from io.Reader, stat *pathStat, take func(bytes int) error) error {
	in, out, links, entries := treetar.NewReader(from), tar.NewWriter(w), links{}, 0
	if stat.Mode.IsDir() {
		h := tar.Header{Typeflag: tar.TypeDir, Name: f.base + "/", Mode: int64(stat.Mode.Perm()), ModTime: stat.Mtime}
		if err := out.WriteHeader(&h); err != nil {
			return err
		}
	}
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err != nil {
			return err
		}
		name := path.Clean(h.Name)
		if err := errors.Join(treetar.CheckName(h.Name), checkLocal(name), links.check(name)); err != nil {
			return err
		}
		if entries++; !stat.Mode.IsDir() && entries > 1 || name == "." && h.Typeflag != tar.TypeDir {
			return fmt.Errorf("the guest's archive has two entries for %.200q", f.path)
		}
		next := tar.Header{Typeflag: h.Typeflag, Mode: h.Mode & int64(fs.ModePerm), ModTime: h.ModTime}
		if next.Name = f.base; stat.Mode.IsDir() {
			next.Name += "/" + name
		}
		switch h.Typeflag {
		case tar.TypeReg:
			next.Size = h.Size
		case tar.TypeDir:
			next.Name += "/"
		case tar.TypeSymlink:
			next.Linkname = h.Linkname
			if err := take(links.add(name)); err != nil {
				return err
			}
		default:
			continue // a pipe or a device
		}
		if err := out.WriteHeader(&next); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
}

// links is the tree of the names of the symbolic links in an archive. The keys of a node are the
// next elements of names, and the node of a link is nil. If a client unpacked an entry below a
// link, or a second entry with the name of a link, it would write to the target of the link.
type links map[string]links

// check returns an error if a link has the given name, or if the name is below a link.
func (l links) check(name string) error {
	for element := range strings.SplitSeq(name, "/") {
		next, ok := l[element]
		if !ok {
			return nil
		}
		if next == nil {
			return fmt.Errorf("the guest's archive has the entry %.200q, which is a link already or below a link", name)
		}
		l = next
	}
	return nil
}

// add adds a link that check has accepted, and returns the approximate number of bytes that it takes.
func (l links) add(name string) (bytes int) {
	const perNode = 512 // bytes of a map with its first elements
	elements := strings.Split(name, "/")
	last := len(elements) - 1
	for _, element := range elements[:last] {
		if l[element] == nil {
			l[element] = links{}
			bytes += perNode
		}
		l = l[element]
	}
	l[elements[last]] = nil
	return bytes + len(name)
}

func checkLocal(name string) error {
	if !filepath.IsLocal(name) {
		return fmt.Errorf("the guest's archive has the name %.200q, which leads out of the directory", name)
	}
	return nil
}

// writeArchive unpacks a tar archive into a directory. The archive may be compressed with gzip.
func (s *Server) writeArchive(w http.ResponseWriter, r *http.Request) error {
	if boolQuery(r, "copyUIDGID") {
		return unsupported("copyUIDGID", "copied files belong to root")
	}
	f, err := s.filePath(r)
	if err != nil {
		return err
	}
	body := http.MaxBytesReader(w, r.Body, treetar.MaxBytes)
	move := face.NewTransfer(r.Context(), w, s.Face.Limits.Stall)
	err = s.onGuest(move.Context(), r, &f.c, "write a directory of", func(ctx context.Context,
		guest *agentclient.Client) error {
		stat, err := f.stat(ctx, guest)
		if err != nil {
			return err
		}
		if !stat.Mode.IsDir() {
			return face.BadRequest("path: %.1000s is not a directory", f.path)
		}
		content, err := uncompressed(move.From(body))
		if err != nil {
			return err
		}
		return guest.WriteTree(ctx, f.path, root, content)
	})
	if err := move.End(err); err != nil {
		return face.Sending(err)
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// uncompressed returns a reader of an archive that may be compressed with gzip. Other compressions
// are refused.
func uncompressed(archive io.Reader) (io.Reader, error) {
	in := bufio.NewReader(archive)
	begin, _ := in.Peek(6) // the first read returns the same error
	for name, magic := range map[string]string{"bzip2": "BZh", "xz": "\xfd7zXZ\x00", "zstd": "\x28\xb5\x2f\xfd"} {
		if bytes.HasPrefix(begin, []byte(magic)) {
			return nil, unsupported("an archive compressed with "+name, "send it uncompressed, or compressed with gzip")
		}
	}
	if !bytes.HasPrefix(begin, []byte("\x1f\x8b")) {
		return in, nil
	}
	unzipped, err := gzip.NewReader(in)
	if err != nil {
		return nil, face.BadRequest("request body: gzip: %v", err)
	}
	return io.LimitReader(unzipped, treetar.MaxBytes), nil
}
