package v1

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net/http"
	"time"

	"github.com/forkd/forkd/internal/daemon/face"
)

// maxMessage bounds a message of the Model Context Protocol, in bytes.
const maxMessage = 4 << 20

// toolAnswer is the number of bytes that are taken from the memory share of each message before a
// tool is called. While an answer waits for the client, it is in memory in three forms: as a
// result, as a message, and as an event. The three forms of a usual answer fit into toolAnswer. For
// a longer answer, pacedWriter takes more from the share.
const (
	toolAnswer     = 6 << 20
	copiesOfAnswer = 3
)

// tools answers a message of the Model Context Protocol. The client and the origin of the message
// are checked as for every route. A call of a tool is a request of its own, and is checked again.
func (a *api) tools(w http.ResponseWriter, r *http.Request) error {
	if a.mcp == nil {
		return face.NewError(http.StatusNotFound, "this daemon has no tools for models")
	}
	body, err := face.ReadBody(w, r, maxMessage)
	if err != nil {
		return err
	}
	// Batches (protocol version 2025-03-26) are refused, because the many calls of a batch would
	// take only one place in the gate for requests.
	if bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("[")) {
		return face.BadRequest("the message: it is an array: send one message at a time")
	}
	nested, err := checkValues(body)
	if err != nil {
		return err
	}
	if err := face.ShareOf(r).Take(toolAnswer + nested*nestedSize); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(a.Face.Stopping, cancel)()
	with := r.WithContext(ctx)
	with.Body = io.NopCloser(bytes.NewReader(body))
	answer := &pacedWriter{ResponseWriter: w, rc: http.NewResponseController(w), limit: a.Face.Limits.Stall,
		share: face.ShareOf(r), taken: toolAnswer}
	a.mcp.ServeHTTP(answer, with)
	return answer.end()
}

// Bounds on the values of a message. The protocol's decoder reads a value once for each level of
// nesting around it. The decoder allocates several hundred bytes for an array or object, even if
// its text has only two bytes and no comma.
const (
	maxNesting = 32
	maxNested  = 10_000  // arrays and objects
	maxCommas  = 100_000 // commas between values
	nestedSize = 400     // bytes of an array or object in memory, approximately
)

// checkValues counts the arrays and objects of a message before it is decoded. It refuses a message
// whose values are too many or nested too deeply. It accepts invalid JSON, because the decoder
// refuses it later.
func checkValues(message []byte) (nested int, err error) {
	depth, commas, quoted := 0, 0, false
	for i := 0; i < len(message); i++ {
		c := message[i]
		if quoted {
			switch c {
			case '\\':
				i++ // the next byte does not end the string
			case '"':
				quoted = false
			}
			continue
		}
		switch c {
		case '"':
			quoted = true
		case '[', '{':
			nested++
			depth++
		case ']', '}':
			depth--
		case ',':
			commas++
		}
		switch {
		case depth > maxNesting:
			return 0, face.BadRequest("the message: arrays and objects are nested more than %d deep", maxNesting)
		case nested > maxNested:
			return 0, face.BadRequest("the message: it has more than %d arrays and objects", maxNested)
		case commas > maxCommas:
			return 0, face.BadRequest("the message: it has more than %d values", maxCommas)
		}
	}
	return nested, nil
}

// pacedWriter gives each part of a stream its own time to be received, and counts the largest part
// against the memory share of the message that it answers. It sends the header only with the first
// part. So if there is no memory for the answer, the client gets an error instead.
type pacedWriter struct {
	http.ResponseWriter
	rc    *http.ResponseController
	limit time.Duration
	share *face.Share
	taken int // bytes taken from the share

	status int // 0: not set by the handler
	begun  bool
	short  error // error if the share is used up
}

// WriteHeader implements http.ResponseWriter.
func (p *pacedWriter) WriteHeader(status int) {
	if p.status == 0 {
		p.status = status
	}
}

// begin sends the header.
func (p *pacedWriter) begin() {
	if !p.begun {
		p.begun = true
		p.ResponseWriter.WriteHeader(cmp.Or(p.status, http.StatusOK))
	}
}

// Write implements http.ResponseWriter.
func (p *pacedWriter) Write(b []byte) (int, error) {
	if more := copiesOfAnswer*len(b) - p.taken; more > 0 && p.short == nil {
		p.short = p.share.Take(more)
		p.taken += more
	}
	if p.short != nil {
		return 0, p.short
	}
	p.begin()
	_ = p.rc.SetWriteDeadline(time.Now().Add(p.limit)) // fails only in tests, whose writers have no deadlines
	return p.ResponseWriter.Write(b)
}

// FlushError is called by http.ResponseController.
func (p *pacedWriter) FlushError() error {
	if p.short != nil {
		return p.short
	}
	p.begin()
	return p.rc.Flush()
}

// Flush implements http.Flusher.
func (p *pacedWriter) Flush() { _ = p.FlushError() } // Flush cannot return the error

// end ends the answer. If nothing was sent, it returns the error for the client.
func (p *pacedWriter) end() error {
	switch {
	case p.short == nil:
		p.begin()
		return nil
	case p.begun:
		panic(http.ErrAbortHandler) // abort, so that the client does not mistake a part for the whole answer
	}
	return p.short
}

// Unwrap lets http.ResponseController reach the connection.
func (p *pacedWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }
