// Package sshproto is the protocol between the daemon and a forkd-ssh process, which speaks SSH
// with one client.
//
// The daemon and forkd-ssh share a control socket (package ctlsock), and a stream for each open
// channel of SSH:
//
//	forkd-ssh                        daemon
//	Ready                       ──▶             forkd-ssh is in its jail
//	                            ◀──  Setup
//	Sign                        ──▶             in each key exchange
//	                            ◀──  Signature
//	Login                       ──▶             the client has proved that it has this key
//	                            ◀──  Admit      accepted, or refused
//	Open                        ──▶             the client opens a channel
//	                            ◀──  Accept     with the other end of the channel's stream; or Refuse
//	Request                     ──▶             a request of a channel; the reply is in the stream
//	Sent                        ──▶             all output of a closed stream has been sent
//	Closed                      ──▶             the client has closed a channel
//	                            ◀──  Ping       asks whether the client still answers
//	Pong                        ──▶
//
// The daemon trusts no process that has read from a client. All messages have bounds, even where
// SSH has none. If a client's request exceeds a bound, forkd-ssh itself refuses it. No message to
// the daemon carries descriptors.
//
// The package holds no state of connections or channels.
package sshproto

import (
	"fmt"
	"os"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/ctlsock"
)

// Numbers of forkd-ssh's descriptors when it starts.
const (
	ControlFD = 3
	ClientFD  = 4
)

// Bounds of fields, in bytes. MaxName applies to user names, versions, types and names of
// algorithms.
const (
	MaxPayload = 32 << 10 // payload of a request, and data in one message of a stream
	MaxExtra   = 4 << 10  // extra data of a channel
	MaxKey     = 16 << 10 // key of a client, or of the host
	MaxName    = 512
	MaxHash    = 64 // hash of a key exchange, which the host key signs
)

// maxMessage bounds a message, in bytes.
const maxMessage = MaxPayload + 4<<10

const (
	kindReady codec.Kind = iota + 1
	kindSetup
	kindSign
	kindSignature
	kindLogin
	kindAdmit
	kindOpen
	kindAccept
	kindRefuse
	kindRequest
	kindSent
	kindClosed
	kindPing
	kindPong
)

// Message is a message on the control socket.
type Message interface {
	codec.Message
	kind() codec.Kind
	parse(r *codec.Reader) error
}

// empty is a message without fields.
type empty struct{}

func (*empty) Append(*codec.Writer)      {}
func (*empty) parse(*codec.Reader) error { return nil }

type (
	// Ready says that forkd-ssh is in its jail.
	Ready struct{ empty }
	// Ping asks whether the client still answers.
	Ping struct{ empty }
	// Pong says that the client has answered since the Ping.
	Pong struct{ empty }
)

func (*Ready) kind() codec.Kind { return kindReady }
func (*Ping) kind() codec.Kind  { return kindPing }
func (*Pong) kind() codec.Kind  { return kindPong }

// Setup has the public host key, in the wire format of SSH.
type Setup struct{ HostKey []byte }

func (*Setup) kind() codec.Kind         { return kindSetup }
func (m *Setup) Append(w *codec.Writer) { w.Blob(m.HostKey) }
func (m *Setup) parse(r *codec.Reader) error {
	m.HostKey = blob(r)
	return most("host key", len(m.HostKey), MaxKey)
}

// Sign asks the daemon to sign a hash with the host key.
type Sign struct {
	Algorithm string
	Hash      []byte
}

func (*Sign) kind() codec.Kind { return kindSign }

// Append implements codec.Message.
func (m *Sign) Append(w *codec.Writer) {
	w.String(m.Algorithm)
	w.Blob(m.Hash)
}

func (m *Sign) parse(r *codec.Reader) error {
	m.Algorithm, m.Hash = r.String(), blob(r)
	if err := most("hash", len(m.Hash), MaxHash); err != nil {
		return err
	}
	return most("algorithm", len(m.Algorithm), MaxName)
}

