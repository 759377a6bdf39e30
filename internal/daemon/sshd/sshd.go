// Package sshd serves SSH: shells, commands, files (SFTP) and connections to ports of sandboxes, for
// OpenSSH and the editors that use it. The name of the login is the id of a sandbox. Nothing in the
// sandbox needs to know SSH.
//
// It accepts only public keys, and the holder of a key has the rights of the key's principal
// (package auth). There are no passwords, no forwarding of agents or of X11, and no listeners for
// clients. The package parses no SFTP: a program in the sandbox does (internal/guest/sftpd).
//
// Clients are not trusted before they have logged in, and not much afterwards: see Limits. An
// unknown client learns neither which keys nor which sandboxes exist.
package sshd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/owner"
)

// Counter counts clients and sessions for metrics.
type Counter interface {
	SSHConnected(change int) // change of the number of clients that have logged in
	SSHLogin(result string)  // "ok", "refused" or "busy"
	SSHSessionBegun()
	// kind is "shell", "exec", "sftp", "forward" or, for a session without a process, "none"; outcome is
	// "ok", "client" or "failed".
	SSHSessionEnded(kind, outcome string, took time.Duration)
}

// Limits bound what clients can hold. A zero field takes its default, which is the number at the end
// of each comment.
type Limits struct {
	// Connections that have not logged in, of all peers and of one (auth.PeerName); 64, 8.
	Logins, LoginsPerPeer int
	Login                 time.Duration // time to log in, and for a session to get its command; 20 seconds
	Clients               int           // connections that have logged in; one principal may have three quarters; 256
	// Channels of all connections and of one. One principal may have three quarters; 256, 32. For the
	// input that the sandbox has not read, see type unread.
	Channels, ChannelsPerClient int
	Keepalive                   time.Duration // interval of questions whether the client still answers; 30 seconds
	Closing                     time.Duration // time for a client to agree to the end of a channel; 10 seconds
}

func (l Limits) withDefaults() Limits {
	for _, d := range []struct {
		field *int
		def   int
	}{{&l.Logins, 64}, {&l.LoginsPerPeer, 8}, {&l.Clients, 256}, {&l.Channels, 256}, {&l.ChannelsPerClient, 32}} {
		if *d.field == 0 {
			*d.field = d.def
		}
	}
	for _, d := range []struct {
		field *time.Duration
		def   time.Duration
	}{{&l.Login, 20 * time.Second}, {&l.Keepalive, 30 * time.Second}, {&l.Closing, 10 * time.Second}} {
		if *d.field == 0 {
			*d.field = d.def
		}
	}
	return l
}

// maxAttempts bounds the keys that a client may try. It is OpenSSH's number.
const maxAttempts = 6

// Config configures a Server.
type Config struct {
	Face    *face.Face
	Keys    *auth.SSHKeys
	HostKey ssh.Signer
	SFTP    Program
	Counts  Counter
	Limits  Limits
	Log     *slog.Logger
}

// Server serves SSH.
type Server struct {
	Config
	ssh *ssh.ServerConfig

	logins            *logins
	clients, channels *gate.Gate
}

// New returns a Server.
func New(cfg Config) *Server {
	cfg.Limits = cfg.Limits.withDefaults()
	l := cfg.Limits
	s := &Server{Config: cfg, logins: &logins{most: l.Logins, mostOfPeer: l.LoginsPerPeer},
		clients: gate.New(l.Clients), channels: gate.New(l.Channels)}
	s.ssh = &ssh.ServerConfig{
		MaxAuthTries:            maxAttempts,
		ServerVersion:           "SSH-2.0-forkd",
		PublicKeyAuthAlgorithms: ssh.SupportedAlgorithms().PublicKeyAuths,
		// A client may ask whether a key would do before it proves that it has the key. The answer is
		// the same for all keys, because public keys are no secrets.
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			return &ssh.Permissions{}, auth.CheckSSHKey(key)
		},
	}
	s.ssh.AddHostKey(cfg.HostKey)
	return s
}

// Serve accepts connections until ctx ends. Then it ends all of them and closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var conns sync.WaitGroup
	defer conns.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		conn, err := l.Accept()
		if err != nil && ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("ssh: %w", err)
		}
		if err != nil { // such as too many open files
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		peer := auth.PeerName(ctx, conn.RemoteAddr().String())
		a := s.logins.enter(conn, peer)
		conns.Go(func() { s.serve(ctx, a) })
	}
}

