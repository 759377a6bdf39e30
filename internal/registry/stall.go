package registry

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// minProgress is the default of Impatient.Least.
const minProgress = 64 << 10

// ErrStalled means that a registry made no progress, so its request was canceled.
var ErrStalled = errors.New("it sends or takes too little data")

// Impatient is a transport that cancels requests which make no progress.
type Impatient struct {
	Base  http.RoundTripper
	Stall time.Duration // maximum time to transfer Least bytes, and to wait for an answer
	Least int64         // bytes; 0: minProgress
	Err   error         // error of requests that were canceled; nil: ErrStalled
}

// RoundTrip implements http.RoundTripper. It fails with t.Err if the request was canceled, and reads of
// the answer's body fail with it too.
func (t Impatient) RoundTrip(r *http.Request) (*http.Response, error) {
	p := newPulse(r.Context(), t)
	out := r.Clone(p.ctx)
	if r.Body != nil && r.Body != http.NoBody {
		out.Body = &sending{r.Body, p}
	}
	resp, err := t.Base.RoundTrip(out)
	if err != nil {
		err = p.cause(err)
		p.stop()
		return nil, err
	}
	resp.Request, resp.Body = r, &receiving{resp.Body, p}
	return resp, nil
}

// pulse cancels a request that makes no progress. The bodies of the request and of its answer may
// be read concurrently.
type pulse struct {
	every  time.Duration
	least  int64
	why    error // see Impatient.Err
	ctx    context.Context
	cancel context.CancelCauseFunc
	bytes  atomic.Int64 // number of bytes since the timer was set

	mu sync.Mutex
	// +checklocks:mu
	timer *time.Timer
	// +checklocks:mu
	until time.Time // when the timer fires
}

func newPulse(ctx context.Context, t Impatient) *pulse {
	p := &pulse{every: t.Stall, least: cmp.Or(t.Least, minProgress), why: cmp.Or(t.Err, ErrStalled)}
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer, p.until = time.AfterFunc(p.every, func() { p.cancel(p.why) }), time.Now().Add(p.every)
	return p
}

// reset sets the timer.
func (p *pulse) reset(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer.Reset(d)
	p.until = time.Now().Add(d)
}

// pause stops the timer, and returns the time that was left.
func (p *pulse) pause() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer.Stop()
	return time.Until(p.until)
}

func (p *pulse) add(n int, err error) {
	if p.bytes.Add(int64(n)) >= p.least || errors.Is(err, io.EOF) { // at io.EOF, the wait for an answer begins
		p.bytes.Store(0)
		p.reset(p.every)
	}
}

// cause returns p.why if the request was canceled because it stalled, and otherwise err.
func (p *pulse) cause(err error) error {
	if err != nil && errors.Is(context.Cause(p.ctx), p.why) {
		return p.why
	}
	return err
}

func (p *pulse) stop() {
	p.pause()
	p.cancel(nil)
}

// sending is the body of a request. The time in which the content is read does not count against
// the registry, because the content may come from another registry.
type sending struct {
	io.ReadCloser
	*pulse
}

func (s *sending) Read(b []byte) (int, error) {
	left := s.pause()
	n, err := s.ReadCloser.Read(b)
	s.reset(left)
	s.add(n, err)
	return n, err
}

// receiving is the body of an answer.
type receiving struct {
	io.ReadCloser
	*pulse
}

func (r *receiving) Read(b []byte) (int, error) {
	n, err := r.ReadCloser.Read(b)
	r.add(n, nil)
	return n, r.cause(err)
}

func (r *receiving) Close() error {
	defer r.stop()
	return r.ReadCloser.Close()
}