// Signature answers Sign. The signature is in the wire format of SSH.
type Signature struct{ Signature []byte }

func (*Signature) kind() codec.Kind         { return kindSignature }
func (m *Signature) Append(w *codec.Writer) { w.Blob(m.Signature) }
func (m *Signature) parse(r *codec.Reader) error {
	m.Signature = blob(r)
	return most("signature", len(m.Signature), MaxKey)
}

// Login says that the client has proved that it has a key, and asks the daemon to log the client
// in.
type Login struct {
	User    string
	Version string // version of the client's program
	Key     []byte // in the wire format of SSH
}

func (*Login) kind() codec.Kind { return kindLogin }

// Append implements codec.Message.
func (m *Login) Append(w *codec.Writer) {
	w.String(m.User)
	w.String(m.Version)
	w.Blob(m.Key)
}

func (m *Login) parse(r *codec.Reader) error {
	m.User, m.Version, m.Key = r.String(), r.String(), blob(r)
	if err := most("name", max(len(m.User), len(m.Version)), MaxName); err != nil {
		return err
	}
	return most("key", len(m.Key), MaxKey)
}

// Admit answers Login. After OK, no further Login is permitted.
type Admit struct {
	OK     bool
	Banner string // message for the client of a refused login; may be empty
}

func (*Admit) kind() codec.Kind { return kindAdmit }

// Append implements codec.Message.
func (m *Admit) Append(w *codec.Writer) {
	w.Bool(m.OK)
	w.String(m.Banner)
}

func (m *Admit) parse(r *codec.Reader) error {
	m.OK, m.Banner = r.Bool(), r.String()
	return nil
}

// Open asks to open a channel. The ids of a process's channels are 1, 2 and so on.
type Open struct {
	ID    uint32
	Type  string
	Extra []byte
}

func (*Open) kind() codec.Kind { return kindOpen }

// Append implements codec.Message.
func (m *Open) Append(w *codec.Writer) {
	w.U32(m.ID)
	w.String(m.Type)
	w.Blob(m.Extra)
}

func (m *Open) parse(r *codec.Reader) error {
	m.ID, m.Type, m.Extra = r.U32(), r.String(), blob(r)
	if err := most("extra data", len(m.Extra), MaxExtra); err != nil {
		return err
	}
	return most("type", len(m.Type), MaxName)
}

// Accept answers Open. It carries a descriptor, which forkd-ssh passes to OpenStream.
type Accept struct{ ID uint32 }

func (*Accept) kind() codec.Kind              { return kindAccept }
func (m *Accept) Append(w *codec.Writer)      { w.U32(m.ID) }
func (m *Accept) parse(r *codec.Reader) error { m.ID = r.U32(); return nil }

// Refuse answers Open.
type Refuse struct {
	ID     uint32
	Reason uint32 // reason code of RFC 4254, section 5.1
	Text   string
}

func (*Refuse) kind() codec.Kind { return kindRefuse }

// Append implements codec.Message.
func (m *Refuse) Append(w *codec.Writer) {
	w.U32(m.ID)
	w.U32(m.Reason)
	w.String(m.Text)
}

func (m *Refuse) parse(r *codec.Reader) error {
	m.ID, m.Reason, m.Text = r.U32(), r.U32(), r.String()
	return nil
}

// Request is a request of an open channel.
type Request struct {
	ID        uint32
	Type      string
	WantReply bool
	Payload   []byte
}

func (*Request) kind() codec.Kind { return kindRequest }

// Append implements codec.Message.
func (m *Request) Append(w *codec.Writer) {
	w.U32(m.ID)
	w.String(m.Type)
	w.Bool(m.WantReply)
	w.Blob(m.Payload)
}

func (m *Request) parse(r *codec.Reader) error {
	m.ID, m.Type, m.WantReply, m.Payload = r.U32(), r.String(), r.Bool(), blob(r)
	if err := most("payload", len(m.Payload), MaxPayload); err != nil {
		return err
	}
	return most("type", len(m.Type), MaxName)
}

