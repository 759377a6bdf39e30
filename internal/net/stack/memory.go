package stack

import (
	"sync"
	"sync/atomic"
)

// room bounds the number of bytes that flows keep in memory. Bytes in the room of a sandbox are
// also counted in the room of all sandboxes.
type room struct {
	most int64
	of   *room // the room of all sandboxes together; nil if this is that room
	used atomic.Int64
}

// take counts n more bytes. It returns false, and counts nothing, if the sum would exceed a limit.
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

// add counts n more bytes, even if the sum then exceeds the limit.
func (r *room) add(n int64) { r.used.Add(n) }

// takeFor is like take, for bytes of a sandbox. The parameter own is the number of places that the
// sandbox then has in the room. If own is greater than few, the sandbox cannot use the second half
// of the room. So a sandbox with many places cannot use up the room that all sandboxes share.
func (r *room) takeFor(n int64, own, few int) bool {
	if own > few && r.used.Load()+n > r.most/2 {
		return false
	}
	return r.take(n)
}

func (r *room) give(n int64) {
	r.used.Add(-n)
	if r.of != nil {
		r.of.give(n)
	}
}

// chunk is a buffer for reading and forwarding data.
type chunk struct {
	bytes []byte
	room  *room // the room that counts the chunk; may be nil
}

// chunks is the source of chunks. The reader of a frame socket has a chunk while it reads. Each
// direction of a flow has a chunk while it forwards bytes, and keeps the chunk while the receiver
// accepts no bytes. So the chunks of flows are counted in a room. If the room is full, a direction
// has a small chunk.
type chunks struct{ large, small sync.Pool }

// take returns a chunk with chunkBytes bytes or, if the given room is full, with smallChunk bytes.
// If a caller does not wait while it has the chunk, it passes nil as the room: such a chunk needs
// no limit.
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
