package sshproto

import (
	"errors"
	"io"
	"os"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/ctlsock"
)

// Kinds of messages in a stream. forkd-ssh sends only Data and EOF.
const (
	Data   codec.Kind = iota + 1 // input of the client, or output for the client
	Errors                       // output for the client's standard error
	EOF                          // no more data in this direction
	Reply                        // reply to the oldest Request without a reply: 1 for success, 0 for a refusal
	Exit                         // how the process of a session has ended; the body is a Request without an id
)

// Stream is one end of a channel's stream, which is a socket of package ctlsock. If one end does
// not read, the other end soon cannot send. So a slow client slows the daemon down, and a slow
// daemon slows the client down, as the windows of SSH require. One goroutine may receive while
// other goroutines send.
//
// Requests are not in the stream, because a client may send a signal to a process that reads no
// input. Replies are in the stream, so that the client gets the reply to a request before the
// output of the process that the request has started.
type Stream struct {
	conn  *ctlsock.Conn
	rest  []byte // data of the client that Read has received but not returned
	ended error  // result of all later calls of Read
}

// NewStream returns the daemon's end of a stream, and the end for forkd-ssh.
func NewStream() (ours *Stream, theirs *os.File, err error) {
	conn, theirs, err := ctlsock.Pair(maxMessage)
	if err != nil {
		return nil, nil, err
	}
	return &Stream{conn: conn}, theirs, nil
}

// OpenStream returns forkd-ssh's end of a stream. It takes ownership of the descriptor.
func OpenStream(fd int) (*Stream, error) {
	conn, err := ctlsock.Open(fd, maxMessage)
	if err != nil {
		return nil, err
	}
	return &Stream{conn: conn}, nil
}

// errKind ends the stream of a process that does not follow the protocol.
var errKind = errors.New("forkd-ssh sends a message of an unknown kind in a stream")

// Read reads input of the client.
func (s *Stream) Read(p []byte) (int, error) {
	for len(s.rest) == 0 && s.ended == nil {
		kind, body, err := s.Next()
		switch {
		case err != nil:
			s.ended = err
		case kind == Data:
			s.rest = body
		case kind == EOF:
			s.ended = io.EOF
		default:
			s.ended = errKind
		}
	}
	if len(s.rest) == 0 {
		return 0, s.ended
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// Next receives a message. The body is valid until the next call. After the last message of the
// other end, the error is io.EOF.
func (s *Stream) Next() (kind codec.Kind, body []byte, err error) {
	kind, body, fds, err := s.conn.Receive()
	if len(fds) > 0 {
		ctlsock.CloseAll(fds)
		return 0, nil, errors.New("a message of a stream has descriptors")
	}
	return kind, body, err
}

// Write sends data.
func (s *Stream) Write(p []byte) (int, error) { return s.send(Data, p) }

// WriteErrors sends data for the client's standard error.
func (s *Stream) WriteErrors(p []byte) (int, error) { return s.send(Errors, p) }

func (s *Stream) send(kind codec.Kind, p []byte) (n int, err error) {
	for n < len(p) {
		part := p[n:min(len(p), n+MaxPayload)]
		if err := s.conn.Send(kind, part); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// CloseWrite sends EOF.
func (s *Stream) CloseWrite() error { return s.conn.Send(EOF, nil) }

// Reply replies to a request.
func (s *Stream) Reply(ok bool) error {
	var w codec.Writer
	w.Bool(ok)
	return s.conn.Send(Reply, w.Bytes())
}

// Exit tells the client how the process of a session has ended. The parameter kind is the type of
// the SSH request that tells this, such as "exit-status".
func (s *Stream) Exit(kind string, payload []byte) error {
	var w codec.Writer
	(&Request{Type: kind, Payload: payload}).Append(&w)
	return s.conn.Send(Exit, w.Bytes())
}

// ParseExit parses the body of a message of the kind Exit.
func ParseExit(body []byte) (*Request, error) {
	m, err := parse(kindRequest, body)
	if err != nil {
		return nil, err
	}
	return m.(*Request), nil
}

// Close ends both directions. The other end still receives what was sent before. Close never waits.
func (s *Stream) Close() error {
	s.conn.Shutdown()
	return nil
}

// Release closes the descriptor. Call it after the last use of the Stream.
func (s *Stream) Release() { _ = s.conn.Close() }