// Sent says that forkd-ssh has sent the client all data of a stream that the daemon has closed.
// Sent may come after Closed.
type Sent struct{ ID uint32 }

func (*Sent) kind() codec.Kind              { return kindSent }
func (m *Sent) Append(w *codec.Writer)      { w.U32(m.ID) }
func (m *Sent) parse(r *codec.Reader) error { m.ID = r.U32(); return nil }

// Closed says that the client has closed an open channel. Data that the client sent before may
// still be in the stream.
type Closed struct{ ID uint32 }

func (*Closed) kind() codec.Kind              { return kindClosed }
func (m *Closed) Append(w *codec.Writer)      { w.U32(m.ID) }
func (m *Closed) parse(r *codec.Reader) error { m.ID = r.U32(); return nil }

// blob returns a copy of a byte string, because the next message replaces the input of r.
func blob(r *codec.Reader) []byte { return append([]byte(nil), r.Blob()...) }

func most(field string, have, most int) error {
	if have > most {
		return fmt.Errorf("the %s has %d bytes, at most %d", field, have, most)
	}
	return nil
}

// parse returns the message with the given kind and body.
func parse(kind codec.Kind, body []byte) (m Message, err error) {
	switch kind {
	case kindReady:
		m = new(Ready)
	case kindSetup:
		m = new(Setup)
	case kindSign:
		m = new(Sign)
	case kindSignature:
		m = new(Signature)
	case kindLogin:
		m = new(Login)
	case kindAdmit:
		m = new(Admit)
	case kindOpen:
		m = new(Open)
	case kindAccept:
		m = new(Accept)
	case kindRefuse:
		m = new(Refuse)
	case kindRequest:
		m = new(Request)
	case kindSent:
		m = new(Sent)
	case kindClosed:
		m = new(Closed)
	case kindPing:
		m = new(Ping)
	case kindPong:
		m = new(Pong)
	default:
		return nil, fmt.Errorf("message of the unknown kind %d", kind)
	}
	r := codec.NewReader(body)
	if err = m.parse(r); err == nil {
		err = r.Done()
	}
	if err != nil {
		return nil, fmt.Errorf("message of the kind %d: %w", kind, err)
	}
	return m, nil
}

// Control is one end of a control socket. One goroutine may receive while other goroutines send.
type Control struct{ conn *ctlsock.Conn }

// NewControl returns the daemon's end of a control socket, and the end for forkd-ssh.
func NewControl() (ours *Control, theirs *os.File, err error) {
	conn, theirs, err := ctlsock.Pair(maxMessage)
	if err != nil {
		return nil, nil, err
	}
	return &Control{conn}, theirs, nil
}

// OpenControl returns forkd-ssh's end of its control socket.
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

// Receive waits for a message to the daemon. If the message has a descriptor, Receive returns an
// error.
func (c *Control) Receive() (Message, error) {
	m, fd, err := c.ReceiveFD()
	if err == nil && fd >= 0 {
		ctlsock.CloseAll([]int{fd})
		return nil, fmt.Errorf("%T with a descriptor", m)
	}
	return m, err
}

// ReceiveFD waits for a message. The result fd is the message's descriptor, or -1.
func (c *Control) ReceiveFD() (m Message, fd int, err error) {
	kind, body, fds, err := c.conn.Receive()
	if err == nil {
		m, err = parse(kind, body)
	}
	if err == nil && len(fds) > 1 {
		err = fmt.Errorf("%T with %d descriptors", m, len(fds))
	}
	if err != nil {
		ctlsock.CloseAll(fds)
		return nil, -1, err
	}
	if len(fds) == 0 {
		return m, -1, nil
	}
	return m, fds[0], nil
}

// Shutdown makes Receive return on both ends.
func (c *Control) Shutdown() { c.conn.Shutdown() }

// Close ends the connection.
func (c *Control) Close() error { return c.conn.Close() }
