package inbound

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"
)

// protocol is the name of the protocol in the upgrade.
const protocol = "tcp"

// TCP turns the connection of a request into a connection to the port: it upgrades to "tcp" and
// then carries bytes. The two directions end separately. The results have the same meaning as those
// of Proxy.HTTP.
func (p *Proxy) TCP(w http.ResponseWriter, r *http.Request, dial Dial) (answered bool, err error) {
	if r.ProtoMajor != 1 || r.ContentLength != 0 || !asksFor(r.Header, protocol) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", protocol)
		if r.ContentLength != 0 { // the server would wait for the body, which may never arrive
			w.Header().Add("Connection", "close")
			_ = http.NewResponseController(w).SetReadDeadline(time.Now())
		}
		return false, ErrUpgrade
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	guest, err := p.dial(ctx, dial, func() { cancel(ErrIdle) }, func() {})
	if err != nil {
		return false, err
	}
	defer guest.Close()
	client, err := hijack(w, p.Stall)
	if err != nil {
		return false, err
	}
	defer client.Close()
	_, err = io.WriteString(client,
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+protocol+"\r\n\r\n")
	if err != nil {
		return true, err
	}
	p.endWhenGone(ctx, client, guest, cancel)
	if err = p.join(client, guest); err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, errGone) {
		err = nil
	}
	return true, err
}

// Stream is a connection of a client whose directions can be closed separately.
type Stream = halfConn

// Carry connects a stream of a client to the port. When the port is connected, Carry calls
// accept(). This function returns the stream, and a channel that is closed when the client has
// closed the stream. Carry reports whether it has called accept().
func (p *Proxy) Carry(ctx context.Context, dial Dial, accept func() (Stream, <-chan struct{}, error)) (accepted bool,
	err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	guest, err := p.dial(ctx, dial, func() { cancel(ErrIdle) }, func() {})
	if err != nil {
		return false, err
	}
	defer guest.Close()
	stream, gone, err := accept()
	if err != nil {
		return true, err
	}
	client := &watchedStream{stream, func() {
		if hangUp(guest.PortConn) {
			cancel(errGone)
		}
	}}
	defer client.Close()
	go func() {
		select {
		case <-gone: // data of the client may still be on its way to the guest
			time.AfterFunc(p.Stall, func() { cancel(errGone) })
		case <-ctx.Done():
		}
	}()
	defer context.AfterFunc(ctx, func() { guest.Close(); client.Close() })()
	if err = p.join(client, guest); err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, errGone) {
		err = nil
	}
	return true, err
}

// watchedStream calls sent() when the guest's data has ended.
type watchedStream struct {
	Stream
	sent func()
}

// CloseWrite ends the data to the client.
func (s *watchedStream) CloseWrite() error {
	go s.sent()
	return s.Stream.CloseWrite()
}

// asksFor reports whether a request asks for an upgrade to a protocol.
func asksFor(h http.Header, protocol string) bool {
	for _, v := range h["Connection"] {
		for option := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(option), "upgrade") {
				return strings.EqualFold(h.Get("Upgrade"), protocol)
			}
		}
	}
	return false
}

// halfConn is a stream whose directions can be closed separately.
type halfConn interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// join carries bytes in both directions until both directions have ended or one direction has
// failed.
func (p *Proxy) join(a, b halfConn) error {
	done := make(chan error, 1)
	go func() { done <- p.pass(a, b) }()
	err := p.pass(b, a)
	if other := <-done; err == nil {
		err = other
	}
	return err
}

// pass() carries one direction until its data ends, and then ends the data on the other side. On an
// error, it closes both connections.
func (p *Proxy) pass(to, from halfConn) error {
	buf := p.Get()
	defer p.Put(buf)
	_, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, buf)
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		to.Close()
		from.Close()
	}
	return err
}
