package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/daemon/auth"
)

func TestDefaults(t *testing.T) {
	none := func(string) string { return "" }
	var root Config
	if err := root.Defaults(0, none); err != nil || root.StateDir != "/var/lib/forkd" ||
		root.Socket != "/run/forkd/forkd.sock" {
		t.Errorf("root: %+v, %v", root, err)
	}
	env := map[string]string{"HOME": "/home/u", "XDG_RUNTIME_DIR": "/run/user/7", "XDG_STATE_HOME": "relative"}
	var user Config
	err := user.Defaults(7, func(k string) string { return env[k] })
	if err != nil || user.StateDir != "/home/u/.local/state/forkd" || user.Socket != "/run/user/7/forkd/forkd.sock" ||
		user.RAMDir != "/dev/shm/forkd-7" {
		t.Errorf("user: %+v, %v", user, err)
	}
	if err := new(Config).Defaults(7, none); err == nil {
		t.Error("a user without a home: accepted")
	}
	tcp := Config{Bind: "127.0.0.1:1", StateDir: "/s"}
	if err := tcp.Defaults(0, none); err != nil || tcp.Socket != "" || tcp.StateDir != "/s" {
		t.Errorf("tcp: %+v, %v", tcp, err)
	}
}

func TestListenUnixReplacesOnlyTheDead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "s")
	l, err := listenUnix(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listenUnix(path, 0o600); err == nil || !strings.Contains(err.Error(), "another daemon") {
		t.Errorf("a live socket was taken: %v", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // the socket stays, as after SIGKILL
	l.Close()
	again, err := listenUnix(path, 0o600)
	if err != nil {
		t.Fatalf("a dead socket was not replaced: %v", err)
	}
	again.Close()
}

func TestServeStopsInOrder(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	inside := make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(inside)
		stop() // the daemon still finishes the request in flight
		<-ctx.Done()
		w.WriteHeader(http.StatusNoContent)
	})
	done := make(chan error, 1)
	go func() { done <- serve(ctx, slog.New(slog.DiscardHandler), handler, []net.Listener{l}, 10) }()
	resp, err := http.Get("http://" + l.Addr().String())
	if err != nil || resp.StatusCode != http.StatusNoContent {
		t.Fatalf("request during the stop: %v", err)
	}
	resp.Body.Close()
	<-inside
	if err := <-done; err != nil {
		t.Errorf("serve: %v", err)
	}
}

// A daemon waits at least a second and at most a day for a registry.
func TestLazyTimeoutIsBounded(t *testing.T) {
	for timeout, ok := range map[time.Duration]bool{0: true, time.Second: true, 24 * time.Hour: true,
		-time.Second: false, time.Millisecond: false, 25 * time.Hour: false} {
		cfg := Config{Bind: "127.0.0.1:1", StateDir: "/s", RAMDir: "/m", RunDir: "/r", LazyTimeout: timeout}
		err := cfg.check()
		if ok && err != nil || !ok && (err == nil || !strings.Contains(err.Error(), "--lazy-timeout")) {
			t.Errorf("%v: %v", timeout, err)
		}
	}
}

// The daemon refuses each of its three directories if other users can change it. The error names
// the directory and says how to fix it.
func TestDaemonWantsItsDirectoriesToItself(t *testing.T) {
	for _, option := range []string{"--state-dir", "--ram-dir", "--run-dir"} {
		top := t.TempDir()
		cfg := Config{StateDir: filepath.Join(top, "s"), RAMDir: filepath.Join(top, "m"), RunDir: filepath.Join(top, "r"),
			Log: slog.New(slog.DiscardHandler)}
		cfg.Socket = filepath.Join(cfg.RunDir, "forkd.sock")
		dir := map[string]string{"--state-dir": cfg.StateDir, "--ram-dir": cfg.RAMDir, "--run-dir": cfg.RunDir}[option]
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := Run(ctx, cfg)
		if err == nil || !strings.Contains(err.Error(), option+" "+dir) || !strings.Contains(err.Error(), "chmod 700 "+dir) {
			t.Errorf("%s: %v", option, err)
		}
		if _, err := os.Lstat(cfg.Socket); err == nil {
			t.Errorf("%s: listens all the same", option)
		}
	}
}

// A connection beyond the limit is accepted only when another connection closes. Until then it
// takes no descriptor of the daemon.
func TestConnectionsAreLimited(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan struct{}, 3)
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		auth.Identified(r.Context(), "token:a")
		served <- struct{}{}
		<-r.Context().Done() // until the client leaves
	})
	done := make(chan error, 1)
	go func() { done <- serve(ctx, slog.New(slog.DiscardHandler), handler, []net.Listener{l}, 2) }()
	var conns []net.Conn
	for i := range 3 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if i < 2 {
			<-served
		}
	}
	// Without a limit the answer would arrive within this time.
	conns[2].SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := conns[2].Read(make([]byte, 1)); err == nil {
		t.Errorf("a third connection was served: %d bytes", n)
	}
	conns[0].Close()
	<-served
	for _, c := range conns {
		c.Close()
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Connections of the limited listener can be closed in one direction, as streams to ports of
// sandboxes require. Such connections may also use HTTP/2 without TLS.
func TestServedConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 {
			return
		}
		auth.Identified(r.Context(), "token:a") // without this, the next connection would close this connection
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Error(err)
		}
		got := make([]byte, 4)
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != "late" {
			t.Errorf("after the end of the other direction: %q, %v", got, err)
		}
	})
	done := make(chan error, 1)
	go func() { done <- serve(ctx, slog.New(slog.DiscardHandler), handler, []net.Listener{l}, 1) }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if p, err := io.ReadAll(c); err != nil || len(p) > 0 {
		t.Errorf("%q, %v", p, err)
	}
	io.WriteString(c, "late")
	c.Close()
	two := &http.Transport{Protocols: new(http.Protocols)}
	two.Protocols.SetUnencryptedHTTP2(true)
	// This request gets the place of the first connection.
	resp, err := (&http.Client{Transport: two}).Get("http://" + l.Addr().String())
	if err != nil || resp.ProtoMajor != 2 {
		t.Errorf("HTTP/2: %+v, %v", resp, err)
	}
	two.CloseIdleConnections()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The server closes idle connections, because each connection takes a descriptor of the daemon.
func TestIdleConnectionsAreClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := newServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), slog.New(slog.DiscardHandler),
		time.Millisecond, time.Hour)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second)) // expires only if the server fails to close the connection
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if p, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(p), "HTTP/1.1 200") {
		t.Errorf("an answer and the end of the connection: %q, %v", p, err)
	}
	server.Close()
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}
