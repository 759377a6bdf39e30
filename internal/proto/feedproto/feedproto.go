// Package feedproto is the protocol between the daemon and a forkd-feed process, which serves the
// files of a snapshot while its frames arrive.
//
//	daemon                          forkd-feed
//	Setup                      ──▶              the files, with a descriptor of each blob
//	                           ◀──  Ready       forkd-feed is in its jail and has read the indexes
//	                           ◀──  Need        a VMM waits for a frame
//	Have                       ──▶              the frame is verified, and in the blob's file
//	Whole                      ──▶              all frames of all blobs are there: the daemon may exit
//	Lost                       ──▶              frames that are not there will never arrive
//
// After Setup, forkd-feed receives no descriptors, and it never sends any. If the daemon closes the
// connection before Whole, this means the same as Lost.
package feedproto

import (
	"fmt"
	"os"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/ctlsock"
)

// Numbers of forkd-feed's descriptors when it starts.
const (
	ControlFD = 3
	FuseFD    = 4
)

// MaxFiles is the maximum number of files: a snapshot has at most 64 layers of memory, 64 layers of
// a disk, and a base image. All of their descriptors fit into one message.
const MaxFiles = 129

// maxMessage bounds a message, in bytes.
const maxMessage = 64 << 10

const (
	kindSetup codec.Kind = iota + 1
	kindReady
	kindNeed
	kindHave
	kindWhole
	kindLost
)

// Message is a message on the control socket.
type Message interface {
	codec.Message
	kind() codec.Kind
	parse(r *codec.Reader)
}

// empty is a message without fields.
type empty struct{}

func (*empty) Append(*codec.Writer) {}
func (*empty) parse(*codec.Reader)  {}

type (
	// Ready says that forkd-feed serves the files.
	Ready struct{ empty }
	// Whole says that all frames are there.
	Whole struct{ empty }
	// Lost says that no further frame will arrive.
	Lost struct{ empty }
)

func (*Ready) kind() codec.Kind { return kindReady }
func (*Whole) kind() codec.Kind { return kindWhole }
func (*Lost) kind() codec.Kind  { return kindLost }

// Frame names a frame of a file.
type Frame struct {
	File  uint32 // index in Setup.Files
	Frame uint32
}

// Append implements codec.Message.
func (m *Frame) Append(w *codec.Writer) {
	w.U32(m.File)
	w.U32(m.Frame)
}

func (m *Frame) parse(r *codec.Reader) { m.File, m.Frame = r.U32(), r.U32() }

type (
	// Need asks for a frame.
	Need struct{ Frame }
	// Have says that a frame is there.
	Have struct{ Frame }
)

func (*Need) kind() codec.Kind { return kindNeed }
func (*Have) kind() codec.Kind { return kindHave }

// File describes a file and its blob, see artifact.Blob.
type File struct {
	Name        string
	Bytes       uint64 // length of the file
	Size        uint64 // length of the blob
	IndexBytes  uint64
	IndexDigest string
}

// Setup has the files. The message has a descriptor of each file's blob, in the same order.
type Setup struct{ Files []File }

func (*Setup) kind() codec.Kind { return kindSetup }

// Append implements codec.Message.
func (m *Setup) Append(w *codec.Writer) {
	w.U32(uint32(len(m.Files)))
	for _, f := range m.Files {
		w.String(f.Name)
		w.U64(f.Bytes)
		w.U64(f.Size)
		w.U64(f.IndexBytes)
		w.String(f.IndexDigest)
	}
}

func (m *Setup) parse(r *codec.Reader) {
	m.Files = make([]File, r.Count(8+3*8))
	for i := range m.Files {
		m.Files[i] = File{Name: r.String(), Bytes: r.U64(), Size: r.U64(), IndexBytes: r.U64(), IndexDigest: r.String()}
	}
}

// parse decodes a message.
func parse(kind codec.Kind, body []byte) (Message, error) {
	list := map[codec.Kind]Message{kindSetup: &Setup{}, kindReady: &Ready{}, kindNeed: &Need{}, kindHave: &Have{},
		kindWhole: &Whole{}, kindLost: &Lost{}}
	m := list[kind]
	if m == nil {
		return nil, fmt.Errorf("unknown message %d", kind)
	}
	r := codec.NewReader(body)
	m.parse(r)
	if err := r.Done(); err != nil {
		return nil, fmt.Errorf("%T: %w", m, err)
	}
	return m, nil
}

// Control is one end of a control socket. One goroutine may receive while other goroutines send.
type Control struct{ conn *ctlsock.Conn }

// NewControl returns the two ends of a control socket. The other process passes its end to
// OpenControl.
func NewControl() (ours *Control, theirs *os.File, err error) {
	conn, theirs, err := ctlsock.Pair(maxMessage)
	if err != nil {
		return nil, nil, err
	}
	return &Control{conn}, theirs, nil
}

// OpenControl returns forkd-feed's end of its control socket.
func OpenControl() (*Control, error) {
	conn, err := ctlsock.Open(ControlFD, maxMessage)
	if err != nil {
		return nil, err
	}
	return &Control{conn}, nil
}

// Send sends a message, with copies of the descriptors fds.
func (c *Control) Send(m Message, fds ...int) error {
	var w codec.Writer
	m.Append(&w)
	return c.conn.Send(m.kind(), w.Bytes(), fds...)
}

// Receive waits for a message. If a message other than Setup has descriptors, Receive returns an
// error.
func (c *Control) Receive() (m Message, fds []int, err error) {
	kind, body, fds, err := c.conn.Receive()
	if err == nil {
		m, err = parse(kind, body)
	}
	want := 0
	if s, ok := m.(*Setup); ok && err == nil {
		want = len(s.Files)
	}
	if err == nil && len(fds) != want {
		err = fmt.Errorf("%T with %d descriptors, not %d", m, len(fds), want)
	}
	if err != nil {
		ctlsock.CloseAll(fds)
		return nil, nil, err
	}
	return m, fds, nil
}

// Close ends the connection.
func (c *Control) Close() error { return c.conn.Close() }
