package stack

import (
	"sync"
	"sync/atomic"
)

// room bounds bytes that flows hold while they wait for somebody else: those of one sandbox, which
// are also in the room of all.
type room struct {
	most int64
	of   *room // of all sandboxes; nil: this is that
	used atomic.Int64
}

// take counts n more bytes, if there is room for them.
func (r *room) take(n int64) bool {
	if r.used.Add(n) > r.most {
		r.used.Add(-n)
		return false
	}
	if r.of != nil && !r.of.take(n) {
		r.used.Add(-n)
		return false
	}
	return true
}

func (r *room) give(n int64) {
	r.used.Add(-n)
	if r.of != nil {
		r.of.give(n)
	}
}

// chunk is a buffer that bytes pass through.
type chunk struct {
	bytes []byte
	room  *room // in which it is counted; nil: in none
}

// chunks are at most one chunk for each direction of each flow in which bytes move, and one for each
// frame socket that is being read. A direction keeps its chunk while its receiver takes nothing, so
// those of relays are counted. Where they have no room for another, small chunks do as well.
type chunks struct{ large, small sync.Pool }

// take returns a chunk of chunkBytes, or one of smallChunk if in has no room for that. nil has room
// for all: it is for chunks that nobody keeps while he waits.
func (c *chunks) take(in *room) *chunk {
	pool, size := &c.large, chunkBytes
	if in != nil && !in.take(chunkBytes) {
		pool, size, in = &c.small, smallChunk, nil
	}
	k, ok := pool.Get().(*chunk)
	if !ok {
		k = &chunk{bytes: make([]byte, size)}
	}
	k.room = in
	return k
}

func (c *chunks) give(k *chunk) {
	if k.room != nil {
		k.room.give(chunkBytes)
		k.room = nil
	}
	if len(k.bytes) == chunkBytes {
		c.large.Put(k)
	} else {
		c.small.Put(k)
	}
}
