package integration_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/vmmclient"
)

// servers is code for the interpreter of a sandbox. It starts servers on 127.0.0.1. Port 8000
// speaks HTTP: it answers a POST with the digest of the body, a GET with bytes of a pattern, and an
// upgrade with an echo. Port 8001 answers with the digest of its input when the input has ended.
// Port 8002 sends nothing, and waits until its connection is reset. Port 8004 accepts no connection,
// so it reads nothing.
const servers = `
import hashlib, http.server, socket, threading
pattern = bytes(range(251))
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_message(self, *args): pass
    def do_POST(self):
        digest, left = hashlib.sha256(), int(self.headers['Content-Length'])
        while left > 0:
            part = self.rfile.read(min(left, 65536))
            digest.update(part)
            left -= len(part)
        self.answer(digest.hexdigest().encode())
    def do_GET(self):
        if self.headers.get('Upgrade'):
            self.send_response(101)
            self.send_header('Connection', 'Upgrade')
            self.send_header('Upgrade', self.headers['Upgrade'])
            self.end_headers()
            while part := self.rfile.read1(65536):
                self.wfile.write(part)
            self.close_connection = True
        else:
            n = int(self.path.rsplit('/', 1)[1])
            self.answer((pattern * (n // len(pattern) + 1))[:n])
    def answer(self, body):
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
def digest(conn):
    d = hashlib.sha256()
    while part := conn.recv(65536):
        d.update(part)
    conn.sendall(d.hexdigest().encode())
    conn.close()
resets = 0
def wait(conn):
    global resets
    try:
        while conn.recv(65536): pass
        threading.Event().wait(0.1)
        while True: # the end of the data is not the end of the client
            conn.getpeername()
            if conn.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR): break
            threading.Event().wait(0.2)
    except OSError: pass
    resets += 1
def serve(port, f):
    s = socket.create_server(('127.0.0.1', port))
    def accept():
        while True:
            threading.Thread(target=f, args=(s.accept()[0],), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()
stuck = socket.socket()
stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096) # so that the buffers take little of the guest's memory
stuck.bind(('127.0.0.1', 8004))
stuck.listen(128)
serve(8001, digest)
serve(8002, wait)
threading.Thread(target=http.server.ThreadingHTTPServer(('127.0.0.1', 8000), Handler).serve_forever, daemon=True).start()
`

// startServers starts servers in a sandbox.
func (d *daemon) startServers(t *testing.T, id string) {
	t.Helper()
	r, err := d.Eval(d.ctx(t, quietLimit), id, client.EvalRequest{Code: servers})
	if err != nil || r.Error != "" {
		t.Fatalf("%+v, %v", r, err)
	}
}

// dialSocket connects to the daemon's socket.
func (d *daemon) dialSocket(ctx context.Context) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", filepath.Join(d.run, "forkd.sock"))
}

