package build

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
	"github.com/therootcompany/xz"

	"github.com/forkd/forkd/internal/build/dockerfile"
	"github.com/forkd/forkd/internal/build/plan"
	"github.com/forkd/forkd/internal/host/agentclient"
)

// workDir is a command that creates an empty directory that only root can use. The directory is in
// /var/tmp, which is on the guest's disk. /tmp may be in memory.
const workDir = "mkdir -p /var/tmp && mktemp -d /var/tmp/forkd-build.XXXXXX"

// copy puts the files of the sources into a temporary directory of the guest, and then moves them
// to their target. A source gets a separate temporary directory if its files do not come from the
// build context, or if archives are unpacked. In a common directory, a link among such files could
// lead the files of a later source out of the directory.
func (g *guest) copy(ctx context.Context, cp *plan.Copy) error {
	others := slices.ContainsFunc(cp.Sources, func(s plan.Source) bool { return s.Step != nil || s.Git != nil })
	for rest := cp.Sources; ; {
		n := 0
		for n < len(rest) && rest[n].Step == nil && rest[n].Git == nil && rest[n].Remote == nil && !cp.Unpack {
			n++
		}
		if n == 0 {
			n = min(1, len(rest))
		}
		unpacked, err := g.copyTogether(ctx, cp, rest[:n], others)
		if err != nil {
			return err
		}
		if rest = rest[n:]; len(rest) == 0 {
			return nil
		}
		others = others || unpacked
	}
}

// copyTogether copies sources through one directory. If others is true, the COPY has files that do
// not come from the build context, or has unpacked an archive. In this case, if a link in the
// target leads out of the target, copyTogether puts no directory at the path of this link.
// copyTogether reports whether an archive was unpacked.
func (g *guest) copyTogether(ctx context.Context, cp *plan.Copy, sources []plan.Source, others bool) (unpacked bool,
	err error) {
	dir, err := g.script(ctx, workDir)
	if err != nil {
		return false, err
	}
	dir = strings.TrimSpace(dir)
	defer func() { err = g.removeAfter(ctx, err, dir) }()
	single := len(cp.Sources) == 1
	for n := range sources {
		got, err := g.fetch(ctx, &sources[n], dir, cp.Unpack)
		if err != nil {
			return false, err
		}
		single, unpacked = single && got.single, unpacked || got.unpacked
	}
	_, err = g.script(ctx, placeScript, dir, cp.Target, cp.Owner, cp.Mode, flag(single, "single"), flag(others, "others"))
	return unpacked, err
}

// removeAfter removes the directory dir of the guest, in which the caller has worked. The parameter
// err is the result of that work. If err is not nil, removeAfter returns it and removes nothing. In
// this case the sandbox is killed anyway. The removal also ends when ctx ends, because the guest
// may never answer.
func (g *guest) removeAfter(ctx context.Context, err error, dir string) error {
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, ownTime)
	defer cancel()
	return g.c.Remove(ctx, dir, "root")
}

// flag returns an argument of a script: the given name if set is true, and an empty text if set is
// false.
func flag(set bool, name string) string {
	if !set {
		return ""
	}
	return name
}

// fetched describes the files that fetch has received from a source.
type fetched struct {
	single   bool // the source was one file, which may get another name
	unpacked bool // the source was an archive, which was unpacked
}

// fetch puts the files of a source into a directory of the guest.
func (g *guest) fetch(ctx context.Context, src *plan.Source, dir string, unpack bool) (got fetched, err error) {
	switch {
	case src.Inline != nil:
		name := path.Join(dir, src.Inline.Path)
		if err := g.c.WriteFile(ctx, name, "root", strings.NewReader(src.Inline.Data)); err != nil {
			return got, err
		}
		_, err := output(ctx, g.c, "root", "chmod", "644", name)
		return fetched{single: true}, err
	case src.Step != nil:
		got.single, err = g.fetchFrom(ctx, *src.Step, src, dir)
		return got, err
	case src.Remote != nil:
		return fetched{single: true}, g.fetchRemote(ctx, src.Remote, dir)
	case src.Git != nil:
		return got, g.fetchGit(ctx, src.Git, dir)
	}
	if unpack && !src.Dir && len(src.Files) == 1 {
		archive, ok, err := openArchive(g.w.files.path(src.Files[0].Digest))
		if err != nil {
			return got, fmt.Errorf("%s: %w", src.Files[0].Path, err)
		}
		if ok {
			defer archive.Close()
			return fetched{unpacked: true}, g.unpack(ctx, g.w.files.plain(archive), dir)
		}
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(g.w.files.pack(w, src)) }()
	defer r.Close() // makes the writing goroutine end
	return fetched{single: !src.Dir && len(src.Files) == 1}, g.unpack(ctx, r, dir)
}

// unpack unpacks an archive with the guest's tar. As root, tar keeps owners and all mode bits.
func (g *guest) unpack(ctx context.Context, archive io.Reader, dir string) error {
	in := &sent{r: archive}
	req := agentclient.ExecRequest{User: "root", Stdin: in, Timeout: maxCommand, MaxOutput: maxAnswer,
		Args: []string{"/bin/sh", "-c", `mkdir -p "$1" && exec tar -xpf - -C "$1"`, "sh", dir}}
	r, err := g.c.Exec(ctx, req)
	if bad := in.failure.Load(); bad != nil { // the archive failed, so tar received only a part of it
		return *bad
	}
	if err != nil {
		return err
	}
	if err := failure(r, maxCommand); err != nil {
		return fmt.Errorf("unpack in the guest: %w: %s", err, strings.TrimSpace(printable(string(r.Stderr))))
	}
	return nil
}

// maxUnpacked is the maximum size, in bytes, of one archive that is sent to a guest. It is also the
// maximum size of all archives of a build that the daemon decompresses.
const maxUnpacked = 64 << 30

// sent is an archive that is being sent to a guest. Even after the guest has reported that its tar
// has exited, a goroutine may still be reading the archive.
type sent struct {
	r       io.Reader
	total   int64
	failure atomic.Pointer[error]
}

// Read implements io.Reader.
func (s *sent) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if s.total += int64(n); s.total > maxUnpacked {
		err = fmt.Errorf("the archive has more than %d GiB", maxUnpacked>>30)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		s.failure.Store(&err)
	}
	return n, err
}

// fetchFrom puts files of another step's snapshot into a directory of the guest.
func (g *guest) fetchFrom(ctx context.Context, step int, src *plan.Source, dir string) (single bool, err error) {
	leave, err := dockerfile.NewIgnore(src.Exclude)
	if err != nil {
		return false, err
	}
	box, err := g.w.reading(ctx, step)
	if err != nil {
		return false, err
	}
	defer func() {
		if err != nil {
			g.w.b.end(box)
		} else {
			g.w.leave(step, box)
		}
	}()
	err = g.w.b.cfg.Manager.Use(ctx, box, "copy from", func(ctx context.Context, dial agentclient.DialFunc) error {
		from := &guest{w: g.w, i: g.i, box: box, c: agentclient.New(dial)}
		found, err := from.script(ctx, findScript, src.Path)
		if err != nil {
			return err
		}
		if found == "" {
			return fmt.Errorf("%s: %s has no such file", src.Path, g.w.plan.Steps[step].Name)
		}
		lines := strings.Split(strings.TrimSuffix(found, "\n"), "\n")
		to := staging{g, dir, src.Into, &links{}}
		for _, line := range lines {
			m, err := matchOf(src.Path, line)
			if err != nil {
				return err
			}
			if !m.dir && leave.Out(path.Base(m.path)) {
				continue
			}
			single = len(lines) == 1 && !m.dir && src.Into == ""
			if err := from.send(ctx, to, m, leave); err != nil {
				return err
			}
		}
		return nil
	})
	return single, err
}

// match is a file or directory that findScript has found in a guest.
type match struct {
	dir  bool
	path string // absolute and clean, so that no part of it is ".."
}

// shellOnly matches the parts of a shell pattern that path.Match may interpret differently from a
// shell.
var shellOnly = regexp.MustCompile(`\?|[\[\\][^/]*`)

