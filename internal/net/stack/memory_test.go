package stack

import (
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/net/nettest"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// profile makes memory profiles exact during t.
func profile(t *testing.T) {
	earlier := runtime.MemProfileRate
	runtime.MemProfileRate = 1 << 10
	t.Cleanup(func() { runtime.MemProfileRate = earlier })
}

// inUse returns the number of bytes in use that were allocated by a function or by the functions
// that it calls.
func inUse(function string) (n int64) {
	runtime.GC()
	runtime.GC()
	records := make([]runtime.MemProfileRecord, 20000)
	k, _ := runtime.MemProfile(records, false)
	for _, r := range records[:k] {
		frames := runtime.CallersFrames(r.Stack())
		for more := true; more; {
			var f runtime.Frame
			if f, more = frames.Next(); strings.Contains(f.Function, function) {
				n += r.InUseBytes()
				break
			}
		}
	}
	return n
}

// TestAttackStandingStill opens connections on which neither side reads. If there are many such
// connections, each direction has only a small chunk.
func TestAttackStandingStill(t *testing.T) {
	profile(t)
	w := newWorld(t)
	nettest.Serve(w.Listen(t, web+":80"), func(c net.Conn) { // sends endlessly, and reads nothing
		for part := make([]byte, 16<<10); ; {
			if _, err := c.Write(part); err != nil {
				return
			}
		}
	})
	r := addRig(t, w, NewHost(10000), "public", netproto.Limits{Connections: netproto.MaxConnections})
	const each, most = 40, 1 << 20
	r.chunks.most = most // a lower limit, so that fewer connections reach it
	for range each {
		c := r.mustDial(t, web+":80")
		go func() { _, _ = io.Copy(c, zeros{}) }()
	}
	var moved uint64
	waitFor(t, "both directions stand still", func() bool {
		earlier := moved
		time.Sleep(300 * time.Millisecond)
		moved = r.counters.moving(r.Stack)
		return moved == earlier
	})
	if n := inUse("(*chunks).take"); n > 2*most {
		t.Errorf("%d connections hold %d KiB in chunks, want at most %d", each, n>>10, 2*most>>10)
	}
	if n := r.chunks.used.Load(); n > most || n < most/2 {
		t.Errorf("%d bytes of chunks are counted, want up to %d", n, most)
	}
}

func TestRoomOfOneIsInThatOfAll(t *testing.T) {
	all := &room{most: 10}
	a, b := &room{most: 8, of: all}, &room{most: 8, of: all}
	if !a.take(8) || a.take(1) || b.take(3) || !b.take(2) {
		t.Error("8 of one, and 10 of all: bounds that do not hold")
	}
	a.give(8)
	if !b.take(6) || b.take(1) {
		t.Error("what was given back is not there for another")
	}
	if n := all.used.Load(); n != 8 {
		t.Errorf("%d are in use, want 8", n)
	}
}

// When a chunk of either size is given back, its bytes no longer count.
func TestChunksAreGivenBack(t *testing.T) {
	var pool chunks
	in := &room{most: chunkBytes}
	large, small, free := pool.take(in), pool.take(in), pool.take(nil)
	if len(large.bytes) != chunkBytes || len(small.bytes) != smallChunk || len(free.bytes) != chunkBytes {
		t.Errorf("chunks of %d, %d, %d bytes", len(large.bytes), len(small.bytes), len(free.bytes))
	}
	for _, k := range []*chunk{large, small, free} {
		pool.give(k)
	}
	if n := in.used.Load(); n != 0 {
		t.Errorf("%d bytes are counted of none", n)
	}
}

// The flows of all sandboxes may take at most half of the process's memory in total, and may use at
// most as many files as the process may open. Even on the smallest host, one sandbox may have the
// default number of connections.
func TestSocketsAreBoundedByMemory(t *testing.T) {
	if n := Sockets(1<<20, LeastMemory); n != LeastMemory/flowShare/flowBytes || gate.Fair(n) < defaultConnections {
		t.Errorf("%d sockets of %d bytes, in half of %d, and less for one sandbox", n, flowBytes, LeastMemory)
	}
	if n := Sockets(100, LeastMemory); n != 100 {
		t.Errorf("%d sockets of 100 files", n)
	}
}
