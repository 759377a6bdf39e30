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
	maxHeaders = 16 << 10 // bytes, as in Node.js clients
	maxInforms = 32       // answers with a status below 200 before the final answer
	maxWindow  = 64 << 10 // bytes that a guest may send on one HTTP/2 stream before they are read
)

// MaxFields bounds the number of headers of a request or an answer. Once it is parsed, a short
// header takes fifty times its size in memory for as long as the request lasts.
const MaxFields = 256

// Fields returns the number of header lines.
func Fields(h http.Header) (n int) {
	for _, values := range h {
		n += len(values)
	}
	return n
}

// errFields ends an answer with too many headers.
var errFields = fmt.Errorf("the server's answer has more than %d headers", MaxFields)

// HTTP carries one request and its answer. If the request is an upgrade, HTTP then carries the
// bytes of the new protocol. If HTTP returns false, nothing has been written, and the caller must
// answer with the error. If HTTP returns true, an error means that the answer was cut off.
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
	_ = rc.EnableFullDuplex() // HTTP/2 always has it
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
	// A connection cannot switch protocols while the body of the request is being read from it.
	if !body.none && in.Header.Get("Upgrade") != "" {
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
			if isGRPC(r) && resp.Header.Get("Grpc-Status") != "" {
				splitTrailers(resp.Header)
			}
			return nil
		},
		ErrorHandler:  func(_ http.ResponseWriter, _ *http.Request, e error) { err = explain(route.Port, e) },
		ErrorLog:      log.New(io.Discard, "", 0), // otherwise a guest could fill the daemon's log
		FlushInterval: -1,
		BufferPool:    p,
	}
	proxy.ServeHTTP(out, in)
	return out.begun, err
}

// errFlood ends an answer that has too many interim answers (status 1xx).
var errFlood = errors.New("the server sends interim answers without end")

// explain returns an error that says whether connecting failed or the server does not speak HTTP.
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

// transport returns a transport for one request. The transport closes its connection after the
// request. So no idle connection is part of the guest's state when the guest is forked. Only gRPC
// uses HTTP/2 without TLS: other servers that support HTTP/2 also support HTTP/1.1.
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

// drainTime is how long the daemon reads a body that is no longer needed. Closing the connection
// earlier could reset it before the client has received the answer.
const drainTime = time.Second

// requestBody is the body of a request, and records whether it was read to its end.
type requestBody struct {
	io.ReadCloser
	none    bool
	ended   atomic.Bool
	reading sync.Mutex // held while Read runs

	mu   sync.Mutex
	rc   *http.ResponseController
	left bool // the handler is about to return, so rc must no longer be used
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

// forsake makes a Read of the remaining body fail immediately. Without this, the transport would
// wait for the client's data even after the guest has closed the connection.
func (b *requestBody) forsake() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.left && b.remains() {
		_ = b.rc.SetReadDeadline(time.Now())
	}
}

// leave is called when the handler is about to return. It reports whether a part of the client's
// body has not arrived. If so, the server reads this part for up to drainTime. leave waits until
// Read has returned, because a later Read would remove the deadline that leave has set.
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

// answer writes the guest's answer to the client. It drops interim answers, because contain does
// not check their headers.
type answer struct {
	http.ResponseWriter
	rc      *http.ResponseController
	body    *requestBody
	http1   bool
	stall   time.Duration
	begun   bool
	informs int

	flood    func()
	hijacked func(*clientConn) // called with the client's connection after an upgrade
}

// last() makes the server close the connection after the answer. If the answer has begun, last()
// has no effect. If the connection stayed open, the server would parse the rest of the body as the
// next request. Behind a reverse proxy, the rest of the body could be mistaken for the request of
// another client.
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

// Write implements http.ResponseWriter. It sets a deadline for the write and clears it afterwards,
// because an expired deadline would end an idle HTTP/2 stream.
func (a *answer) Write(p []byte) (int, error) {
	a.begun = true
	_ = a.rc.SetWriteDeadline(time.Now().Add(a.stall)) // connections of some tests have no deadlines
	defer a.rc.SetWriteDeadline(time.Time{})
	return a.ResponseWriter.Write(p)
}

// FlushError is called by http.ResponseController.
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
