package v1

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"

	"github.com/forkd/forkd/internal/daemon/face"
)

// maxMessage bounds a message of the Model Context Protocol, in bytes.
const maxMessage = 4 << 20

// toolAnswer is the approximate memory, in bytes, for the answer of a tool. Tools bound their
// answers, and an answer waits in memory for the client.
const toolAnswer = 6 << 20

// tools answers a message of the Model Context Protocol. Its client and origin are checked as for
// every route. Calls of its tools are checked again, because each is a request of its own.
func (a *api) tools(w http.ResponseWriter, r *http.Request) error {
	if a.mcp == nil {
		return face.NewError(http.StatusNotFound, "this daemon has no tools for models")
	}
	body, err := face.ReadBody(w, r, maxMessage)
	if err != nil {
		return err
	}
	// Batches, as in version 2025-03-26, are refused, because many calls would take one place.
	if bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("[")) {
		return face.BadRequest("the message: it is an array: send one message at a time")
	}
	if err := face.ShareOf(r).Take(toolAnswer); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(a.Face.Stopping, cancel)()
	with := r.WithContext(ctx)
	with.Body = io.NopCloser(bytes.NewReader(body))
	a.mcp.ServeHTTP(&pacedWriter{w, http.NewResponseController(w), a.Face.Limits.Stall}, with)
	return nil
}

// pacedWriter gives each part of a stream its own time to be received.
type pacedWriter struct {
	http.ResponseWriter
	rc    *http.ResponseController
	limit time.Duration
}

// Write implements http.ResponseWriter.
func (p *pacedWriter) Write(b []byte) (int, error) {
	_ = p.rc.SetWriteDeadline(time.Now().Add(p.limit)) // fails only in tests, whose connections have no deadlines
	return p.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (p *pacedWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }
