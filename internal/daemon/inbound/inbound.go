// Package inbound carries requests and connections from the daemon's clients to TCP ports of
// guests: HTTP/1.1 and its upgrades, HTTP/2 with gRPC, and plain TCP.
//
// Neither the server in the guest nor a client with a signed URL is trusted. The package bounds the
// resources of the daemon that the server or the client can hold: a stream has one buffer for each
// direction, and the idle time and the size of headers are limited. The package keeps the daemon's
// token from the guest. It removes headers from an answer if they would affect more than the
// guest's port; see header.go. It does not decide which client may reach which port (see package
// front), counts nothing, and rewrites no bodies.
package inbound

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/host/agentclient"
)

// Dial connects to the port of the guest.
type Dial func(context.Context) (agentclient.PortConn, error)

// Config configures a Proxy.
type Config struct {
	IsToken func(string) bool // reports whether a text is a token of the daemon, which no guest may see
	Idle    time.Duration     // time without a byte in either direction after which a stream is closed
	// Time limit for a client to read. It also limits how long a guest may take to read the rest of
	// the data from a client that has left.
	Stall time.Duration
}

// Proxy carries streams. Its methods may be called concurrently.
type Proxy struct {
	Config
	buffers sync.Pool // *[]byte
}

// bufferSize is the size of a buffer for one direction of a stream, in bytes.
const bufferSize = 32 << 10

// New returns a Proxy.
func New(cfg Config) *Proxy {
	return &Proxy{Config: cfg, buffers: sync.Pool{New: func() any { b := make([]byte, bufferSize); return &b }}}
}

// Get and Put implement httputil.BufferPool.
func (p *Proxy) Get() []byte  { return *p.buffers.Get().(*[]byte) }
func (p *Proxy) Put(b []byte) { p.buffers.Put(&b) }

// ErrIdle ends a stream that was idle too long.
var ErrIdle = errors.New("the connection was ended: no byte has moved for too long")

// Errors of invalid requests.
var (
	ErrUpgrade = errors.New("want HTTP/1.1 and the headers 'Connection: Upgrade' and 'Upgrade: tcp', and no body")
	ErrWorker  = errors.New("a service worker would speak for the daemon's whole origin: open the sandbox by a host name of its own")
	ErrMethod  = errors.New("CONNECT: method not allowed")
)

// AnswerError reports a server in a guest that does not speak HTTP.
type AnswerError struct {
	Port uint16
	Err  error
}

// maxQuote bounds the part of an answer that an error quotes, in bytes.
const maxQuote = 200

func (e *AnswerError) Error() string {
	text := e.Err.Error()
	if len(text) > maxQuote {
		text = text[:maxQuote] + "…"
	}
	return fmt.Sprintf("port %d of the sandbox: no proper HTTP answer: %s", e.Port, text)
}

func (e *AnswerError) Unwrap() error { return e.Err }

// guestConn is a connection to a guest. It closes itself after an idle time.
type guestConn struct {
	agentclient.PortConn
	idle   time.Duration
	timer  *time.Timer
	closed func()
	sent   func() // called when the client's data has ended; may be nil
}

// dial connects to the guest. The connection calls idled() before it is closed for being idle, and
// calls closed() whenever it is closed.
func (p *Proxy) dial(ctx context.Context, dial Dial, idled, closed func()) (*guestConn, error) {
	conn, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	return &guestConn{conn, p.Idle, time.AfterFunc(p.Idle, func() { idled(); conn.Close() }), closed, nil}, nil
}

func (c *guestConn) Read(b []byte) (int, error) {
	n, err := c.PortConn.Read(b)
	c.moved(n)
	return n, err
}

func (c *guestConn) Write(b []byte) (int, error) {
	n, err := c.PortConn.Write(b)
	c.moved(n)
	return n, err
}

func (c *guestConn) moved(n int) {
	if n > 0 {
		c.timer.Reset(c.idle) // on a closed connection, the timer only closes it again
	}
}

// Close implements net.Conn.
func (c *guestConn) Close() error {
	c.timer.Stop()
	defer c.closed()
	return c.PortConn.Close()
}

// CloseWrite implements agentclient.PortConn.
func (c *guestConn) CloseWrite() error {
	if c.sent != nil {
		go c.sent()
	}
	return c.PortConn.CloseWrite()
}

// clientConn is the connection of a client after an upgrade. A write fails if the client does not
// read for the duration in stall.
type clientConn struct {
	net.Conn
	early io.Reader // bytes that the client sent after its request
	stall time.Duration
	sent  func() // called when the guest's data has ended
}

// hijack takes a client's connection from the HTTP server.
func hijack(w http.ResponseWriter, stall time.Duration) (*clientConn, error) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	return &clientConn{conn, io.LimitReader(rw.Reader, int64(rw.Reader.Buffered())), stall, func() {}}, nil
}

func (c *clientConn) Read(b []byte) (int, error) {
	if n, err := c.early.Read(b); n > 0 || err == nil {
		return n, nil
	}
	return c.Conn.Read(b)
}

func (c *clientConn) Write(b []byte) (int, error) {
	// This fails only on a closed connection, and then the write fails too.
	_ = c.Conn.SetWriteDeadline(time.Now().Add(c.stall))
	return c.Conn.Write(b)
}

// CloseWrite ends the data to the client.
func (c *clientConn) CloseWrite() error {
	go c.sent()
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Conn.Close() // this kind of connection cannot be closed in one direction
}
