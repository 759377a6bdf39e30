// Package diffproto is the protocol between the daemon and forkd-diff. forkd-diff compares the
// files of two disks, in a VM of its own.
//
// forkd-diff dials Port of the host. Both sides then send frames. A frame is a length (4 bytes,
// little-endian) and a body of this length, in the encoding of package codec.
//
//	daemon:      a Request, frames with Ranges, and an empty frame
//	forkd-diff:  an Entry for each difference, and Done at the end; or a refusal at any time
//
// If the request asks for a tar archive, forkd-diff sends Done, then the archive in pieces, and an
// empty piece at the end; or a refusal at any time. The daemon does not decode the archive.
//
// If the request asks for a merge, the VM has three disks: the first has the base, the second has
// the side whose changes are applied, and the third has the side that receives the changes.
// forkd-diff then sends an Entry for each change that the receiving side lacks, and Done. If the
// request asks for an archive and no conflict is left, the archive follows; see RecordOnto for its
// form.
//
// The entries come in the order of a walk: a directory precedes the files in it, and the files in a
// directory are in the order of their names.
//
// The disks belong to guests, and a guest may take over forkd-diff. So the daemon trusts no
// message. Reader bounds and checks each message, and holds one message at a time.
package diffproto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/forkd/forkd/internal/proto/codec"
)

// Port is the vsock port of the host that forkd-diff dials.
const Port = 1029

// Bounds of messages and their fields. Lengths are in bytes.
const (
	MaxPath    = 4095     // length of a path, or of the target of a symbolic link (PATH_MAX of Linux)
	MaxPatch   = 4 << 20  // length of the patch of one file
	MaxXattrs  = 128      // number of names in an Entry
	MaxPaths   = 64       // number of paths in a Merge
	maxPaths   = 32 << 10 // length of all paths in a Merge together
	maxName    = 255      // length of the name of an extended attribute
	maxReason  = 1000     // length of the reason of a refusal
	maxRequest = 64 << 10 // length of the frame of a Request
	maxRanges  = 4096     // number of ranges in a frame
	maxPiece   = 1 << 20  // length of a piece of a tar archive
	maxFrame   = MaxPatch + MaxXattrs*(maxName+4) + 3*MaxPath + 1024
)

// Request says what to compare, and how many differences to send.
type Request struct {
	Path       string // absolute and clean path of the only file or directory to compare
	Patch      bool   // whether to send patches of text files
	MaxEntries uint32 // maximum number of entries to send; further differences are only counted
	MaxPatch   uint64 // maximum length of all patches together, in bytes
	Tar        bool   // whether to send a tar archive with all differences instead of entries
	Partial    bool   // whether to omit files that an archive cannot represent, instead of refusing the request
	Merge      *Merge // compare three disks for a merge; nil: compare two disks
}

// Merge asks forkd-diff for the changes of one side that another side lacks.
type Merge struct {
	Paths  []string // absolute and clean paths of the files and directories to merge; empty: all
	Prefer Prefer
}

// Prefer says which side prevails at a conflict.
type Prefer uint8

// The rules for conflicts.
const (
	Refuse     Prefer = iota // send no archive if there is a conflict
	PreferFrom               // apply the changes of the second disk
	PreferOnto               // keep the files of the third disk
	prefers                  // number of rules
)

// check returns an error if m is not valid. The daemon sends only valid requests.
func (m *Merge) check() error {
	if len(m.Paths) > MaxPaths || m.Prefer >= prefers {
		return fmt.Errorf("merge of %d paths with rule %d", len(m.Paths), m.Prefer)
	}
	return nil
}

// CheckPaths returns an error if the paths of a Merge are too many or too long.
func CheckPaths(paths []string) error {
	n := 0
	for _, p := range paths {
		n += len(p)
	}
	if len(paths) > MaxPaths || n > maxPaths {
		return fmt.Errorf("%d paths of %d bytes together: want at most %d, of %d bytes together", len(paths), n, MaxPaths,
			maxPaths)
	}
	return nil
}

// Range is a part of both disks: Length bytes, beginning at Offset. The disks are equal outside of
// the ranges that the daemon sends.
type Range struct{ Offset, Length uint64 }

// Type is the type of a file.
type Type uint8

