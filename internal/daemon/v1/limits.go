package v1

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/forkd/forkd/internal/daemon/face"
)

// errStalled ends a transfer without progress.
var errStalled = face.NewError(http.StatusGatewayTimeout, "the transfer was aborted: no byte was moved for too long")

// transfer is a copy between a client and a guest. Either may stop reading or writing. The context
// ends when no byte has moved within the limit.
type transfer struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	limit  time.Duration
	rc     *http.ResponseController
	header http.Header // of the answer
}

func newTransfer(ctx context.Context, w http.ResponseWriter, limit time.Duration) *transfer {
	t := &transfer{limit: limit, header: w.Header(), rc: http.NewResponseController(w)}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	t.timer = time.AfterFunc(limit, func() { t.cancel(errStalled) })
	return t
}

// end stops the watch and returns why the copy ended.
func (t *transfer) end(err error) error {
	t.timer.Stop()
	if cause := context.Cause(t.ctx); err != nil && errors.Is(cause, errStalled) {
		err = cause
		// The server would wait for the rest of the body before it answers, and then not reuse the
		// connection.
		t.header.Set("Connection", "close")
		_ = t.rc.SetReadDeadline(time.Now())
	}
	t.cancel(nil)
	return err
}

// moved records progress.
func (t *transfer) moved() { t.timer.Reset(t.limit) }

// fromClient is the body of a request. If the client sends nothing within the limit, reading fails.
type fromClient struct {
	*transfer
	body io.Reader
}

func (f fromClient) Read(p []byte) (int, error) {
	_ = f.rc.SetReadDeadline(time.Now().Add(f.limit)) // fails only in tests, whose connections have no deadlines
	n, err := f.body.Read(p)
	_ = f.rc.SetReadDeadline(time.Time{}) // after the last byte the server watches whether the connection closes
	f.moved()
	return n, err
}

// toClient is the answer to a request. If the client receives nothing within the limit, writing
// fails.
type toClient struct {
	*transfer
	w io.Writer
}

func (c toClient) Write(p []byte) (int, error) {
	_ = c.rc.SetWriteDeadline(time.Now().Add(c.limit))
	n, err := c.w.Write(p)
	c.moved()
	return n, err
}
