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

// Memory bounds how many bytes of clients' bodies and guests' answers all requests under way hold.
// Each body and answer has a limit of its own; together, as many as there may be at once, they would
// still be far more than a host has. No client may hold all of it, so none keeps the others out.
type Memory struct {
	total int
	bytes *gate.Gate // a place is a byte
}

func newMemory(total int) *Memory { return &Memory{total, gate.New(total)} }

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

// ErrNoMemory refuses what would be too much.
var ErrNoMemory = NewError(http.StatusServiceUnavailable,
	"requests under way hold all the memory that there is for bodies and answers, or this client holds its part: "+
		"try again, or take output as a stream")

// Share is what one request holds. A nil Share is not counted. Its methods may be called concurrently:
// guests answer on several streams.
type Share struct {
	mu    sync.Mutex
	held  *gate.Hold // what is not small of it
	taken int        // bytes
}

type shareKey struct{}

// Sharing gives a request its share, until done is called.
func (m *Memory) Sharing(r *http.Request) (with *http.Request, done func()) {
	s := &Share{held: m.bytes.Hold(owner.FairShare(auth.From(r.Context()).Who, m.total))}
	return r.WithContext(context.WithValue(r.Context(), shareKey{}, s)), s.release
}

// ShareOf returns the share of a request; nil of one that passes no route of a face.
func ShareOf(r *http.Request) *Share {
	s, _ := r.Context().Value(shareKey{}).(*Share)
	return s
}

// Take lets a request hold n more bytes, or returns ErrNoMemory.
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

// Keep is Take for what a guest answers.
func (s *Share) Keep(n int) error { return s.Take(copiesOfAnswer * n) }

// Body is what a client sends, counted as it comes.
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
