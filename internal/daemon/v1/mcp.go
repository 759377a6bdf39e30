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

// toolAnswer is how many bytes the answer of a tool takes of its client's memory, roughly: tools bound what
// they answer, and it waits for the client.
const toolAnswer = 6 << 20

// tools answers a message of the Model Context Protocol. Who sends it, and from where, is checked
// as for every route; what its tools call is checked again, for each call is a request of its own.
func (a *api) tools(w http.ResponseWriter, r *http.Request) error {
	if a.mcp == nil {
		return face.NewError(http.StatusNotFound, "this daemon has no tools for models")
	}
	body, err := face.ReadBody(w, r, maxMessage)
	if err != nil {
		return err
	}
	// as of 2025-03-26: any number of calls, for one place
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

// pacedWriter gives each part of a stream its own time in which the client has to take it.
type pacedWriter struct {
	http.ResponseWriter
	rc    *http.ResponseController
	limit time.Duration
}

// Write implements http.ResponseWriter.
func (p *pacedWriter) Write(b []byte) (int, error) {
	_ = p.rc.SetWriteDeadline(time.Now().Add(p.limit)) // a connection without deadlines is a test's
	return p.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (p *pacedWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }
