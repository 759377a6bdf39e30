package vmfake

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"net"
	"path"
	"strings"
	"sync"

	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/diffproto"
	"github.com/forkd/forkd/internal/proto/filesproto"
	"github.com/forkd/forkd/internal/proto/imageproto"
)

// NewBuilders returns VMMs for builder VMs. When such a VM runs, the given function serves its
// connection to the host. If this function is nil, the VM never connects.
func NewBuilders(guest func(v *VMM, host net.Conn)) *VMMs { return newHelpers(imageproto.Port, guest) }

// NewDiffers is like NewBuilders, for VMs that compare disks.
func NewDiffers(guest func(v *VMM, host net.Conn)) *VMMs { return newHelpers(diffproto.Port, guest) }

// NewFilers is like NewBuilders, for VMs that serve the files of volumes.
func NewFilers(guest func(v *VMM, host net.Conn)) *VMMs { return newHelpers(filesproto.Port, guest) }

func newHelpers(port uint32, guest func(v *VMM, host net.Conn)) *VMMs {
	return &VMMs{Wrap: func(v *VMM) vmpool.VMM {
		return &builder{VMM: v, port: port, guest: guest, conns: make(chan vmmclient.Conn, 1)}
	}}
}

// Unpacks returns a guest that passes the stream of an image to the function unpack, and answers
// with the function's error. If unpack is nil, Unpacks returns nil.
func Unpacks(unpack func(stream io.Reader) error) func(*VMM, net.Conn) {
	if unpack == nil {
		return nil
	}
	return func(_ *VMM, host net.Conn) { _ = imageproto.WriteAnswer(host, unpack(host)) }
}

// Differs returns a guest that reads the request, and finds the given entries that are at or below
// the path of the request. The entries must be in the order of a walk. An archive has the names of
// the found entries, and one line of text for each regular file.
func Differs(entries ...*diffproto.Entry) func(*VMM, net.Conn) {
	return func(_ *VMM, host net.Conn) {
		req, err := diffproto.ReadRequest(host)
		if err != nil || diffproto.ReadRanges(host, func(diffproto.Range) error { return nil }) != nil {
			return
		}
		if req.Merge != nil {
			merge(host, &req, entries)
			return
		}
		if req.Tar {
			_ = diffproto.WriteDone(host, diffproto.Done{})
			pieces := diffproto.NewPieceWriter(host)
			out := tar.NewWriter(pieces)
			for _, e := range entries {
				writeEntry(out, e)
			}
			_, _ = out.Close(), pieces.Close()
			return
		}
		done := diffproto.Done{}
		for _, e := range entries {
			if !diffproto.IsBelow(e.Path, req.Path) {
				continue
			}
			if done.Changed++; done.Changed > uint64(req.MaxEntries) {
				continue
			}
			_ = diffproto.WriteEntry(host, e)
			done.LinesAdded += uint64(e.LinesAdded)
			done.LinesDeleted += uint64(e.LinesDeleted)
		}
		_ = diffproto.WriteDone(host, done)
	}
}

// merge answers a request for a merge. If the request asks for an archive, but conflicts make the
// archive impossible, merge lists only the conflicts. The archive has the names of all entries that
// are not kept.
func merge(host net.Conn, req *diffproto.Request, entries []*diffproto.Entry) {
	var done diffproto.Done
	for _, e := range entries {
		if e.Conflict {
			done.Conflicts++
		}
	}
	refused := done.Conflicts > 0 && req.Merge.Prefer == diffproto.Refuse
	left := req.MaxEntries
	var archive bytes.Buffer
	out := tar.NewWriter(&archive)
	for _, e := range entries {
		e := *e
		e.Patch = nil // a merge has no patches
		if e.Kept = e.Conflict && req.Merge.Prefer == diffproto.PreferOnto; !e.Kept && !(refused && e.Conflict) {
			done.Changed++
			writeEntry(out, &e)
		}
		if listed := e.Conflict || !refused || !req.Tar; listed && left > 0 {
			left--
			_ = diffproto.WriteEntry(host, &e)
		}
	}
	_, _ = out.Close(), diffproto.WriteDone(host, done)
	if req.Tar && !refused {
		pieces := diffproto.NewPieceWriter(host)
		_, _ = pieces.Write(archive.Bytes())
		_ = pieces.Close()
	}
}

// writeEntry adds an entry to an archive. It ignores errors, because Close of the archive returns
// them too.
func writeEntry(out *tar.Writer, e *diffproto.Entry) {
	dir, name := path.Split(strings.TrimPrefix(e.Path, "/"))
	h := &tar.Header{Typeflag: tar.TypeReg, Name: dir + name, Mode: int64(e.New.Mode), Format: tar.FormatPAX}
	switch e.New.Type {
	case diffproto.Absent:
		h.Name = dir + ".wh." + name
	case diffproto.Directory:
		h.Typeflag = tar.TypeDir
	case diffproto.Symlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.New.Target
	case diffproto.Regular:
		const line = "new\n"
		h.Size = int64(len(line))
		_ = out.WriteHeader(h)
		_, _ = out.Write([]byte(line))
		return
	}
	_ = out.WriteHeader(h)
}

type builder struct {
	*VMM
	port  uint32
	guest func(v *VMM, host net.Conn)
	conns chan vmmclient.Conn
	mu    sync.Mutex
	host  net.Conn // the guest's end of the connection; nil: not connected
}

// Resume implements vmpool.VMM.
func (b *builder) Resume(context.Context) error {
	if b.guest == nil {
		return nil
	}
	ours, theirs := net.Pipe()
	b.mu.Lock()
	b.host = theirs
	b.mu.Unlock()
	b.conns <- vmmclient.Conn{Port: b.port, Conn: ours}
	go func() {
		defer theirs.Close()
		b.guest(b.VMM, theirs)
	}()
	return nil
}

func (b *builder) Conns() <-chan vmmclient.Conn { return b.conns }

// Kill implements vmpool.VMM.
func (b *builder) Kill() error {
	b.mu.Lock()
	if b.host != nil {
		b.host.Close()
	}
	b.mu.Unlock()
	return b.VMM.Kill()
}
