package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/daemon/metrics"
)

// writeTimeout is how long a client may take to receive a part of an answer.
const writeTimeout = time.Minute

// writer sets a deadline for each write of an answer. So a stream can last as long as its client
// reads it.
type writer struct{ http.ResponseWriter }

// Write implements http.ResponseWriter.
func (w *writer) Write(p []byte) (int, error) {
	// Some writers of tests have no deadlines.
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(writeTimeout))
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// attempt is a request to one node.
type attempt struct {
	node *node
	// refused decides whether the node's answer is kept in the field answer instead of being sent
	// to the client; nil: it is always sent.
	refused func(*http.Response) bool
	most    int     // maximum size of answer, in bytes
	status  int     // status of the node's answer; 0: there was none
	answer  *answer // set if refused returned true
	err     error   // kept here instead of being sent to the client, if refused is not nil
}

// answer is an answer that is held in memory.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a *answer) send(w http.ResponseWriter) {
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // fails only if the client has left
}

type attemptKey struct{}

func attemptOf(ctx context.Context) *attempt { return ctx.Value(attemptKey{}).(*attempt) }

// transport sends each request to the node of its attempt, and to nothing else.
type transport struct{}

// RoundTrip implements http.RoundTripper.
func (transport) RoundTrip(req *http.Request) (*http.Response, error) {
	return attemptOf(req.Context()).node.transport.RoundTrip(req)
}

// maxHeld is the maximum size, in bytes, of an answer that is held in memory until the router has
// decided what to do with it.
const maxHeld = 1 << 20

// errRefused makes the proxy call its error handler.
var errRefused = errors.New("refused")

// newProxy returns the proxy. It removes hop-by-hop headers in both directions, carries upgraded
// connections, and sends each part of an answer immediately.
func newProxy(m *metrics.Router) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport: transport{}, FlushInterval: -1,
		ErrorLog: log.New(io.Discard, "", 0), // clients and nodes cause its messages
		Rewrite: func(pr *httputil.ProxyRequest) {
			base := attemptOf(pr.In.Context()).node.base
			pr.Out.URL.Scheme, pr.Out.URL.Host = base.Scheme, base.Host
			pr.Out.URL.RawQuery = pr.In.URL.RawQuery // a server in a sandbox may read it in its own way
			pr.SetXForwarded()
			pr.Out.Header.Del(face.RepeatOnlyHeader)
			if pr.In.Context().Value(repeatKey{}) != nil {
				pr.Out.Header.Set(face.RepeatOnlyHeader, "true")
			}
		},
		ModifyResponse: func(resp *http.Response) error {
			a := attemptOf(resp.Request.Context())
			a.status = resp.StatusCode
			m.RequestDone(a.node.Name, fmt.Sprintf("%dxx", a.status/100))
			if a.refused == nil || !a.refused(resp) {
				return nil
			}
			body, err := io.ReadAll(io.LimitReader(resp.Body, int64(a.most)+1))
			if err == nil && len(body) > a.most {
				err = fmt.Errorf("its answer is longer than %d bytes", a.most)
			}
			if err != nil {
				return err
			}
			header := http.Header{}
			for _, name := range []string{"Content-Type", "Retry-After", "Www-Authenticate", "Idempotency-Replayed",
				"Link", "X-Request-Id", apiv1.NodeHeader} {
				if v := resp.Header.Values(name); len(v) > 0 {
					header[name] = v
				}
			}
			a.answer = &answer{resp.StatusCode, header, body}
			return errRefused
		},
		ErrorHandler: func(w http.ResponseWriter, req *http.Request, err error) {
			a := attemptOf(req.Context())
			dial := (*net.OpError)(nil)
			failed := &face.NodeError{Node: a.node.Name, Sent: !errors.As(err, &dial) || dial.Op != "dial", Err: err}
			if !errors.Is(err, errRefused) {
				m.RequestDone(a.node.Name, resultOf(failed))
			}
			switch {
			case errors.Is(err, errRefused):
			case a.refused != nil:
				a.err = failed
			default:
				fail(w, req, failed)
			}
		},
	}
}

// resultOf returns the result of a failed request, for the metrics.
func resultOf(failed *face.NodeError) string {
	switch {
	case errors.Is(failed.Err, context.Canceled):
		return "client_left"
	case failed.Sent:
		return "failed"
	}
	return "unreachable"
}

type repeatKey struct{}

// send passes a request on to a node, and its answer to the client.
func (r *Router) send(w http.ResponseWriter, req *http.Request, n *node) {
	r.try(w, req, &attempt{node: n})
}

func (r *Router) try(w http.ResponseWriter, req *http.Request, a *attempt) {
	r.proxy.ServeHTTP(w, req.WithContext(context.WithValue(req.Context(), attemptKey{}, a)))
}

// codeOf returns the code of a problem, or an empty string.
func codeOf(body []byte) string {
	var p apiv1.Error
	if json.Unmarshal(body, &p) != nil {
		return ""
	}
	return p.Code
}

// noWriter is the ResponseWriter of an attempt whose answer is held.
type noWriter http.Header

// Header implements http.ResponseWriter.
func (w noWriter) Header() http.Header { return http.Header(w) }

// WriteHeader implements http.ResponseWriter.
func (noWriter) WriteHeader(int) {}

// Write implements http.ResponseWriter.
func (noWriter) Write(p []byte) (int, error) { return len(p), nil }

// hold sends a request to a node, and returns its whole answer. The error is a *face.NodeError.
func (r *Router) hold(ctx context.Context, req *http.Request, n *node, most int) (*answer, error) {
	// An upgraded connection has no end. The proxy makes it an error, because noWriter cannot carry it.
	a := &attempt{node: n, most: most,
		refused: func(resp *http.Response) bool { return resp.StatusCode != http.StatusSwitchingProtocols }}
	req = req.Clone(ctx)
	req.Header.Del("Accept-Encoding")
	r.try(noWriter{}, req, a)
	return a.answer, a.err
}
