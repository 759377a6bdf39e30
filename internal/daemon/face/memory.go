package face

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/owner"
)

// Memory bounds the bytes of bodies and answers that all current requests hold together. Each body
// and answer has a limit of its own. But at the maximum number of requests, the sum of these limits
// would far exceed a host's memory. One client cannot hold all of these bytes, so no client can
// lock other clients out.
type Memory struct {
	total int
	bytes *gate.Gate // one place per byte
}

func newMemory(total int) *Memory { return &Memory{total, gate.New(total)} }

// smallShare is the number of bytes that every request may hold without being counted. So small
// requests are served even while large requests use up the memory. The gates bound the number of
// requests.
const smallShare = 64 << 10

// These constants are the approximate numbers of copies of each byte in memory. A body is held raw
// and decoded. An answer is held in a growing buffer, as text, and as JSON.
const (
	copiesOfBody   = 2
	copiesOfAnswer = 4
)

// valueSize is the approximate size of a decoded value, in bytes. Three bytes of a list in JSON may
// become an object with many fields. The number of values is estimated by counting commas.
const valueSize = 64

// ErrNoMemory refuses a request that would exceed the bound of Memory.
var ErrNoMemory = NewError(http.StatusServiceUnavailable,
	"current requests hold all the memory for bodies and answers, or this client holds its share: "+
		"try again, or take output as a stream")

// Share counts the bytes that one request holds. A nil Share counts nothing. Its methods may be
// called concurrently, because a guest answers on several streams.
type Share struct {
	mu    sync.Mutex
	held  *gate.Hold // bytes beyond smallShare
	taken int        // bytes that the request holds
}

type shareKey struct{}

// Sharing returns the request with a Share in its context. The returned function releases the
// share.
func (m *Memory) Sharing(r *http.Request) (with *http.Request, done func()) {
	s := &Share{held: m.bytes.Hold(owner.FairShare(auth.From(r.Context()).Who, m.total))}
	return r.WithContext(context.WithValue(r.Context(), shareKey{}, s)), s.release
}

// ShareOf returns the share of a request; nil if the request was not served by a face.
func ShareOf(r *http.Request) *Share {
	s, _ := r.Context().Value(shareKey{}).(*Share)
	return s
}

// Take counts n more bytes against the share, or returns ErrNoMemory.
func (s *Share) Take(n int) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	counted := max(0, s.taken-smallShare)
	if s.held.Add(max(0, s.taken+n-smallShare)-counted) != nil {
		return ErrNoMemory
	}
	s.taken += n
	return nil
}

func (s *Share) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held.Leave()
	s.taken = 0
}

// Keep is like Take for n bytes of a guest's answer, but also counts the copies of these bytes.
func (s *Share) Keep(n int) error { return s.Take(copiesOfAnswer * n) }

// Body returns a reader for a client's body. The reader counts all bytes against the share.
func (s *Share) Body(r io.Reader) io.Reader { return countedBody{r, s} }

type countedBody struct {
	from  io.Reader
	share *Share
}

// Read implements io.Reader.
func (c countedBody) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	if short := c.share.Take(copiesOfBody*n + valueSize*bytes.Count(p[:n], []byte{','})); short != nil {
		return 0, short
	}
	return n, err
}
