package inbound

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/forkd/forkd/internal/host/agentclient"
)

// Bounds on the answer of a guest.
const (
	maxHeaders = 16 << 10 // bytes, as Node's clients have it
	maxInforms = 32       // answers with a status below 200 before the real one
	maxWindow  = 64 << 10 // bytes of HTTP/2 that a guest may send ahead
)

// MaxFields is how many headers a request or an answer may have. Parsed, a short one takes fifty times its
// bytes, for as long as what follows it lasts.
const MaxFields = 256

// Fields counts headers.
func Fields(h http.Header) (n int) {
	for _, values := range h {
		n += len(values)
	}
	return n
}

// errFields ends an answer.
var errFields = fmt.Errorf("the server's answer has more than %d headers", MaxFields)

// HTTP carries one request and its answer, or what the connection becomes by an upgrade. If
// answered is false, nothing has been written yet, and the error is the answer; else an error can
// only cut the answer off.
func (p *Proxy) HTTP(w http.ResponseWriter, r *http.Request, route Route, dial Dial) (answered bool, err error) {
	switch {
	case r.Method == http.MethodConnect:
		return false, ErrMethod
	case route.isDaemons() && r.Header.Get("Service-Worker") != "":
		return false, ErrWorker
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	rc := http.NewResponseController(w)
	_ = rc.EnableFullDuplex() // HTTP/2 has it anyhow
	body := &requestBody{ReadCloser: r.Body, none: r.ContentLength == 0, rc: rc}
	var guest *guestConn
	out := &answer{ResponseWriter: w, rc: rc, body: body, http1: r.ProtoMajor == 1, stall: p.Stall,
		flood:    func() { cancel(&AnswerError{route.Port, errFlood}) },
		hijacked: func(client *clientConn) { p.endWhenGone(ctx, client, guest, cancel) }}
	defer context.AfterFunc(ctx, body.forsake)()
	defer func() {
		if body.leave() {
			out.last()
		}
		if v := recover(); v != nil {
			if cut, ok := v.(error); !ok || !errors.Is(cut, http.ErrAbortHandler) {
				panic(v)
			}
			answered, err = true, io.ErrUnexpectedEOF
		}
		if cause := context.Cause(ctx); cause != nil && (err == nil || !errors.Is(cause, context.Cause(r.Context()))) {
			err = cause
		}
		if errors.Is(err, errGone) {
			err = nil
		}
	}()
	in := r.WithContext(ctx)
	in.Body = body
	if !body.none && in.Header.Get("Upgrade") != "" { // no connection becomes another while its body is being read
		in.Header = in.Header.Clone()
		in.Header.Del("Upgrade")
	}
	proxy := httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) { p.request(pr, &route) },
		Transport: p.transport(isGRPC(r), func(ctx context.Context) (conn net.Conn, err error) {
			guest, err = p.dial(ctx, dial, func() { cancel(ErrIdle) }, body.forsake)
			return guest, err
		}),
		ModifyResponse: func(resp *http.Response) error {
			if Fields(resp.Header) > MaxFields {
				return errFields
			}
			contain(resp, r, &route)
			return nil
		},
		ErrorHandler:  func(_ http.ResponseWriter, _ *http.Request, e error) { err = explain(route.Port, e) },
		ErrorLog:      log.New(io.Discard, "", 0), // a guest could fill the daemon's log
		FlushInterval: -1,
		BufferPool:    p,
	}
	proxy.ServeHTTP(out, in)
	return out.begun, err
}

// errFlood ends an answer that only announces itself.
var errFlood = errors.New("the server sends interim answers without end")

// explain tells the errors of connecting from those of a server that does not speak HTTP.
func explain(port uint16, err error) error {
	var refused *agentclient.Error
	var dial *dialError
	switch {
	case errors.As(err, &dial):
		return dial.error
	case errors.As(err, &refused), errors.Is(err, context.Canceled):
		return err
	}
	return &AnswerError{Port: port, Err: err}
}

// dialError marks an error of connecting.
type dialError struct{ error }

