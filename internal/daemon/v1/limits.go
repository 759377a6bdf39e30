package v1

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// Limits bound what clients and guests can hold of the daemon. A zero field is its default. Of calls,
// streams and followers one client has three quarters at most.
type Limits struct {
	Calls      int           // calls to guests at once, and likewise operations on sandboxes and snapshots; 512
	PerSandbox int           // of the calls to guests, those to one; 128
	Memory     int           // bytes of bodies and answers that all requests at once may hold, but for small ones; 512 MiB
	Lists      int           // answers at once with all that there is of a kind, half of them for one client; 64
	Stall      time.Duration // how long a request's body or a file may stand still; 2 minutes

	// Streams to ports of guests at once, and of these, those to one guest; and the same of those
	// that come by signed URLs, so that strangers keep nobody else out. An agent carries
	// agentproto.MaxDialed of both kinds.
	Streams, StreamsPerSandbox int           // 512, 64
	Signed, SignedPerSandbox   int           // 256, 48
	Idle                       time.Duration // how long such a stream may stand still; an hour

	// Requests by signed URLs to one sandbox: a second, and at once after a while without any.
	SignedPerSecond float64 // 100
	SignedBurst     int     // 1000: a page of a development server loads hundreds of files

	Followers int           // streams of events at once, and likewise answers from consoles, half of these from one; 128
	Keepalive time.Duration // how often the former say something where nothing happens; 15 seconds
}

func (l Limits) withDefaults() Limits {
	for _, d := range []struct {
		field *int
		def   int
	}{
		{&l.Calls, 512}, {&l.PerSandbox, 128}, {&l.Lists, 64}, {&l.Memory, 512 << 20}, {&l.Streams, 512},
		{&l.StreamsPerSandbox, 64},
		{&l.Signed, 256}, {&l.SignedPerSandbox, 48}, {&l.SignedBurst, 1000}, {&l.Followers, 128},
	} {
		if *d.field == 0 {
			*d.field = d.def
		}
	}
	if l.SignedPerSecond == 0 {
		l.SignedPerSecond = 100
	}
	if l.Stall == 0 {
		l.Stall = 2 * time.Minute
	}
	if l.Idle == 0 {
		l.Idle = time.Hour
	}
	if l.Keepalive == 0 {
		l.Keepalive = 15 * time.Second
	}
	return l
}

// places are for the requests of one kind that are served at once. More are turned away instead of
// queued. A guest or a client can make some requests last: those that end sandboxes take no place,
// and can always be made. Lists can be large, and wait in memory for who asked: they have places of
// their own. No client has all places, so none keeps the others out.
type places struct {
	*gate.Gate
	total, perSandbox int
}

func newPlaces(total, perSandbox int) *places { return &places{gate.New(total), total, perSandbox} }

var errTooMany = &requestError{http.StatusServiceUnavailable, "too many requests at once; try again"}

// enter takes a place for a request of a client that concerns a sandbox, or none. A client without
// a name is not bounded by itself.
func (p *places) enter(client, id string) (leave func(), err error) {
	shares := []gate.Share{sandbox.FairShare(client, p.total)}
	if id != "" {
		shares = append(shares, gate.Share{Key: "sandbox " + id, Most: p.perSandbox})
	}
	if leave, err = p.Enter(shares...); err != nil {
		return nil, errTooMany
	}
	return leave, nil
}

// through lets a handler be called when there is a place for it.
func (p *places) through(h handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		leave, err := p.enter(auth.From(r.Context()).Who, r.PathValue("id"))
		if err != nil {
			return err
		}
		defer leave()
		return h(w, r)
	}
}

// listing lets a handler of a list be called when there is a place for it.
func (a *api) listing(h handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		leave, err := a.lists.Enter(gate.Share{Key: auth.From(r.Context()).Who, Most: max(1, a.Limits.Lists/2)})
		if err != nil {
			return errTooMany
		}
		defer leave()
		return h(w, r)
	}
}

// clientOf names the client of a request to a sandbox: who makes it or, where that is a stranger with
// a signed URL or a token of the sandbox alone, the owner of the sandbox.
func (a *api) clientOf(r *http.Request, id string) string {
	who := auth.From(r.Context()).Who
	if s, err := a.Manager.Get(id); who == "" && err == nil {
		return s.Info().Owner
	}
	return who
}

// errStalled ends a transfer that stands still.
var errStalled = &requestError{http.StatusGatewayTimeout, "the transfer was given up: nothing was moved for too long"}

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