// The types of files.
const (
	Absent Type = iota // the disk has no such file
	Regular
	Directory
	Symlink
	CharDevice
	BlockDevice
	FIFO
	Socket
	types // number of types
)

// Node describes a file on one of the disks.
type Node struct {
	Type     Type
	Mode     uint32 // permission bits with set-user-ID, set-group-ID and sticky
	UID, GID uint32
	Size     uint64 // bytes, for a regular file or a symbolic link
	Device   uint64 // major number << 32 | minor number, for a device
	Target   string // target, for a symbolic link
}

// Omission is the reason why an entry has no patch.
type Omission uint8

// The reasons.
const (
	NotOmitted Omission = iota // the entry has a patch, or needs none
	Binary                     // the content is not text in UTF-8
	Large                      // the file is too large for a patch
	Limit                      // the patches have reached Request.MaxPatch
	NotAsked                   // Request.Patch is not set
	omissions                  // number of reasons
)

// Entry is a difference: a path at which the disks have different files.
type Entry struct {
	Path         string // absolute
	Old, New     Node
	Content      bool     // whether the bytes, the targets of symbolic links, the devices or the types differ
	Xattrs       []string // names of the extended attributes that differ
	Omitted      Omission
	LinesAdded   uint32
	LinesDeleted uint32
	Patch        []byte // hunks of a unified diff

	// In a merge, Old is the file of the receiving side, and New is the file of the side whose
	// changes are applied. The following fields are set only in a merge.
	Base     Type // type of the file of the base
	Conflict bool // whether both sides have changed the file since the base, in different ways
	Kept     bool // whether the rule for conflicts keeps the file of the receiving side
}

// Done is the last message of a complete comparison.
type Done struct {
	Added, Changed, Deleted  uint64 // numbers of paths, including those whose Entry was not sent
	LinesAdded, LinesDeleted uint64
	Skipped                  uint64 // number of files that could not be read, or that an archive cannot represent
	Conflicts                uint64 // for a merge: number of paths with a conflict
}

// Kinds of forkd-diff's messages.
const (
	kindEntry codec.Kind = iota + 1
	kindDone
	kindRefused
	kindPiece
)

// RefusedError is the reason why forkd-diff cannot compare. Its text is printable.
type RefusedError struct {
	Field  string // field of the request that caused the refusal; empty if none
	Reason string
}

func (e *RefusedError) Error() string { return e.Reason }

func writeFrame(w io.Writer, body []byte) error {
	frame := make([]byte, 4, 4+len(body))
	binary.LittleEndian.PutUint32(frame, uint32(len(body)))
	_, err := w.Write(append(frame, body...))
	return err
}

// readFrame reads a frame into buf and returns the body. If buf is too small, readFrame allocates a
// new buffer. A body with more than the given number of bytes is an error.
func readFrame(r io.Reader, buf []byte, most uint32) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return buf, whole(err)
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > most {
		return buf, fmt.Errorf("a message of %d bytes: at most %d", n, most)
	}
	if int(n) > cap(buf) {
		buf = make([]byte, n)
	}
	_, err := io.ReadFull(r, buf[:n])
	return buf[:n], whole(err)
}

// whole converts io.EOF to io.ErrUnexpectedEOF, because no stream may end before or within a frame.
func whole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// WriteRequest sends a request.
func WriteRequest(w io.Writer, r Request) error {
	var body codec.Writer
	body.String(r.Path)
	body.Bool(r.Patch)
	body.U32(r.MaxEntries)
	body.U64(r.MaxPatch)
	body.Bool(r.Tar)
	body.Bool(r.Partial)
	body.Bool(r.Merge != nil)
	if r.Merge != nil {
		body.U8(uint8(r.Merge.Prefer))
		body.U32(uint32(len(r.Merge.Paths)))
		for _, path := range r.Merge.Paths {
			body.String(path)
		}
	}
	return writeFrame(w, body.Bytes())
}

// ReadRequest reads a request that WriteRequest has sent.
func ReadRequest(r io.Reader) (req Request, err error) {
	body, err := readFrame(r, nil, maxRequest)
	if err != nil {
		return req, err
	}
	in := codec.NewReader(body)
	req = Request{Path: in.String(), Patch: in.Bool(), MaxEntries: in.U32(), MaxPatch: in.U64(),
		Tar: in.Bool(), Partial: in.Bool()}
	if in.Bool() {
		req.Merge = &Merge{Prefer: Prefer(in.U8())}
		for range min(in.Count(4), MaxPaths+1) {
			req.Merge.Paths = append(req.Merge.Paths, in.String())
		}
		if err := req.Merge.check(); err != nil {
			return req, err
		}
	}
	return req, in.Done()
}