func isGRPC(r *http.Request) bool {
	return r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}

// transport is for one request: no connection of a guest may be there when it is forked. gRPC is
// HTTP/2 without TLS; nothing else is: servers that know HTTP/2 know HTTP/1.1 too, but not the
// other way round.
func (p *Proxy) transport(grpc bool, dial func(context.Context) (net.Conn, error)) *http.Transport {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := dial(ctx)
			if err != nil {
				return nil, &dialError{err}
			}
			return conn, nil
		},
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeaders,
	}
	if grpc {
		t.Protocols = new(http.Protocols)
		t.Protocols.SetUnencryptedHTTP2(true)
		t.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: maxWindow, MaxReceiveBufferPerConnection: maxWindow}
	}
	return t
}

// drainTime is how long a client may go on to send what nobody wants any more. It gets the answer
// for certain if it stops meanwhile.
const drainTime = time.Second

// requestBody knows whether it has been read to its end.
type requestBody struct {
	io.ReadCloser
	none    bool
	ended   atomic.Bool
	reading sync.Mutex // held by a read

	mu   sync.Mutex
	rc   *http.ResponseController
	left bool // the request is over, and rc of no use any more
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	if b.isLeft() {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.ended.Store(true)
	}
	return n, err
}

func (b *requestBody) remains() bool { return !b.none && !b.ended.Load() }

func (b *requestBody) isLeft() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left
}

// forsake ends the reading of what is left: the transport waits for that, whatever has become of
// the guest.
func (b *requestBody) forsake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.left && b.remains() {
		_ = b.rc.SetReadDeadline(time.Now())
	}
}

// leave ends the request, and reports whether the client has not sent it all. Then the server reads
// on for a while. It must not find the transport reading: it would take the deadline away with
// that.
func (b *requestBody) leave() (remains bool) {
	b.forsake()
	b.mu.Lock()
	b.left = true
	b.mu.Unlock()
	b.reading.Lock()
	defer b.reading.Unlock()
	if remains = b.remains(); remains {
		_ = b.rc.SetReadDeadline(time.Now().Add(drainTime))
	}
	return remains
}

// answer is the way to the client. It passes on no interim answers: their headers would go past
// contain.
type answer struct {
	http.ResponseWriter
	rc      *http.ResponseController
	body    *requestBody
	http1   bool
	stall   time.Duration
	begun   bool
	informs int

	flood    func()
	hijacked func(*clientConn) // the client's connection is carried as it is from here on
}

// last makes the answer the last one on its connection, if it has not begun. Where both directions
// are open at once, the server takes what is left of a body for the next request: that of another
// client, if a proxy stands between.
func (a *answer) last() {
	if a.http1 && !a.begun {
		a.Header().Set("Connection", "close")
	}
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if status < http.StatusOK {
		if a.informs++; a.informs > maxInforms {
			a.flood()
		}
		return
	}
	if a.body.remains() {
		a.last()
	}
	a.begun = true
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter. A deadline that is left behind would end a stream of HTTP/2
// that is only idle.
func (a *answer) Write(p []byte) (int, error) {
	a.begun = true
	_ = a.rc.SetWriteDeadline(time.Now().Add(a.stall)) // a connection without deadlines is a test's
	defer a.rc.SetWriteDeadline(time.Time{})
	return a.ResponseWriter.Write(p)
}

// FlushError is for http.ResponseController.
func (a *answer) FlushError() error {
	_ = a.rc.SetWriteDeadline(time.Now().Add(a.stall))
	defer a.rc.SetWriteDeadline(time.Time{})
	return a.rc.Flush()
}

// Hijack implements http.Hijacker, for upgrades.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, err := hijack(a.ResponseWriter, a.stall)
	if err != nil {
		return nil, nil, err
	}
	a.begun = true
	a.hijacked(conn)
	return conn, bufio.NewReadWriter(bufio.NewReaderSize(conn, 16), bufio.NewWriterSize(conn, 4<<10)), nil
}
