package face

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

// errStalled is the error of a transfer that was aborted because it made no progress.
var errStalled = NewError(http.StatusGatewayTimeout, "the transfer was aborted: no byte was moved for too long")

// Transfer is a copy between a client and a guest. The client, or the guest, may stop sending or
// receiving. The context of the transfer ends when no byte has been copied for the time limit.
type Transfer struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	limit  time.Duration
	rc     *http.ResponseController
	header http.Header // headers of the answer
}

// NewTransfer returns a Transfer for the answer w. The caller must call End.
func NewTransfer(ctx context.Context, w http.ResponseWriter, limit time.Duration) *Transfer {
	t := &Transfer{limit: limit, header: w.Header(), rc: http.NewResponseController(w)}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	t.timer = time.AfterFunc(limit, func() { t.cancel(errStalled) })
	return t
}

// Context returns the context of the transfer.
func (t *Transfer) Context() context.Context { return t.ctx }

// End stops the timer and returns the reason why the copy ended.
func (t *Transfer) End(err error) error {
	t.timer.Stop()
	if cause := context.Cause(t.ctx); err != nil && errors.Is(cause, errStalled) {
		err = cause
		// With this header, the server does not read the rest of the body before it answers. After
		// the copy has stalled, the server closes the connection in any case.
		t.header.Set("Connection", "close")
		_ = t.rc.SetReadDeadline(time.Now())
	}
	t.cancel(nil)
	return err
}

// Moved records progress.
func (t *Transfer) Moved() { t.timer.Reset(t.limit) }

// StopReading makes reads of the request's body fail, because the rest of the body is not needed.
func (t *Transfer) StopReading() { _ = t.rc.SetReadDeadline(time.Unix(1, 0)) }

// From returns a reader of the body of a request. Reading fails if the client sends nothing for the
// time limit.
func (t *Transfer) From(body io.Reader) io.Reader { return fromClient{t, body} }

// To returns a writer of the answer w. Writing fails if the client receives nothing for the time
// limit.
func (t *Transfer) To(w io.Writer) io.Writer { return toClient{t, w} }

type fromClient struct {
	*Transfer
	body io.Reader
}

// Read implements io.Reader.
func (f fromClient) Read(p []byte) (int, error) {
	_ = f.rc.SetReadDeadline(time.Now().Add(f.limit)) // connections of some tests have no deadlines
	n, err := f.body.Read(p)
	// After the last byte, the server reads in the background to notice when the client
	// disconnects.
	_ = f.rc.SetReadDeadline(time.Time{})
	f.Moved()
	return n, err
}

type toClient struct {
	*Transfer
	w io.Writer
}

// Write implements io.Writer.
func (c toClient) Write(p []byte) (int, error) {
	_ = c.rc.SetWriteDeadline(time.Now().Add(c.limit))
	n, err := c.w.Write(p)
	c.Moved()
	return n, err
}