// RangeWriter sends ranges.
type RangeWriter struct {
	w    io.Writer
	body codec.Writer
	n    int
}

// NewRangeWriter returns a RangeWriter. Its caller must call Close.
func NewRangeWriter(w io.Writer) *RangeWriter { return &RangeWriter{w: w} }

// Add adds a range to the next frame, and sends the frame if it is full.
func (r *RangeWriter) Add(v Range) error {
	r.body.U64(v.Offset)
	r.body.U64(v.Length)
	if r.n++; r.n < maxRanges {
		return nil
	}
	return r.flush()
}

func (r *RangeWriter) flush() error {
	err := writeFrame(r.w, r.body.Bytes())
	r.body, r.n = codec.Writer{}, 0
	return err
}

// Close sends the ranges that have not been sent, and then the empty frame.
func (r *RangeWriter) Close() error {
	if r.n > 0 {
		if err := r.flush(); err != nil {
			return err
		}
	}
	return r.flush()
}

// ReadRanges reads ranges up to the empty frame, and passes each of them to the callback.
func ReadRanges(r io.Reader, add func(Range) error) error {
	var buf []byte
	for {
		var err error
		if buf, err = readFrame(r, buf, 16*maxRanges); err != nil || len(buf) == 0 {
			return err
		}
		in := codec.NewReader(buf)
		for in.Len() > 0 {
			v := Range{Offset: in.U64(), Length: in.U64()}
			if err := in.Err(); err != nil {
				return err
			}
			if err := add(v); err != nil {
				return err
			}
		}
	}
}

func appendNode(w *codec.Writer, n *Node) {
	w.U8(uint8(n.Type))
	w.U32(n.Mode)
	w.U32(n.UID)
	w.U32(n.GID)
	w.U64(n.Size)
	w.U64(n.Device)
	w.String(n.Target)
}

func parseNode(r *codec.Reader) Node {
	return Node{Type: Type(r.U8()), Mode: r.U32(), UID: r.U32(), GID: r.U32(), Size: r.U64(), Device: r.U64(),
		Target: r.String()}
}

// WriteEntry sends an entry.
func WriteEntry(w io.Writer, e *Entry) error {
	var body codec.Writer
	body.U8(uint8(kindEntry))
	body.String(e.Path)
	appendNode(&body, &e.Old)
	appendNode(&body, &e.New)
	body.Bool(e.Content)
	body.U32(uint32(len(e.Xattrs)))
	for _, name := range e.Xattrs {
		body.String(name)
	}
	body.U8(uint8(e.Omitted))
	body.U32(e.LinesAdded)
	body.U32(e.LinesDeleted)
	body.Blob(e.Patch)
	body.U8(uint8(e.Base))
	body.Bool(e.Conflict)
	body.Bool(e.Kept)
	return writeFrame(w, body.Bytes())
}

// WriteDone sends Done, the last message of a comparison.
func WriteDone(w io.Writer, d Done) error {
	var body codec.Writer
	body.U8(uint8(kindDone))
	for _, n := range []uint64{d.Added, d.Changed, d.Deleted, d.LinesAdded, d.LinesDeleted, d.Skipped,
		d.Conflicts} {
		body.U64(n)
	}
	return writeFrame(w, body.Bytes())
}

// WriteRefused sends the reason why forkd-diff cannot compare.
func WriteRefused(w io.Writer, reason error) error {
	refused := &RefusedError{Reason: reason.Error()}
	_ = errors.As(reason, &refused)
	var body codec.Writer
	body.U8(uint8(kindRefused))
	body.String(refused.Field)
	body.String(refused.Reason[:min(len(refused.Reason), maxReason)])
	return writeFrame(w, body.Bytes())
}

// Reader reads the messages of forkd-diff.
type Reader struct {
	r     io.Reader
	buf   []byte
	order order
}

// NewReader returns a Reader of the answer to a request with the given path.
func NewReader(r io.Reader, path string) *Reader { return &Reader{r: r, order: order{path: path}} }