// ask sends a request to the daemon without forkd's client library. It returns status and body.
func (d *daemon) ask(t *testing.T, method, host, path string, body io.Reader) (int, []byte) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.dialSocket(ctx) }}
	req, err := http.NewRequestWithContext(d.ctx(t, bakeLimit), method, "http://"+host+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if b, ok := body.(*bytes.Reader); ok {
		req.ContentLength = b.Size()
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	p, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, p
}

func proxied(id string, port int, path string) string {
	return fmt.Sprintf("/v1/sandboxes/%s/proxy/%d%s", id, port, path)
}

// large is the number of bytes sent in each direction. All buffers between client and server
// together hold much less data.
const large = 1<<20 + 17

// TestInbound connects to servers on the loopback of a sandbox in every way that the daemon offers.
func TestInbound(t *testing.T) {
	d := load(t).start(t, withPool(0), withArgs("--proxy-domain", "sandboxes.test"))
	box := d.fork(t, 1)[0]
	d.startServers(t, box.ID)
	sent := make([]byte, large)
	rand.Read(sent)
	sum := sha256.Sum256(sent)
	digest := hex.EncodeToString(sum[:])
	t.Run("http", func(t *testing.T) {
		if status, p := d.ask(t, "POST", "forkd", proxied(box.ID, 8000, "/"),
			bytes.NewReader(sent)); status != http.StatusOK || string(p) != digest {
			t.Errorf("upload: %d, %s", status, p)
		}
		status, p := d.ask(t, "GET", "forkd", proxied(box.ID, 8000, fmt.Sprintf("/%d", large)), nil)
		if status != http.StatusOK || !isPattern(p, large) {
			t.Errorf("download: %d, %d bytes", status, len(p))
		}
		if status, p := d.ask(t, "GET", "forkd", proxied(box.ID, 8003, "/"), nil); status != http.StatusBadGateway ||
			!strings.Contains(string(p), "no server listens") {
			t.Errorf("a port that nobody listens on: %d, %s", status, p)
		}
	})
	t.Run("upgrade", func(t *testing.T) { testUpgrade(t, d, box.ID, sent) })
	t.Run("tcp", func(t *testing.T) {
		conn, err := d.DialPort(d.ctx(t, bakeLimit), box.ID, 8001)
		if err != nil {
			t.Fatal(err)
		}
		testDigest(t, conn, sent, digest)
	})
	t.Run("signed", func(t *testing.T) {
		u, err := d.PortURL(d.ctx(t, quietLimit), box.ID, 8000, client.PortURLRequest{})
		if err != nil {
			t.Fatal(err)
		}
		host := strings.TrimSuffix(strings.TrimPrefix(u.URL, "http://"), "/")
		if status, p := d.ask(t, "GET", host, "/1000", nil); status != http.StatusOK || !isPattern(p, 1000) {
			t.Errorf("%d, %d bytes", status, len(p))
		}
		if status, _ := d.ask(t, "GET", strings.Replace(host, "8000-", "8001-", 1), "/",
			nil); status != http.StatusForbidden {
			t.Errorf("another port: %d", status)
		}
	})
	t.Run("port-forward", func(t *testing.T) { testPortForward(t, d, box.ID, sent, digest) })
	t.Run("gone", func(t *testing.T) { testGone(t, d, box.ID) })
	t.Run("unread", func(t *testing.T) { testUnread(t, d, box.ID, sent, digest) })
	t.Run("kill", func(t *testing.T) {
		conn, err := d.DialPort(d.ctx(t, quietLimit), box.ID, 8001)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		d.kill(t, box)
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("the stream of a killed sandbox goes on")
		}
		_, err = d.DialPort(d.ctx(t, quietLimit), box.ID, 8001)
		wantError(t, "a port of a killed sandbox", err, http.StatusNotFound, box.ID)
	})
}

// isPattern reports whether p is the output of the pattern server.
func isPattern(p []byte, n int) bool {
	for i, b := range p {
		if int(b) != i%251 {
			return false
		}
	}
	return len(p) == n
}

// testDigest sends bytes to a server, which answers with their digest when it has received all of
// them.
func testDigest(t *testing.T, conn client.PortConn, sent []byte, digest string) {
	t.Helper()
	defer conn.Close()
	if _, err := conn.Write(sent); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || string(got) != digest {
		t.Errorf("answered %q, %v, want %s", got, err, digest)
	}
}

// testUpgrade lets an upgraded connection echo many bytes.
func testUpgrade(t *testing.T, d *daemon, id string, sent []byte) {
	ctx := d.ctx(t, bakeLimit)
	conn, err := d.dialSocket(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: forkd\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n",
		proxied(id, 8000, "/"))
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%+v, %v", resp, err)
	}
	go func() {
		conn.Write(sent)
		conn.(*net.UnixConn).CloseWrite()
	}()
	if got, err := io.ReadAll(in); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes of %d come back, %v", len(got), len(sent), err)
	}
}

