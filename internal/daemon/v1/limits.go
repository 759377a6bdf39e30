package v1

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/forkd/forkd/internal/daemon/face"
)

// errStalled ends a transfer that stands still.
var errStalled = face.NewError(http.StatusGatewayTimeout, "the transfer was given up: nothing was moved for too long")

// transfer is a copy between a client and a guest, of which either may stop reading or writing. Its
// context ends when nothing has moved for the limit.
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

// end stops the watch and says why the copy ended.
func (t *transfer) end(err error) error {
	t.timer.Stop()
	if cause := context.Cause(t.ctx); err != nil && errors.Is(cause, errStalled) {
		err = cause
		// Before it answers, the server would wait for the rest of the body; the connection is of
		// no use afterwards.
		t.header.Set("Connection", "close")
		_ = t.rc.SetReadDeadline(time.Now())
	}
	t.cancel(nil)
	return err
}

// moved notes progress.
func (t *transfer) moved() { t.timer.Reset(t.limit) }

// fromClient is the body of a request: a client that sends nothing for the limit has its connection
// fail.
type fromClient struct {
	*transfer
	body io.Reader
}

func (f fromClient) Read(p []byte) (int, error) {
	_ = f.rc.SetReadDeadline(time.Now().Add(f.limit)) // a connection without deadlines is a test's
	n, err := f.body.Read(p)
	_ = f.rc.SetReadDeadline(time.Time{}) // after the last byte the server watches the connection for its end
	f.moved()
	return n, err
}

// toClient is the answer to a request: a client that takes nothing for the limit has its connection
// fail.
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
