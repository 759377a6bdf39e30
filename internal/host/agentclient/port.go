package agentclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/forkd/forkd/internal/proto/agentproto"
)

// PortConn is a connection to a TCP port of a guest. CloseWrite closes only the direction to the
// guest.
//
// If the guest resets a connection, the host sees an ordinary end of the stream, because vsock has
// no resets.
type PortConn interface {
	net.Conn
	CloseWrite() error
}

// DialPort connects to a TCP port on the guest's loopback, 127.0.0.1 or ::1, through the agent. The
// agent connects to no other address. If the agent gives a reason for a failure, the error is an
// *Error. After DialPort has returned, the stream stays open even if ctx ends.
func (c *Client) DialPort(ctx context.Context, port uint16) (PortConn, error) {
	op := fmt.Sprintf("connect to port %d", port)
	conn, err := c.dial(ctx, agentproto.DialPort)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	answer, err := askPort(ctx, conn, port)
	if err == nil && answer == agentproto.DialOK {
		if s, ok := conn.(PortConn); ok {
			return s, nil
		}
		err = errors.New("the dial function made no PortConn")
	}
	conn.Close()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return nil, refusal(op, port, answer)
}

// DialService connects to a vsock port of the agent. After DialService has returned, the stream
// stays open even if ctx ends.
func (c *Client) DialService(ctx context.Context, port uint32) (PortConn, error) {
	conn, err := c.dial(ctx, port)
	if err != nil {
		return nil, err
	}
	if s, ok := conn.(PortConn); ok {
		return s, nil
	}
	conn.Close()
	return nil, errors.New("the dial function made no PortConn")
}

// askPort sends the port number to the agent and reads the answer.
func askPort(ctx context.Context, conn net.Conn, port uint16) (agentproto.DialAnswer, error) {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	_, sent := conn.Write(agentproto.AppendDial(nil, port))
	var answer [1]byte
	_, err := io.ReadFull(conn, answer[:]) // a busy agent answers and closes before it reads the request
	if !stop() {
		return 0, ctx.Err()
	}
	if err != nil {
		err = cmp.Or(sent, err)
	}
	return agentproto.DialAnswer(answer[0]), err
}

// refusal returns the error for an answer other than DialOK.
func refusal(op string, port uint16, answer agentproto.DialAnswer) error {
	switch answer {
	case agentproto.DialRefused:
		return &Error{Op: op, Code: CodeRefused,
			Message: fmt.Sprintf("no server listens on 127.0.0.1:%d or [::1]:%d in the sandbox", port, port)}
	case agentproto.DialTimeOut:
		return &Error{Op: op, Code: CodeTimeout, Message: "the server in the sandbox does not accept connections"}
	case agentproto.DialBusy:
		return &Error{Op: op, Code: CodeUnavailable,
			Message: fmt.Sprintf("%d connections to ports of the sandbox are open, the most at once", agentproto.MaxDialed)}
	}
	return &Error{Op: op, Code: CodeInternal, Message: fmt.Sprintf("the agent could not connect (answer %d)", answer)}
}