// testPortForward connects through `forkd port-forward`.
func testPortForward(t *testing.T, d *daemon, id string, sent []byte, digest string) {
	cmd := exec.Command(d.f.program, "port-forward", "--daemon-url", "unix://"+filepath.Join(d.run, "forkd.sock"), id,
		"0:8001")
	cmd.Env = append(os.Environ(), "FORKD_CACHE="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 {
			t.Errorf("port-forward ended with %v", err)
		}
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address, _, _ := strings.Cut(line, " -> ")
	for range 2 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		testDigest(t, conn.(*net.TCPConn), sent, digest)
	}
}

// testGone connects to a server that keeps connections open. Then testGone ends the server's input,
// and later disconnects. The agent must reset the connection to the server, because no client waits
// for an answer.
func testGone(t *testing.T, d *daemon, id string) {
	guest := agentclient.New(agentclient.DialUnix(filepath.Join(d.run, "vm", id, vmmclient.VsockSocket)))
	conn, err := guest.DialPort(d.ctx(t, quietLimit), 8002)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // the server has received the end of the data by then
	if got := d.value(t, id, "resets"); got != "0" {
		t.Errorf("%s connections were reset before the client left", got)
	}
	conn.Close()
	eventually(t, quietLimit, func() error {
		if got := d.value(t, id, "resets"); got != "1" {
			return fmt.Errorf("%s connections were reset", got)
		}
		return nil
	})
}

// testUnread makes many clients send data to a server that does not read, and leave. Later, clients
// of other ports are served again, although the server still reads nothing.
func testUnread(t *testing.T, d *daemon, id string, sent []byte, digest string) {
	const clients = 64 // with so many unread connections to ports, the daemon opens no further ones
	guest := agentclient.New(agentclient.DialUnix(filepath.Join(d.run, "vm", id, vmmclient.VsockSocket)))
	var left sync.WaitGroup
	for range clients {
		conn, err := guest.DialPort(d.ctx(t, quietLimit), 8004)
		if err != nil {
			t.Fatal(err)
		}
		left.Go(func() {
			conn.SetWriteDeadline(time.Now().Add(5 * time.Second))
			for range 2 {
				_, _ = conn.Write(sent) // until all buffers are full
			}
			conn.Close()
		})
	}
	left.Wait()
	eventually(t, 2*time.Minute, func() error {
		conn, err := guest.DialPort(d.ctx(t, quietLimit), 8001)
		if err != nil {
			return err
		}
		testDigest(t, conn, sent, digest)
		return nil
	})
}

// TestInboundWakes checks that an open stream keeps a sandbox from being suspended as idle, and
// that a request resumes an idle sandbox.
func TestInboundWakes(t *testing.T) {
	d := load(t).start(t, withPool(0))
	r, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: tag, N: 1, IdleTimeoutSecs: idleTimeout})
	if err != nil {
		t.Fatal(err)
	}
	box := r.Sandboxes[0]
	d.startServers(t, box.ID)
	conn, err := d.DialPort(d.ctx(t, bakeLimit), box.ID, 8001)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 * idleTimeout {
		time.Sleep(time.Second)
		if s, err := d.Sandbox(d.ctx(t, quietLimit), box.ID); err != nil || s.State != "running" {
			t.Fatalf("with an open stream: %+v, %v", s, err)
		}
	}
	sum := sha256.Sum256([]byte("late"))
	testDigest(t, conn, []byte("late"), hex.EncodeToString(sum[:]))
	d.inState(t, box.ID, "suspended")
	if status, p := d.ask(t, "GET", "forkd", proxied(box.ID, 8000, "/1000"), nil); status != http.StatusOK ||
		!isPattern(p, 1000) {
		t.Errorf("a suspended sandbox answers %d, %s", status, p)
	}
	conn, err = d.DialPort(d.ctx(t, bakeLimit), box.ID, 8001)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := d.Suspend(d.ctx(t, bakeLimit), box.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the stream of a suspended sandbox goes on")
	}
	d.kill(t, box)
}
