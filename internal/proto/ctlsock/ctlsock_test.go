package ctlsock

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/vmmproto"
)

func pair(t *testing.T) (a, b *Conn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(l)
	if a, err = Dial(path); err != nil {
		t.Fatal(err)
	}
	if b, err = Accept(l); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}

func TestMessagesCarryBodiesAndDescriptors(t *testing.T) {
	a, b := pair(t)
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("donated"); err != nil {
		t.Fatal(err)
	}
	small, large := []byte("x"), bytes.Repeat([]byte("y"), 300<<10)
	for _, body := range [][]byte{small, large, {}} {
		if err := a.Send(vmmproto.KindBranch, body, int(f.Fd()), int(f.Fd())); err != nil {
			t.Fatal(err)
		}
		kind, got, fds, err := b.Receive()
		if err != nil || kind != vmmproto.KindBranch || !bytes.Equal(got, body) || len(fds) != 2 {
			t.Fatalf("kind %d, %d bytes, fds %v, %v", kind, len(got), fds, err)
		}
		var p [7]byte
		if _, err := unix.Pread(fds[1], p[:], 0); err != nil || string(p[:]) != "donated" {
			t.Fatalf("%q, %v", p, err)
		}
		CloseAll(fds)
	}
	if a.Send(vmmproto.KindBranch, make([]byte, MaxMessage)) == nil {
		t.Fatal("an oversized message was sent")
	}
	a.Shutdown()
	if _, _, _, err := b.Receive(); !errors.Is(err, io.EOF) {
		t.Fatalf("after shutdown: %v", err)
	}
}

// A connection does not keep the buffer of a large message while it waits for the next message.
func TestLargeBufferIsDropped(t *testing.T) {
	a, b := pair(t)
	received := func() {
		t.Helper()
		if _, _, _, err := b.Receive(); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []int{100, MaxMessage - 1} {
		if err := a.Send(vmmproto.KindConn, make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		received()
	}
	if cap(b.buf) < MaxMessage {
		t.Fatalf("a buffer of %d bytes", cap(b.buf))
	}
	a.Shutdown()
	if _, _, _, err := b.Receive(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if cap(b.buf) > keptBuffer {
		t.Errorf("a buffer of %d bytes is kept", cap(b.buf))
	}
}

// Dial returns an error, and does not block, if the listening process accepts no connections.
func TestDialDoesNotWaitForAListenerThatHangs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(l)
	for n := range 2 * Backlog {
		c, err := Dial(path)
		if errors.Is(err, unix.EAGAIN) {
			if n < 100 {
				t.Errorf("%d connections are too many for a listener that takes none", n)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	t.Errorf("%d connections wait for a listener that takes none", 2*Backlog)
}

// A process that cannot open another descriptor receives a message without the message's
// descriptors. Later messages are received normally.
func TestMessagesWhoseDescriptorsFindNoRoom(t *testing.T) {
	a, b := pair(t)
	send := func(fds ...int) {
		t.Helper()
		if err := a.Send(vmmproto.KindConn, []byte("port"), fds...); err != nil {
			t.Fatal(err)
		}
	}
	send(0, 1)
	send()
	send(0)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	kind, body, fds, err := b.Receive()
	if back := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); back != nil {
		t.Fatal(back)
	}
	if !errors.Is(err, ErrFDsLost) || kind != vmmproto.KindConn || string(body) != "port" || len(fds) != 0 {
		t.Errorf("message %d %q with %d descriptors, %v", kind, body, len(fds), err)
	}
	for want := range 2 {
		if _, _, fds, err = b.Receive(); err != nil || len(fds) != want {
			t.Errorf("message %d behind it: %d descriptors, %v", want, len(fds), err)
		}
		CloseAll(fds)
	}
}

// If a process cannot open another descriptor, Accept waits. It accepts the connection as soon as a
// descriptor is free.
func TestAcceptWaitsForADescriptor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(l)
	a, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		b, err := Accept(l)
		if err == nil {
			err = errors.Join(b.Send(vmmproto.KindConn, nil), b.Close())
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Errorf("without a descriptor: %v", err)
		ended <- err
	case <-time.After(10 * acceptPause): // Accept has tried again in this time
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if kind, _, _, err := a.Receive(); kind != vmmproto.KindConn || err != nil {
		t.Errorf("%d, %v", kind, err)
	}
}