// Next returns the next entry or, at the end of the comparison, Done. The entry shares no memory
// with the Reader. If forkd-diff has refused the request, the error is a *RefusedError.
func (r *Reader) Next() (*Entry, *Done, error) {
	var err error
	if r.buf, err = readFrame(r.r, r.buf, maxFrame); err != nil {
		return nil, nil, fmt.Errorf("read from forkd-diff: %w", err)
	}
	in := codec.NewReader(r.buf)
	switch kind := codec.Kind(in.U8()); kind {
	case kindEntry:
		e := parseEntry(in)
		err := errors.Join(in.Done(), e.check())
		if err == nil {
			err = r.order.add(e)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read an entry from forkd-diff: %w", err)
		}
		return e, nil, nil
	case kindDone:
		d := &Done{Added: in.U64(), Changed: in.U64(), Deleted: in.U64(), LinesAdded: in.U64(), LinesDeleted: in.U64(),
			Skipped: in.U64(), Conflicts: in.U64()}
		if err := in.Done(); err != nil {
			return nil, nil, fmt.Errorf("read the end from forkd-diff: %w", err)
		}
		return nil, d, nil
	case kindRefused:
		return nil, nil, parseRefused(in)
	default:
		return nil, nil, fmt.Errorf("read from forkd-diff: a message of kind %d", kind)
	}
}

// parseRefused returns the *RefusedError of a refusal.
func parseRefused(in *codec.Reader) error {
	refused := &RefusedError{Field: in.String(), Reason: in.String()}
	if err := in.Done(); err != nil {
		return fmt.Errorf("read a refusal from forkd-diff: %w", err)
	}
	if f := refused.Field; f != "path" && f != "partial" && f != "paths" { // the fields that forkd-diff checks
		refused.Field = ""
	}
	refused.Reason = fmt.Sprintf("%.*q", maxReason, refused.Reason)
	refused.Reason = refused.Reason[1 : len(refused.Reason)-1]
	return refused
}

func parseEntry(in *codec.Reader) *Entry {
	e := &Entry{Path: in.String(), Old: parseNode(in), New: parseNode(in), Content: in.Bool()}
	n := in.Count(4)
	for range min(n, MaxXattrs+1) {
		e.Xattrs = append(e.Xattrs, in.String())
	}
	e.Omitted, e.LinesAdded, e.LinesDeleted = Omission(in.U8()), in.U32(), in.U32()
	if p := in.Blob(); len(p) > 0 {
		e.Patch = append([]byte(nil), p...)
	}
	e.Base, e.Conflict, e.Kept = Type(in.U8()), in.Bool(), in.Bool()
	return e
}

// check returns an error if the entry cannot be the result of a comparison.
func (e *Entry) check() error {
	switch {
	case len(e.Path) > MaxPath || !path.IsAbs(e.Path) || path.Clean(e.Path) != e.Path || strings.ContainsRune(e.Path, 0):
		return fmt.Errorf("path %.100q", e.Path)
	case e.Old.Type == Absent && e.New.Type == Absent:
		return errors.New("no file on either disk")
	case len(e.Xattrs) > MaxXattrs:
		return fmt.Errorf("more than %d extended attributes", MaxXattrs)
	case e.Base >= types:
		return fmt.Errorf("base of type %d", e.Base)
	case e.Omitted >= omissions:
		return fmt.Errorf("omission %d", e.Omitted)
	case len(e.Patch) > MaxPatch || !utf8.Valid(e.Patch):
		return fmt.Errorf("a patch of %d bytes: want UTF-8, and at most %d", len(e.Patch), MaxPatch)
	}
	if err := checkHunks(string(e.Patch)); err != nil {
		return err
	}
	for _, name := range e.Xattrs {
		if len(name) > maxName {
			return fmt.Errorf("extended attribute %.100q", name)
		}
	}
	return errors.Join(e.Old.check(), e.New.check())
}

func (n *Node) check() error {
	if n.Type >= types || n.Mode > 0o7777 || len(n.Target) > MaxPath || strings.ContainsRune(n.Target, 0) {
		return fmt.Errorf("file of type %d, mode %o, target %.100q", n.Type, n.Mode, n.Target)
	}
	return nil
}
