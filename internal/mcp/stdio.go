package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/forkd/forkd/client"
)

// drainTime bounds the time for answering requests after the end of the input. A client that pipes
// its requests into the server expects an answer to each request.
const drainTime = 10 * time.Second

// A request with listenMethod is answered only when the client ends its subscription. A
// notification with cancelMethod cancels a request. The request may then get no answer.
const (
	listenMethod = "subscriptions/listen"
	cancelMethod = "notifications/cancelled"
)

// ServeStdio serves one client, with one JSON message per line. It serves until its input or ctx
// ends.
func (c *Catalog) ServeStdio(
	ctx context.Context,
	cl *client.Client,
	scope Scope,
	in io.ReadCloser,
	out io.WriteCloser,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return c.Server(ctx, cl, scope).
		Run(ctx, draining{&sdk.IOTransport{Reader: in, Writer: out, MaxLineLength: MaxMessage}})
}

// draining is a transport whose input seems to end only after all requests have been answered.
type draining struct{ sdk.Transport }

// Connect implements sdk.Transport.
func (d draining) Connect(ctx context.Context) (sdk.Connection, error) {
	conn, err := d.Transport.Connect(ctx)
	return &drainingConn{Connection: conn, open: map[jsonrpc.ID]bool{}, none: make(chan struct{})}, err
}

type drainingConn struct {
	sdk.Connection

	mu    sync.Mutex
	open  map[jsonrpc.ID]bool // requests without an answer
	ended bool                // whether the input has ended
	none  chan struct{}       // closed when the input has ended and all requests have been answered
}

// Read implements sdk.Connection.
func (d *drainingConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := d.Connection.Read(ctx)
	if r, ok := m.(*jsonrpc.Request); ok {
		d.mu.Lock()
		switch {
		case r.Method == cancelMethod:
			delete(d.open, cancelled(r))
		case r.ID.IsValid() && r.Method != listenMethod:
			d.open[r.ID] = true
		}
		d.mu.Unlock()
	}
	if errors.Is(err, io.EOF) {
		d.drain(ctx)
	}
	return m, err
}

// If r is a notification that cancels a request, the result is the id of that request. If r is a
// message of another type, the result is the zero ID.
func cancelled(r *jsonrpc.Request) jsonrpc.ID {
	var params struct {
		ID any `json:"requestId"`
	}
	if json.Unmarshal(r.Params, &params) != nil {
		return jsonrpc.ID{}
	}
	id, err := jsonrpc.MakeID(params.ID)
	if err != nil {
		return jsonrpc.ID{}
	}
	return id
}

// Write implements sdk.Connection.
func (d *drainingConn) Write(ctx context.Context, m jsonrpc.Message) error {
	err := d.Connection.Write(ctx, m)
	if r, ok := m.(*jsonrpc.Response); ok {
		d.mu.Lock()
		delete(d.open, r.ID)
		d.closeLocked()
		d.mu.Unlock()
	}
	return err
}

// closeLocked closes d.none if the input has ended and all requests have been answered. The caller
// holds the connection's mu.
func (d *drainingConn) closeLocked() {
	if d.ended && len(d.open) == 0 && d.none != nil {
		close(d.none)
		d.none = nil
	}
}

// drain waits until all requests have been answered.
func (d *drainingConn) drain(ctx context.Context) {
	d.mu.Lock()
	none := d.none
	d.ended = true
	d.closeLocked()
	d.mu.Unlock()
	if none == nil {
		return
	}
	select {
	case <-none:
	case <-ctx.Done():
	case <-time.After(drainTime):
	}
}
