package sshd_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/sshd"
)

// begin opens a session. If command is not empty, the session runs this command.
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

// stuckClient logs in over a connection that can get stuck.
func (r *rig) stuckClient() (*ssh.Client, *stuckConn) {
	r.t.Helper()
	k := newKey(r.t)
	r.register(k, "default")
	raw, err := net.Dial("tcp", r.SSH.Addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { raw.Close() })
	conn := &stuckConn{Conn: raw, stuck: make(chan struct{})}
	cc, channels, requests, err := ssh.NewClientConn(conn, r.SSH.Addr, &ssh.ClientConfig{User: r.id,
		Auth: []ssh.AuthMethod{ssh.PublicKeys(k)}, HostKeyCallback: ssh.FixedHostKey(r.SSH.HostKey)})
	if err != nil {
		r.t.Fatal(err)
	}
	return ssh.NewClient(cc, channels, requests), conn
}

// processes() returns the number of forkd-ssh processes that this test has started.
func processes(t *testing.T) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // the process has ended
		}
		before, after, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(after); strings.HasSuffix(before, "(forkd-ssh") && len(fields) > 1 &&
			fields[0] != "Z" && fields[1] == strconv.Itoa(os.Getpid()) {
			n++
		}
	}
	return n
}

// Strangers leave nothing behind in the daemon, whether they violate the protocol, hold connections
// open, or disconnect during the handshake.
func TestStrangersLeaveNothing(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{Login: 3 * time.Second})
	neighbour := r.client()
	before, goroutines := heap(), runtime.NumGoroutine()
	ignored := []byte{0, 0, 0, 12, 6, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} // SSH_MSG_IGNORE, as before a key exchange
	var conns []net.Conn
	for range 24 {
		conn, err := net.Dial("tcp", r.SSH.Addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conns = append(conns, conn)
		go func() { // these writes fail when the server closes the connection
			_, _ = io.WriteString(conn, "SSH-2.0-x\r\n")
			_, _ = conn.Write(bytes.Repeat(ignored, 1<<16))
		}()
	}
	for range 4 { // these clients exchange keys, but then cannot log in
		if c, _, err := r.dial(r.id, newKey(t)); err == nil {
			t.Fatal(c)
		}
	}
	if out, err := r.session(neighbour).Output("echo works"); string(out) != "works\n" {
		t.Errorf("a neighbour: %q, %v", out, err)
	}
	if grown := heap() - before; grown > 8<<20 {
		t.Errorf("the heap has grown by %d MiB", grown>>20)
	}
	for _, conn := range conns {
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a connection stays open")
		}
		conn.Close()
	}
	eventually(t, "the end of the strangers' processes", func() bool { return processes(t) == 1 })
	eventually(t, "the end of their goroutines", func() bool { return runtime.NumGoroutine() <= goroutines+4 })
}

// Requests that a session has not answered wait in the process of the connection, and not in the
// daemon. This holds before and after the channel is accepted, and for channels that are never
// accepted.
func TestManyRequests(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{})
	c, neighbour := r.client(), r.client()
	before := heap()
	most := 0
	for i := range 200 {
		channel, requests, err := c.OpenChannel("session", nil)
		if err != nil {
			t.Fatal(err)
		}
		go ssh.DiscardRequests(requests)
		for range 20 {
			if _, err := channel.SendRequest("x", false, make([]byte, 30<<10)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := channel.SendRequest("x", false, make([]byte, 200<<10)); err != nil { // longer than a request may be
			t.Fatal(err)
		}
		if ok, err := channel.SendRequest("y", true, nil); ok || err != nil {
			t.Fatal(ok, err)
		}
		channel.Close()
		if i%20 == 0 {
			most = max(most, heap()-before)
		}
	}
	if most > 8<<20 {
		t.Errorf("the heap has grown by %d MiB", most>>20)
	}
	if out, err := r.session(neighbour).Output("echo works"); string(out) != "works\n" {
		t.Errorf("a neighbour: %q, %v", out, err)
	}
}

// If the process in the guest ends before all output has reached the client, the rest of the output
// is not lost.
func TestOutputOfEndedProcess(t *testing.T) {
	r := start(t, apirig.Options{}, sshd.Limits{Closing: 500 * time.Millisecond})
	channel := begin(t, r.client(), "head -c 3000000 /dev/zero") // more than the window that the client opens
	time.Sleep(2 * time.Second)
	if n, err := io.Copy(io.Discard, channel); n != 3000000 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// Input that nothing reads takes memory only of the connection's process. This holds even if each
// byte is in a packet of its own, or if the client reads nothing at all. Other connections are not
// affected.
func TestTinyPackets(t *testing.T) {
	for name, command := range map[string]string{"no command": "", "a process that does not read": "exec sleep 100",
		"a client that reads nothing": "yes & exec cat >/dev/null"} {
		t.Run(name, func(t *testing.T) {
			r := start(t, apirig.Options{}, sshd.Limits{Login: 5 * time.Minute, Keepalive: 5 * time.Minute})
			neighbour := r.client()
			c, conn := r.stuckClient()
			var channels []ssh.Channel
			for range 4 {
				channels = append(channels, begin(t, c, command))
			}
			if name == "a client that reads nothing" {
				close(conn.stuck)
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
			if sent < 1<<17 || most > 16<<20 {
				t.Errorf("the connection ended after %d packets; the heap had grown by %d MiB", sent, most>>20)
			}
			eventually(t, "the end of one process", func() bool { return processes(t) == 1 })
			if out, err := r.session(neighbour).Output("echo works"); string(out) != "works\n" {
				t.Errorf("a neighbour: %q, %v", out, err)
			}
			eventually(t, "the count of connections that are out of memory", func() bool {
				return strings.Contains(metricsOf(r), "forkd_ssh_out_of_memory_total 1\n")
			})
		})
	}
}

// Data that a client sends on the stream for errors has no meaning. The data is read and discarded.
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

// If a client's session reads its input, the client may send any number of small packets, with and
// without input.
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

// If a session gets no command, it ends.
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

// After a sandbox has ended, a client that does not take the output keeps neither its connection
// nor the session's places.
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
