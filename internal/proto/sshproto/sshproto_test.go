package sshproto

import (
	"bytes"
	"errors"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/ctlsock"
)

var samples = []Message{
	&Ready{}, &Setup{HostKey: []byte{1}}, &Sign{Algorithm: "ssh-ed25519", Hash: make([]byte, MaxHash)},
	&Signature{Signature: []byte{2}}, &Login{User: "sb-1", Version: "SSH-2.0-x", Key: []byte{3}},
	&Admit{OK: true}, &Admit{Banner: "no"}, &Open{ID: 1, Type: "session", Extra: []byte{4}}, &Accept{ID: 2},
	&Refuse{ID: 3, Reason: 4, Text: "full"}, &Request{ID: 4, Type: "exec", WantReply: true, Payload: []byte{5}},
	&Sent{ID: 5}, &Closed{ID: 6}, &Ping{}, &Pong{},
}

func encoded(m Message) []byte {
	var w codec.Writer
	m.Append(&w)
	return w.Bytes()
}

// Parsing an encoded message gives the same message. A message that is too short or too long is
// refused.
func TestMessagesRoundTrip(t *testing.T) {
	for _, m := range samples {
		p := encoded(m)
		if got, err := parse(m.kind(), p); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%#v: %#v, %v", m, got, err)
		}
		if len(p) > 0 {
			if got, err := parse(m.kind(), p[:len(p)-1]); err == nil {
				t.Errorf("truncated: %#v", got)
			}
		}
		if got, err := parse(m.kind(), append(p, 0)); err == nil {
			t.Errorf("with a byte more: %#v", got)
		}
	}
}

// A message with a field that exceeds its bound is refused.
func TestBounds(t *testing.T) {
	long := strings.Repeat("x", MaxName+1)
	for _, m := range []Message{
		&Setup{HostKey: make([]byte, MaxKey+1)}, &Sign{Hash: make([]byte, MaxHash+1)}, &Sign{Algorithm: long},
		&Signature{Signature: make([]byte, MaxKey+1)}, &Login{User: long}, &Login{Version: long},
		&Login{Key: make([]byte, MaxKey+1)}, &Open{Type: long}, &Open{Extra: make([]byte, MaxExtra+1)},
		&Request{Type: long}, &Request{Payload: make([]byte, MaxPayload+1)},
	} {
		if got, err := parse(m.kind(), encoded(m)); err == nil {
			t.Errorf("%T was accepted: %+v", m, got)
		}
	}
}

func FuzzMessage(f *testing.F) {
	for _, m := range samples {
		f.Add(uint8(m.kind()), encoded(m))
	}
	f.Fuzz(func(t *testing.T, kind uint8, p []byte) {
		m, err := parse(codec.Kind(kind), p)
		if err != nil {
			return
		}
		again, err := parse(m.kind(), encoded(m))
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Errorf("%#v: %#v, %v", m, again, err)
		}
	})
}

// pair returns both ends of a stream.
func pair(t *testing.T) (daemon, process *Stream) {
	t.Helper()
	daemon, theirs, err := NewStream()
	if err != nil {
		t.Fatal(err)
	}
	control, other, err := NewControl()
	if err != nil {
		t.Fatal(err)
	}
	if err := control.Send(&Accept{ID: 1}, int(theirs.Fd())); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	received, err := open(other)
	if err != nil {
		t.Fatal(err)
	}
	m, fd, err := received.ReceiveFD()
	if err != nil || fd < 0 {
		t.Fatal(m, fd, err)
	}
	if process, err = OpenStream(fd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		daemon.Release()
		process.Release()
		control.Close()
		received.Close()
	})
	return daemon, process
}

// A stream passes all data in order. Data that the daemon sent before its Close arrives too.
func TestStream(t *testing.T) {
	daemon, process := pair(t)
	sent := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	go func() {
		_, err := process.Write(sent)
		if err == nil {
			err = process.CloseWrite()
		}
		if err != nil {
			t.Errorf("%v", err)
		}
	}()
	if got, err := io.ReadAll(daemon); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if n, err := daemon.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("%d, %v", n, err)
	}
	if err := daemon.Reply(true); err != nil {
		t.Fatal(err)
	}
	if _, err := daemon.WriteErrors([]byte("e")); err != nil {
		t.Fatal(err)
	}
	if err := daemon.Exit("exit-status", []byte{7}); err != nil {
		t.Fatal(err)
	}
	daemon.Close()
	for _, want := range []codec.Kind{Reply, Errors, Exit} {
		kind, body, err := process.Next()
		if err != nil || kind != want {
			t.Fatalf("%d, %v, want %d", kind, err, want)
		}
		if kind == Exit {
			if m, err := ParseExit(body); err != nil || m.Type != "exit-status" || !bytes.Equal(m.Payload, []byte{7}) {
				t.Errorf("%+v, %v", m, err)
			}
		}
	}
	if _, _, err := process.Next(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if _, err := process.Write([]byte("late")); err == nil {
		t.Error("a closed stream takes data")
	}
}

// If one end does not read, the other end soon cannot send, because the kernel holds only a few
// messages.
func TestStreamIsBounded(t *testing.T) {
	daemon, process := pair(t)
	sent := make(chan int, 1)
	go func() {
		n, _ := process.Write(make([]byte, 64*MaxPayload)) // fails after Close
		sent <- n
	}()
	select {
	case n := <-sent:
		t.Fatalf("%d bytes were sent to an end that does not read", n)
	case <-time.After(200 * time.Millisecond): // the kernel's buffers are full
	}
	daemon.Close()
	if n := <-sent; n == 0 || n > 8*MaxPayload {
		t.Errorf("the kernel holds %d bytes", n)
	}
}

// The daemon refuses messages that are not part of the protocol, and messages with descriptors.
func TestHostileProcess(t *testing.T) {
	daemon, process := pair(t)
	if err := process.Reply(true); err != nil {
		t.Fatal(err)
	}
	if _, err := daemon.Read(make([]byte, 1)); err == nil {
		t.Error("a reply was accepted as data")
	}
	for name, send := range map[string]func(c *Control) error{
		"kind":       func(c *Control) error { return c.conn.Send(99, nil) },
		"body":       func(c *Control) error { return c.conn.Send(kindOpen, []byte{1}) },
		"descriptor": func(c *Control) error { return c.Send(&Pong{}, 0) },
		"many":       func(c *Control) error { return c.Send(&Pong{}, 0, 0) },
	} {
		control, other, err := NewControl()
		if err != nil {
			t.Fatal(err)
		}
		hostile, err := open(other)
		if err != nil {
			t.Fatal(err)
		}
		if err := send(hostile); err != nil {
			t.Fatal(err)
		}
		if m, err := control.Receive(); err == nil {
			t.Errorf("%s: accepted as %T", name, m)
		}
		control.Close()
		hostile.Close()
	}
}

// open returns the end of a control socket that another process would open.
func open(file *os.File) (*Control, error) {
	defer file.Close()
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	conn, err := ctlsock.Open(fd, maxMessage)
	return &Control{conn}, err
}
