package v1

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// memory bounds how many bytes of clients' bodies and guests' answers all requests under way hold.
// Each body and answer has a limit of its own; together, as many as there may be at once, they would
// still be far more than a host has. No client may hold all of it, so none keeps the others out.
type memory struct {
	total int

	mu   sync.Mutex
	held int
	by   map[string]int // held, by client
}

func newMemory(total int) *memory { return &memory{total: total, by: make(map[string]int)} }

// smallShare is what every request may hold besides, so that small ones are served whatever large
// ones do. The gates bound how many there are.
const smallShare = 64 << 10

// How often a byte is held, roughly: of a body as it came and decoded; of an answer in a buffer
// that grows, as text, and in JSON.
const (
	copiesOfBody   = 2
	copiesOfAnswer = 4
)

// valueSize is what a value of a body takes when it is decoded, in bytes, roughly: an element of a list
// may have three, and become an object of many fields. Values are counted by the commas between them.
const valueSize = 64

var errNoMemory = &requestError{http.StatusServiceUnavailable,
	"requests under way hold all the memory that there is for bodies and answers, or this client holds its part: " +
		"try again, or take output as a stream"}

// share is what one request holds. A nil share is not counted.
type share struct {
	of     *memory
	client string
	most   int // bytes that all requests of the client may hold; 0: as many as there are
	taken  int
}

type shareKey struct{}

// sharing gives a request its share, until done is called.
func (m *memory) sharing(r *http.Request) (with *http.Request, done func()) {
	part := sandbox.FairShare(auth.From(r.Context()).Who, m.total)
	s := &share{of: m, client: part.Key, most: part.Most}
	return r.WithContext(context.WithValue(r.Context(), shareKey{}, s)), s.release
}

// shared lets a handler be called with a share, which it has until it returns.
func (m *memory) shared(h handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		with, done := m.sharing(r)
		defer done()
		return h(w, with)
	}
}

// shareOf returns the share of a request; nil of one that passes no route of this API.
func shareOf(r *http.Request) *share {
	s, _ := r.Context().Value(shareKey{}).(*share)
	return s
}

// counted is the part of what was taken that is not small.
func (s *share) counted() int { return max(0, s.taken-smallShare) }

// take lets a request hold n more bytes, or returns errNoMemory.
func (s *share) take(n int) error {
	if s == nil {
		return nil
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	before := s.counted()
	s.taken += n
	grown := s.counted() - before
	if s.of.held+grown > s.of.total || s.most > 0 && s.of.by[s.client]+grown > s.most {
		s.taken -= n
		return errNoMemory
	}
	s.holdLocked(grown)
	return nil
}

func (s *share) release() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.holdLocked(-s.counted())
	s.taken = 0
}

// holdLocked counts n more bytes, or fewer. The caller holds the memory's mu.
func (s *share) holdLocked(n int) {
	s.of.held += n
	if s.of.by[s.client] += n; s.of.by[s.client] == 0 {
		delete(s.of.by, s.client)
	}
}

// keep is take for what a guest answers.
func (s *share) keep(n int) error { return s.take(copiesOfAnswer * n) }

// body is what a client sends, counted as it comes.
func (s *share) body(r io.Reader) io.Reader { return countedBody{r, s} }

type countedBody struct {
	from  io.Reader
	share *share
}

func (c countedBody) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	if short := c.share.take(copiesOfBody*n + valueSize*bytes.Count(p[:n], []byte{','})); short != nil {
		return 0, short
	}
	return n, err
}