// acceptPause is the time without accepting connections after an error.
const acceptPause = 100 * time.Millisecond

// serve serves one connection.
func (s *Server) serve(ctx context.Context, a *attempt) {
	defer a.leave()
	conn := &timedConn{Conn: a.conn, stall: s.Face.Limits.Stall}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(farewell, func() { conn.Close() }) })()
	begun := time.Now()
	late := time.AfterFunc(s.Limits.Login, func() { conn.Close() })
	defer late.Stop()
	entry := audit.Entry{Time: begun, RequestID: audit.NewID(), Method: auditMethod, Path: "/login",
		Remote: a.conn.RemoteAddr().String()}
	config, known := *s.ssh, false
	config.VerifiedPublicKeyCallback = func(c ssh.ConnMetadata, key ssh.PublicKey, p *ssh.Permissions, _ string) (
		*ssh.Permissions, error) {
		l, err := s.login(c.User(), key)
		if err == nil {
			p.ExtraData = map[any]any{loginKey{}: l}
			return p, nil
		}
		if l != nil { // each attempt of a known principal has a line, as each of its requests
			known = true
			e := entry
			e.RequestID, e.Who, e.Sandbox, e.UserAgent = audit.NewID(), l.key.Who, l.id, string(c.ClientVersion())
			s.audit(e, err)
			err = &ssh.BannerError{Err: err, Message: "forkd: " + err.Error() + "\r\n"}
		}
		return nil, err
	}
	server, channels, requests, err := ssh.NewServerConn(conn, &config)
	if err == nil {
		defer drain(server, channels, requests)
	}
	if !late.Stop() && err == nil {
		return
	}
	if !a.leave() { // a newer connection has its place
		s.Counts.SSHLogin("busy")
		return
	}
	if err != nil {
		s.Counts.SSHLogin("refused")
		s.Log.Debug("ssh", "remote", entry.Remote, "error", err)
		if !known {
			s.audit(entry, errRefused)
		}
		return
	}
	login := server.Permissions.ExtraData[loginKey{}].(*login)
	entry.Who, entry.Sandbox, entry.UserAgent = login.key.Who, login.id, string(server.ClientVersion())
	leave, err := s.clients.Enter(owner.FairShare(login.key.Who, s.Limits.Clients))
	if err != nil {
		s.Counts.SSHLogin("busy")
		s.audit(entry, face.ErrTooMany)
		return
	}
	defer leave()
	s.Counts.SSHLogin("ok")
	s.Counts.SSHConnected(1)
	defer s.Counts.SSHConnected(-1)
	s.audit(entry, nil)
	c := &client{s: s, login: login, conn: server, unread: &conn.unread, entry: entry}
	c.serve(ctx, channels, requests)
	if conn.exceeded.Load() {
		s.Log.Warn("ssh: connection ended", "who", entry.Who, "remote", entry.Remote, "error", errUnread)
	}
}

// drain closes a connection and refuses what the client has sent in advance. Otherwise goroutines of
// package ssh would wait for ever until somebody reads it.
func drain(conn *ssh.ServerConn, channels <-chan ssh.NewChannel, requests <-chan *ssh.Request) {
	conn.Close()
	go ssh.DiscardRequests(requests)
	go func() {
		for c := range channels {
			_ = c.Reject(ssh.ResourceShortage, "") // fails, because the connection is closed
		}
	}()
}

// farewell is the time for messages to clients when the daemon stops.
const farewell = time.Second

// auditMethod is the method in audit lines about SSH.
const auditMethod = "SSH"

// audit writes a line.
func (s *Server) audit(e audit.Entry, err error) {
	e.Status, e.LatencyUS = 200, time.Since(e.Time).Microseconds()
	if err != nil {
		e.Status = face.ProblemOf(err).Status
	}
	if err := s.Face.Audit.Write(e); err != nil {
		s.Log.Error("audit", "error", err)
	}
}

// timedConn is a connection that fails if the client takes nothing for the time stall, or if too much
// of what the client has sent is unread.
type timedConn struct {
	net.Conn
	stall    time.Duration
	unread   unread
	exceeded atomic.Bool // the client has sent more than unread allows
}

func (c *timedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.unread.add(n) {
		c.exceeded.Store(true)
		return 0, errUnread
	}
	return n, err
}

var errUnread = errors.New("the client has sent more than its sessions may leave unread")

func (c *timedConn) Write(p []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(c.stall)) // fails only on a closed connection
	return c.Conn.Write(p)
}
