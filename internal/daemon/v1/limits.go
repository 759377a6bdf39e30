package v1

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/forkd/forkd/internal/daemon/face"
)

// errStalled is the error of a transfer that was aborted because it made no progress.
var errStalled = face.NewError(http.StatusGatewayTimeout, "the transfer was aborted: no byte was moved for too long")

// transfer is a copy between a client and a guest. The client, or the guest, may stop sending or
// receiving. The context of the transfer ends when no byte has been copied for the time limit.
type transfer struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	limit  time.Duration
	rc     *http.ResponseController
	header http.Header // headers of the answer
}

func newTransfer(ctx context.Context, w http.ResponseWriter, limit time.Duration) *transfer {
	t := &transfer{limit: limit, header: w.Header(), rc: http.NewResponseController(w)}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	t.timer = time.AfterFunc(limit, func() { t.cancel(errStalled) })
	return t
}

// end stops the timer and returns the reason why the copy ended.
func (t *transfer) end(err error) error {
	t.timer.Stop()
	if cause := context.Cause(t.ctx); err != nil && errors.Is(cause, errStalled) {
		err = cause
		// Without this header, the server would read the rest of the body before it answers. It
		// would close the connection afterwards anyway.
		t.header.Set("Connection", "close")
		_ = t.rc.SetReadDeadline(time.Now())
	}
	t.cancel(nil)
	return err
}

// moved records progress.
func (t *transfer) moved() { t.timer.Reset(t.limit) }

// fromClient is the body of a request. Reading fails if the client sends nothing for the time
// limit.
type fromClient struct {
	*transfer
	body io.Reader
}

func (f fromClient) Read(p []byte) (int, error) {
	_ = f.rc.SetReadDeadline(time.Now().Add(f.limit)) // connections of some tests have no deadlines
	n, err := f.body.Read(p)
	// After the last byte, the server reads in the background to notice when the client
	// disconnects.
	_ = f.rc.SetReadDeadline(time.Time{})
	f.moved()
	return n, err
}

// toClient is the answer to a request. Writing fails if the client receives nothing for the time
// limit.
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
