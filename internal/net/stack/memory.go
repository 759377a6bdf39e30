package stack

import (
	"sync"
	"sync/atomic"
)

// room bounds the bytes that waiting flows hold. The room of a sandbox also counts its bytes in the
// room of all sandboxes.
type room struct {
	most int64
	of   *room // room of all sandboxes; nil in that room itself
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
	room  *room // room that counts the chunk; nil if none does
}

// chunks provides the chunks for reading: one for each direction of a flow in which bytes move, and
// one for each frame socket that is being read. A direction keeps its chunk while its receiver
// accepts nothing, so the chunks of relays are counted. If their room is full, small chunks are
// used instead.
type chunks struct{ large, small sync.Pool }

// take returns a chunk of chunkBytes, or one of smallChunk if room in is full. in may be nil for a
// chunk that is not kept during a wait; such chunks are not bounded.
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
