package stack

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	gvisor "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/forkd/forkd/internal/net/guesttest"
	"github.com/forkd/forkd/internal/proto/frame"
)

// The memory of packets that wait for guests is bounded, both for each sandbox and for all
// sandboxes together. Each sandbox has a small part of this memory even if other sandboxes have
// used up the rest.
func TestQueuesHaveARoom(t *testing.T) {
	host := NewHost(10)
	host.links.most = queueBytes
	greedy, other := &link{host: host}, &link{host: host}
	if !greedy.takeLocked(fewBytes) || !greedy.takeLocked(queueBytes-fewBytes) {
		t.Fatal("a sandbox alone has no room")
	}
	if greedy.takeLocked(1) {
		t.Error("a sandbox has more than its part")
	}
	if !other.takeLocked(fewBytes) {
		t.Error("another sandbox has no room")
	}
	if other.takeLocked(2 * fewBytes) {
		t.Error("the sandboxes together have more than the room")
	}
	greedy.giveLocked(queueBytes)
	if !other.takeLocked(2 * fewBytes) {
		t.Error("there is no room after a sandbox has given its part back")
	}
	other.giveLocked(3 * fewBytes)
	if n := host.links.used.Load(); n != 0 {
		t.Errorf("%d bytes are counted for empty queues", n)
	}
}

// testLink returns a link, and the socket of its VM.
func testLink(t *testing.T, host *Host) (l *link, vm *os.File) {
	t.Helper()
	vm, theirs := guesttest.Pair(t)
	var dropped atomic.Uint64
	l, err := newLink(host, "a", theirs, &dropped)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		vm.Close()
		l.close()
	})
	return l, vm
}

// outstanding returns how much memory the data in the frame socket of a link takes.
func outstanding(t *testing.T, l *link) (n int) {
	t.Helper()
	if err := l.raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); err != nil {
		t.Fatal(err)
	}
	return n
}

// fillLink sends packets to a VM that does not read, until a packet has to wait in the queue.
func fillLink(t *testing.T, l *link, size int) {
	t.Helper()
	for range 10_000 {
		pkt := gvisor.NewPacketBuffer(gvisor.PacketBufferOptions{Payload: buffer.MakeWithData(make([]byte, size))})
		var list gvisor.PacketBufferList
		list.PushBack(pkt)
		l.WritePackets(list)
		pkt.DecRef()
		l.mu.Lock()
		waits := l.writing
		l.mu.Unlock()
		if waits {
			return
		}
	}
	t.Fatal("the socket is never full")
}

// The memory of a frame socket counts against the limit for all links (a room). If the room is
// full, a VM that does not read has a socket with a small buffer, into which the longest message
// fits.
func TestFrameSocketsHaveARoom(t *testing.T) {
	for _, size := range []int{64, 1400, frame.MaxMessage - linkHeaderBytes} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			host := NewHost(10)
			host.links.most = growBytes + 100
			first, vm := testLink(t, host)
			second, _ := testLink(t, host)
			fillLink(t, first, size)
			fillLink(t, second, size)
			if !first.grown || second.grown {
				t.Fatalf("large buffers: %v and %v, want one", first.grown, second.grown)
			}
			if n := outstanding(t, second); n == 0 || n > smallBytes {
				t.Errorf("%d bytes are in a socket with a small buffer", n)
			}
			if first.shrink(); !first.grown {
				t.Error("a buffer was reduced while packets wait")
			}
			drain(t, first, vm)
			if first.shrink(); first.grown {
				t.Error("an empty buffer is still large")
			}
			if n := host.links.used.Load(); n != 0 {
				t.Errorf("%d bytes are counted", n)
			}
			if first.close(); host.links.used.Load() != 0 {
				t.Errorf("%d bytes are counted for a socket without data", host.links.used.Load())
			}
		})
	}
}

// A closed frame socket counts against the limit for all links until its VM has read the data.
func TestClosedFrameSocketsCount(t *testing.T) {
	for _, most := range []int64{0, 1 << 30} {
		host := NewHost(10)
		host.links.most = most
		l, vm := testLink(t, host)
		fillLink(t, l, 1400)
		want := int64(smallBytes)
		if l.grown {
			want += growBytes
		}
		l.close()
		if n := host.links.used.Load(); n != want {
			t.Errorf("%d bytes are counted for a closed socket, want %d", n, want)
		}
		if n := host.Held(l.id); n != 1 {
			t.Errorf("%d closed sockets are held", n)
		}
		vm.Close()
		if n := host.Held(l.id); n != 0 || host.links.used.Load() != 0 {
			t.Errorf("%d sockets are held after the end of the VM, %d bytes", n, host.links.used.Load())
		}
	}
}

// drain reads all packets for a VM. It returns when no packet waits in the queue.
func drain(t *testing.T, l *link, vm *os.File) {
	t.Helper()
	vm.SetReadDeadline(time.Now().Add(time.Minute))
	for p := make([]byte, frame.MaxMessage); ; {
		l.mu.Lock()
		waits := l.writing
		l.mu.Unlock()
		if !waits && outstanding(t, l) == 0 {
			return
		}
		if outstanding(t, l) > 0 {
			if _, err := vm.Read(p); err != nil {
				t.Fatal(err)
			}
		}
	}
}
