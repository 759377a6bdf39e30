package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// server is a registry, or another server, behind a proxy that counts bytes.
type server struct {
	host           string        // address of the proxy
	link           *rate.Limiter // bytes per second that the proxy passes on to clients; nil: unlimited
	received, sent atomic.Int64  // bytes that the server has received and sent
	stop           func()
}

// startTime is the longest time that a registry may take to start.
const startTime = 30 * time.Second

// startRegistry starts Debian's registry with its data in a new directory.
func startRegistry(ctx context.Context, dir string) (*server, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	inner, err := freeAddress()
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "config.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\n"+
		"http: {addr: %q}\n", filepath.Join(dir, "data"), inner)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "docker-registry", "serve", config)
	cmd.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("the Debian package docker-registry is needed: %w", err)
	}
	end := func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	if err := waitFor(ctx, "http://"+inner+"/v2/"); err != nil {
		end()
		return nil, err
	}
	return before(inner, nil, end)
}

// serveHere serves HTTP from this process, behind a link with the given number of bytes per second.
func serveHere(h http.Handler, bytesPerSecond int) (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	inner := &http.Server{Handler: h}
	go func() { _ = inner.Serve(l) }()
	link := rate.NewLimiter(rate.Limit(bytesPerSecond), piece)
	return before(l.Addr().String(), link, func() { _ = inner.Close() })
}

// before(…) starts a proxy in front of the server at the address inner. To stop the server, it
// calls end().
func before(inner string, link *rate.Limiter, end func()) (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		end()
		return nil, err
	}
	r := &server{host: l.Addr().String(), link: link}
	r.stop = func() {
		_ = l.Close()
		end()
	}
	go r.serve(l, inner)
	return r, nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// waitFor waits until a server answers.
func waitFor(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		if resp, err := http.DefaultClient.Do(r); err == nil {
			return resp.Body.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("docker-registry does not answer: %w", ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// serve passes connections on until the listener is closed.
func (r *server) serve(l net.Listener, inner string) {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", inner)
		if err != nil {
			_ = in.Close()
			continue
		}
		go pass(out, in, &r.received, nil)
		go pass(in, out, &r.sent, r.link)
	}
}

// pass copies one direction of a connection, and counts the bytes.
func pass(to, from net.Conn, n *atomic.Int64, link *rate.Limiter) {
	_, err := io.CopyBuffer(struct{ io.Writer }{to}, counting{from, n, link}, make([]byte, piece))
	if half, ok := to.(*net.TCPConn); ok && err == nil {
		err = half.CloseWrite()
	}
	if err != nil && !errors.Is(err, net.ErrClosed) {
		_ = to.Close()
		_ = from.Close()
	}
}

// piece is the maximum number of bytes that a proxy passes on at once.
const piece = 32 << 10

// counting is a reader that adds to n the number of bytes that it reads.
type counting struct {
	io.Reader
	n    *atomic.Int64
	link *rate.Limiter // may be nil
}

func (c counting) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if c.link != nil && n > 0 {
		_ = c.link.WaitN(context.Background(), n) // at most a piece, which always passes
	}
	c.n.Add(int64(n))
	return n, err
}
