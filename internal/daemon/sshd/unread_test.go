package sshd_test

import (
	"io"
	"runtime"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/sshd"
)

// begin opens a session, with a command unless it is empty.
func begin(t *testing.T, c *ssh.Client, command string) ssh.Channel {
	t.Helper()
	channel, requests, err := c.OpenChannel("session", nil)
	if err != nil {
		t.Fatal(err)
	}
	go ssh.DiscardRequests(requests)
	if command != "" {
		if ok, err := channel.SendRequest("exec", true, ssh.Marshal(struct{ X string }{command})); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	return channel
}

func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// Input that nothing reads is bounded in memory, also if each byte has a packet of its own.
func TestTinyPackets(t *testing.T) {
	for name, command := range map[string]string{"no command": "", "a process that does not read": "exec sleep 100"} {
		t.Run(name, func(t *testing.T) {
			r := start(t, apirig.Options{}, sshd.Limits{})
			c := r.client()
			var channels []ssh.Channel
			for range 4 {
				channels = append(channels, begin(t, c, command))
			}
			before, most, sent := heap(), 0, 0
			for err := error(nil); err == nil; sent++ {
				if _, err = channels[sent%len(channels)].Write([]byte{0}); sent%(64<<10) == 0 {
					most = max(most, heap()-before)
				}
				if sent == 4<<20 {
					t.Fatalf("the connection takes %d packets; the heap has grown by %d MiB", sent, most>>20)
				}
			}
			t.Logf("%d packets, %d MiB", sent, most>>20)
			if sent < 1<<17 || most > 32<<20 {
				t.Errorf("the connection ended after %d packets; the heap had grown by %d MiB", sent, most>>20)
			}
		})
	}
}

// The stream for errors, on which clients have nothing to send, is read and discarded.
func TestInputForErrors(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{})
	c := r.client()
	channel := begin(t, c, "cat >/dev/null; echo done")
	before := heap()
	for range 1 << 18 {
		if _, err := channel.Stderr().Write([]byte{0}); err != nil {
			t.Fatal(err)
		}
	}
	if grown := heap() - before; grown > 8<<20 {
		t.Errorf("the heap has grown by %d MiB", grown>>20)
	}
	if err := channel.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 5)
	if n, err := channel.Read(text); string(text[:n]) != "done\n" {
		t.Errorf("%q, %v", text[:n], err)
	}
}

// Clients whose sessions read may send small packets, and packets without input, as long as they like.
func TestManyPackets(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{})
	c := r.client()
	idle := begin(t, c, "cat; exec sleep 100")
	if err := idle.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	busy := begin(t, c, "cat >/dev/null; echo done")
	for range 6 {
		for range 30_000 {
			if _, err := busy.Write(make([]byte, 20)); err != nil {
				t.Fatal(err)
			}
			if _, _, err := c.SendRequest("x", false, nil); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(1200 * time.Millisecond)
	}
	if err := busy.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 5)
	if n, err := busy.Read(text); string(text[:n]) != "done\n" {
		t.Errorf("%q, %v", text[:n], err)
	}
}

// A session that gets no command ends.
func TestNoCommand(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{Login: time.Second})
	c := r.client()
	channel := begin(t, c, "")
	begun := time.Now()
	if n, err := channel.Read(make([]byte, 1)); err == nil || time.Since(begun) > 10*time.Second {
		t.Errorf("%d, %v after %v", n, err, time.Since(begun))
	}
	if out, err := r.session(c).Output("echo works"); string(out) != "works\n" {
		t.Errorf("%q, %v", out, err)
	}
}

// Output that the client does not take does not keep the connection, and so the places of the session,
// after the sandbox has ended.
func TestKilledDuringOutput(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{Closing: time.Second})
	c := r.client()
	channel := begin(t, c, "head -c 50000000 /dev/zero") // more than the window that the client opens
	if _, err := io.ReadFull(channel, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // until the window is full
	if err := r.Kill(t.Context(), r.id); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	select {
	case <-ended:
	case <-time.After(15 * time.Second):
		t.Error("the connection stays")
	}
}
