package feed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// The protocol of FUSE, as in Linux's include/uapi/linux/fuse.h. All numbers are in the byte order
// of the host. The kernel is trusted: it checks the VMMs' requests, and sends only whole requests.

// Operations of requests.
const (
	opLookup      = 1
	opForget      = 2
	opGetattr     = 3
	opOpen        = 14
	opRead        = 15
	opRelease     = 18
	opInit        = 26
	opInterrupt   = 36
	opDestroy     = 38
	opBatchForget = 42
)

const (
	fuseMajor = 7
	fuseMinor = 31 // the version of Linux 5.4

	// Flags of an answer to opInit.
	asyncRead     = 1 << 0
	parallelDirop = 1 << 18
	maxPagesFlag  = 1 << 22

	// keepCache is the flag of an answer to opOpen that keeps the file's pages in memory. Without
	// it, each VMM that opens a file would drop the pages for all VMMs.
	keepCache = 1 << 1

	headerIn     = 40
	headerOut    = 16
	rootNode     = 1
	requestBytes = 16 << 10 // the kernel's minimum is 8 KiB
	longTime     = 1 << 30  // seconds; the files never change

	// readBytes is the maximum length of a read. readAhead is how many bytes of a mapped file the
	// kernel reads when a VMM needs a page: only this page. A read waits for all of its frames, and
	// the kernel does not align such ranges to frames, so a longer range would often wait for a
	// frame that no VMM needs.
	readBytes = 128 << 10
	readAhead = 4 << 10

	// background is how many reads the kernel sends before it waits for answers. It is large,
	// because reads whose frames have arrived must get through while other reads wait for frames.
	background = 256
)

var order = binary.NativeEndian

// server answers the kernel's requests.
type server struct {
	fd    int
	files []*file
}

// serve answers requests until no process has an open file of the file system.
func (s *server) serve() error {
	buf := make([]byte, requestBytes)
	for {
		n, err := unix.Read(s.fd, buf)
		switch {
		case err == nil:
		case errors.Is(err, unix.ENODEV): // the last file was closed
			return nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOENT): // ENOENT: it was withdrawn
			continue
		default:
			return fmt.Errorf("receive a request: %w", err)
		}
		if n < headerIn {
			return fmt.Errorf("a request of %d bytes", n)
		}
		s.handle(buf[:n])
	}
}

// request is the header of a request.
type request struct {
	op     uint32
	unique uint64
	node   uint64
}

func (s *server) handle(p []byte) {
	r := request{op: order.Uint32(p[4:]), unique: order.Uint64(p[8:]), node: order.Uint64(p[16:])}
	body := p[headerIn:]
	switch r.op {
	case opForget, opBatchForget, opInterrupt, opDestroy: // these have no answer; nodes exist as long as the process
	case opInit:
		s.answer(r, initAnswer(body))
	case opLookup:
		name, _, _ := cutZero(body)
		n, err := strconv.Atoi(name)
		if r.node != rootNode || err != nil || n < 0 || n >= len(s.files) {
			s.fail(r, unix.ENOENT)
			return
		}
		s.answer(r, s.entry(nodeOf(n)))
	case opGetattr:
		var out []byte
		out = order.AppendUint64(out, longTime)
		out = order.AppendUint64(out, 0)
		s.answer(r, append(out, s.attributes(r.node)...))
	case opOpen:
		var out []byte
		out = order.AppendUint64(out, 0)
		out = order.AppendUint32(out, keepCache)
		s.answer(r, order.AppendUint32(out, 0))
	case opRelease:
		s.answer(r, nil)
	case opRead:
		f := s.file(r.node)
		if f == nil || len(body) < 20 {
			s.fail(r, unix.EINVAL)
			return
		}
		offset, size := order.Uint64(body[8:]), order.Uint32(body[16:])
		go s.read(r, f, offset, min(size, readBytes))
	default:
		s.fail(r, unix.ENOSYS)
	}
}

func cutZero(p []byte) (text string, rest []byte, ok bool) {
	for i, b := range p {
		if b == 0 {
			return string(p[:i]), p[i+1:], true
		}
	}
	return string(p), nil, false
}

// nodeOf returns the number of a file's node. The root has the number 1.
func nodeOf(file int) uint64 { return uint64(file) + rootNode + 1 }

// file returns the file of a node, or nil.
func (s *server) file(node uint64) *file {
	if i := node - rootNode - 1; node > rootNode && i < uint64(len(s.files)) {
		return s.files[i]
	}
	return nil
}

// read answers a read. It may wait until frames arrive.
func (s *server) read(r request, f *file, offset uint64, size uint32) {
	end := min(offset+uint64(size), f.bytes)
	if offset >= end {
		s.answer(r, nil)
		return
	}
	if err := f.await(offset, end-offset); err != nil {
		s.fail(r, unix.EIO)
		return
	}
	f.decoded.places <- struct{}{}
	defer func() { <-f.decoded.places }()
	out := make([]byte, headerOut+int(end-offset))
	if err := f.readAt(out[headerOut:], offset); err != nil {
		s.fail(r, unix.EIO)
		return
	}
	s.send(r, out, 0)
}

// initAnswer returns the answer to opInit.
func initAnswer(body []byte) []byte {
	minor, flags := uint32(fuseMinor), uint32(0)
	if len(body) >= 16 {
		minor, flags = min(minor, order.Uint32(body[4:])), order.Uint32(body[12:])
	}
	var out []byte
	for _, v := range []uint32{fuseMajor, minor, readAhead, flags & (asyncRead | parallelDirop | maxPagesFlag)} {
		out = order.AppendUint32(out, v)
	}
	out = order.AppendUint16(out, background)
	out = order.AppendUint16(out, background)
	out = order.AppendUint32(out, 4096)          // maximum write, which never happens
	out = order.AppendUint32(out, 1)             // granularity of times
	out = order.AppendUint16(out, readBytes>>12) // maximum pages of a request
	return append(out, make([]byte, 2+4+7*4)...)
}

// entry returns the answer to opLookup.
func (s *server) entry(node uint64) []byte {
	var out []byte
	for _, v := range []uint64{node, 0, longTime, longTime, 0} {
		out = order.AppendUint64(out, v)
	}
	return append(out, s.attributes(node)...)
}

// attributes returns the attributes of a node. Only its length and its mode matter.
func (s *server) attributes(node uint64) []byte {
	mode, size := uint32(unix.S_IFDIR|0o555), uint64(0)
	if f := s.file(node); f != nil {
		mode, size = unix.S_IFREG|0o444, f.bytes
	}
	var out []byte
	for _, v := range []uint64{node, size, (size + 511) / 512, 0, 0, 0} {
		out = order.AppendUint64(out, v)
	}
	for _, v := range []uint32{0, 0, 0, mode, 1, 0, 0, 0, 4096, 0} {
		out = order.AppendUint32(out, v)
	}
	return out
}

func (s *server) answer(r request, body []byte) {
	s.send(r, append(make([]byte, headerOut), body...), 0)
}

func (s *server) fail(r request, errno unix.Errno) { s.send(r, make([]byte, headerOut), errno) }

// send sends an answer. The first headerOut bytes of p are for the header.
func (s *server) send(r request, p []byte, errno unix.Errno) {
	order.PutUint32(p, uint32(len(p)))
	order.PutUint32(p[4:], uint32(-int32(errno)))
	order.PutUint64(p[8:], r.unique)
	_, _ = unix.Write(s.fd, p) // fails only if the kernel no longer waits for the answer
}