// matchOf reads a line that findScript has printed. The guest may have written anything into the
// line, but the pattern limits the names that the guest can choose.
func matchOf(pattern, line string) (match, error) {
	if len(line) < 2 || line[1] != '/' {
		return match{}, fmt.Errorf("the guest's answer %.100q is no path", line)
	}
	m := match{line[0] == 'd', path.Clean(line[1:])}
	if ok, err := path.Match(shellOnly.ReplaceAllString(pattern, "*"), m.path); err != nil || !ok {
		return match{}, fmt.Errorf("the guest's answer %.100q does not match %.100s", line, pattern)
	}
	return m, nil
}

// staging is the directory of a guest into which a COPY unpacks the archives of other guests.
type staging struct {
	guest   *guest
	dir     string
	into    string // subdirectory for the files of one source; empty: the directory itself
	brought *links
}

// below(m) returns the directory into which a match is unpacked, relative to the staging directory.
func (s staging) below(m match) string {
	below := path.Join(".", path.Clean("/" + s.into)[1:])
	if m.dir && s.into != "" {
		below = path.Join(below, path.Base(m.path))
	}
	return below
}

// send sends a file, or the content of a directory without the excluded files, to another guest.
func (g *guest) send(ctx context.Context, to staging, m match, leave dockerfile.Ignore) error {
	file := path.Base(m.path)
	args := []string{"tar", "-cf", "-", "-C", path.Dir(m.path), "--", file}
	if m.dir {
		file, args = "", []string{"tar", "-cf", "-", "-C", m.path, "."}
	} else {
		leave = dockerfile.Ignore{} // the caller has compared the name of the file
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the command if the archive is not read to its end
	r, w := io.Pipe()
	var said bytes.Buffer
	go func() {
		res, err := g.c.ExecStream(ctx, agentclient.ExecRequest{Args: args, User: "root", Timeout: maxCommand},
			func(s agentclient.Stream, p []byte) error {
				if s == agentclient.Stdout {
					_, err := w.Write(p)
					return err
				}
				said.Write(p[:min(len(p), maxLine-min(maxLine, said.Len()))])
				return nil
			})
		if err == nil {
			err = failure(res, maxCommand)
		}
		if err != nil {
			err = fmt.Errorf("read %s: %w: %s", m.path, err, strings.TrimSpace(printable(said.String())))
		}
		w.CloseWithError(err)
	}()
	below := to.below(m)
	rest := filtered(r, file, leave, to.brought, below)
	defer rest.Close() // waits for the goroutine that reads r
	defer r.Close()    // ends that goroutine
	return to.guest.unpack(ctx, rest, path.Join(to.dir, below))
}

// openArchive opens a file as a decompressed archive. If the file is not an archive, openArchive
// returns false.
func openArchive(name string) (archive io.ReadCloser, ok bool, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, false, err
	}
	plain, err := decompress(bufio.NewReaderSize(f, 64<<10))
	if err != nil {
		return nil, false, errors.Join(err, f.Close())
	}
	if plain == nil {
		return nil, false, f.Close()
	}
	in := bufio.NewReaderSize(plain, 64<<10)
	head, _ := in.Peek(512)
	if _, err := tar.NewReader(bytes.NewReader(head)).Next(); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) ||
		len(head) < 512 {
		return nil, false, f.Close() // a compressed file that is not an archive is copied unchanged
	}
	return struct {
		io.Reader
		io.Closer
	}{in, f}, true, nil
}

// maxXZDict is the maximum dictionary size of an xz archive, in bytes: the size that xz -9 uses. It
// bounds the memory for decompression.
const maxXZDict = 64 << 20

// decompress decompresses a file in a known format.
func decompress(in *bufio.Reader) (io.Reader, error) {
	magic, err := in.Peek(6)
	if err != nil {
		return nil, nil // too short to be an archive
	}
	switch {
	case bytes.HasPrefix(magic, []byte("\x1f\x8b")): // RFC 1952, section 2.3.1
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, nil // only the first bytes look like an archive
		}
		return z, nil
	case bytes.HasPrefix(magic, []byte("BZh")):
		return bzip2.NewReader(in), nil
	case bytes.HasPrefix(magic, []byte("\x28\xb5\x2f\xfd")): // RFC 8878, section 3.1.1
		z, err := zstd.NewReader(in, zstd.WithDecoderMaxMemory(256<<20), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	case bytes.HasPrefix(magic, []byte("\xfd7zXZ\x00")):
		return xz.NewReader(in, maxXZDict)
	}
	return in, nil
}
