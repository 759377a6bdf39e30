package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/inbound"
)

// Time limits of the HTTP server. Handlers have their own limits, because a bake or an exec may
// take long.
const (
	headerTimeout   = 10 * time.Second
	idleTimeout     = 2 * time.Minute // time after which a connection without a request is closed
	answerTimeout   = time.Minute     // time limit for a client to receive an answer that is not a stream
	shutdownTimeout = 30 * time.Second
)

// Limits of the HTTP server. Each listener has its own limit of connections. So clients that use up
// the connections of a TCP address cannot lock the daemon's owner out of the unix socket.
const (
	maxConns   = 2048
	maxHeaders = 16 << 10  // bytes, as in Node.js; parsed headers take up to twenty times as much memory
	maxHTTP2   = 100       // concurrent requests on an HTTP/2 connection
	maxWindow  = 256 << 10 // bytes of a stream that a client may send before the handler reads them
)

// Serve serves a handler on a TCP address until ctx ends. The handler checks its clients itself.
// The limits of connections and times are those of a daemon's TCP address.
func Serve(ctx context.Context, bind string, files TLS, handler http.Handler, log *slog.Logger) error {
	if err := files.check(bind); err != nil {
		return err
	}
	l, err := listenTCP(bind, files, log)
	if err != nil {
		return err
	}
	defer l.Close()
	return serve(ctx, log, handler, []net.Listener{l}, maxConns)
}

// serve serves at most conns connections per listener until ctx ends.
func serve(ctx context.Context, log *slog.Logger, handler http.Handler, listeners []net.Listener, conns int) error {
	server := newServer(handler, log, idleTimeout, answerTimeout)
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		log.Info("listening", "address", l.Addr().Network()+"://"+l.Addr().String())
		go func() { failed <- server.Serve(accepting(l, conns, log)) }()
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	log.Info("stopping")
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(stop); err != nil {
		log.Warn("requests were cut off", "error", err)
		server.Close()
	}
	return nil
}

// newServer returns a server with two time limits. The first (idle) is how long a connection may be
// open without a request. The second (answer) is how long a client may take to receive an answer.
// After either time, the server closes the connection.
func newServer(handler http.Handler, log *slog.Logger, idle, answer time.Duration) *http.Server {
	server := &http.Server{Handler: placing(timed(handler, answer, newUnread())),
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idle, MaxHeaderBytes: maxHeaders,
		WriteTimeout: min(answer, headerTimeout), // for the answers of net/http itself; see timed
		ConnContext:  withConn, ErrorLog: errorLog(log), Protocols: new(http.Protocols),
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxHTTP2, MaxReceiveBufferPerStream: maxWindow,
			WriteByteTimeout: answer}}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	server.Protocols.SetUnencryptedHTTP2(true) // for reverse proxies, and for gRPC clients of sandboxes
	return server
}

// fewHeaders returns a handler that refuses requests with too many headers. It passes all other
// requests on to the given handler. audited() makes a handler write its requests into the audit
// log.
func fewHeaders(next http.Handler, audited func(http.Handler) http.Handler) http.Handler {
	refusal := audited(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		text := fmt.Sprintf("more than %d headers", inbound.MaxFields)
		http.Error(w, text, http.StatusRequestHeaderFieldsTooLarge)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if inbound.Fields(r.Header) > inbound.MaxFields {
			refusal.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// listen opens the daemon's sockets.
func listen(cfg *Config, guard *auth.Guard) (listeners []net.Listener, err error) {
	if cfg.Bind != "" {
		if err := auth.CheckBind(cfg.Bind, guard.Demands()); err != nil {
			return nil, err
		}
		l, err := listenTCP(cfg.Bind, cfg.TLS, cfg.Log)
		if err != nil {
			return nil, err
		}
		listeners = append(listeners, l)
	}
	if cfg.Socket != "" {
		l, err := listenUnix(cfg.Socket, cfg.socketMode())
		if err != nil {
			for _, l := range listeners {
				l.Close()
			}
			return nil, fmt.Errorf("--socket: %w", err)
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}

// listenDocker opens the socket of the Docker Engine API. It returns nil if the API is not served.
func listenDocker(cfg *Config) (net.Listener, error) {
	if cfg.Docker == "" {
		return nil, nil
	}
	l, err := listenUnix(cfg.Docker, cfg.socketMode())
	if err != nil {
		return nil, fmt.Errorf("--docker-socket: %w", err)
	}
	return l, nil
}

// listenTCP opens the TCP address.
func listenTCP(bind string, files TLS, log *slog.Logger) (net.Listener, error) {
	l, err := net.Listen("tcp", bind)
	if err != nil {
		return nil, fmt.Errorf("--bind: %w", err)
	}
	switch {
	case files != TLS{}:
		config, err := serverTLS(files, log)
		if err != nil {
			l.Close()
			return nil, err
		}
		return &secure{l, config}, nil
	case !auth.IsLoopback(hostOf(bind)):
		log.Warn("tokens, and all else, go over the network in clear text: give --tls-cert, unless a proxy before the daemon ends TLS")
	}
	return l, nil
}

// hostOf returns the host of a valid host:port.
func hostOf(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	return host
}

// socketMode returns the mode of the unix socket. If users other than the owner may use the daemon,
// any user can connect, and the daemon checks the user of each connection.
func (c *Config) socketMode() os.FileMode {
	if len(c.Peers) > 0 {
		return 0o666
	}
	return 0o600
}

// listenUnix makes a socket. It replaces an existing socket only if no daemon answers on it.
func listenUnix(path string, mode os.FileMode) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if conn, err := net.Dial("unix", path); err == nil {
		conn.Close()
		return nil, fmt.Errorf("%s: another daemon answers there", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, mode); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}
