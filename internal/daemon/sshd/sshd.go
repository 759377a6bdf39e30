// Package sshd serves SSH: shells, commands, files (SFTP) and connections to ports of sandboxes, for
// OpenSSH and the editors that use it. The name of the login is the id of a sandbox. Nothing in the
// sandbox needs to know SSH.
//
// It accepts only public keys, and the holder of a key has the rights of the key's principal
// (package auth). There are no passwords, no forwarding of agents or of X11, and no listeners for
// clients. The package parses no SFTP: a program in the sandbox parses it (internal/guest/sftpd).
//
// The package parses no SSH either, except for the payloads of requests. Each connection has a
// process of its own that parses SSH: forkd-ssh (internal/sshmux), which runs in a jail and with a
// memory limit. This package makes all decisions. So hostile input harms only the process of the
// client that has sent the input. The input takes no memory of the daemon, which reads only the
// bounded messages of the process (package sshproto). A process that does not follow the protocol
// is killed.
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
	"golang.org/x/time/rate"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/pause"
	"github.com/forkd/forkd/internal/proto/sshproto"
)

// Counter counts clients and sessions for metrics.
type Counter interface {
	SSHConnected(change int) // change of the number of clients that have logged in
	SSHLogin(result string)  // "ok", "refused" or "busy"
	SSHSessionBegun()
	// kind is "shell", "exec", "sftp", "forward" or, for a session without a process, "none";
	// outcome is "ok", "client" or "failed".
	SSHSessionEnded(kind, outcome string, took time.Duration)
	SSHOutOfMemory() // the kernel has killed a connection's process because of the memory limits
}

// Limits bound what clients can hold. A zero field takes its default, which is the number in the
// field's comment.
type Limits struct {
	// Maximum numbers of connections that have not logged in: of all peers together (64, or fewer
	// if Process.Memory is small), and of one peer (8; see auth.PeerName).
	Logins, LoginsPerPeer int
	Login                 time.Duration // time limit for the login, and for a session's request for a process; 20 seconds
	Clients               int           // connections that have logged in; one principal may have three quarters; 256
	// Maximum numbers of channels: of all connections together (256), and of one connection (32).
	// One principal may have three quarters of all channels.
	Channels, ChannelsPerClient int
	Keepalive                   time.Duration // interval of checks whether the client still answers; 30 seconds
	Closing                     time.Duration // time for a client to close a channel after the daemon; 10 seconds
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

// maxAttempts bounds the number of keys that a client may try. OpenSSH has the same bound.
const maxAttempts = 6

// Config configures a Server.
type Config struct {
	Face    *face.Face
	Keys    *auth.SSHKeys
	HostKey ssh.AlgorithmSigner
	Process Process
	SFTP    Program
	Counts  Counter
	Limits  Limits
	Log     *slog.Logger
}

// Server serves SSH.
type Server struct {
	Config

	logins            *logins
	clients, channels *gate.Gate
	oomKills          func() uint64 // returns how many processes the kernel has killed because of their memory usage
	lines             *rate.Limiter // limits the log's lines about connections
	leftOut           atomic.Int64  // number of lines that were omitted since the last line
	counted           counted
}

// New returns a Server.
func New(cfg Config) *Server {
	cfg.Limits = cfg.Limits.withDefaults()
	l := cfg.Limits
	return &Server{Config: cfg, logins: &logins{most: cfg.Process.logins(l.Logins), mostOfPeer: l.LoginsPerPeer},
		clients: gate.New(l.Clients), channels: gate.New(l.Channels), oomKills: cfg.Process.Cgroup.OOMKills,
		lines: rate.NewLimiter(linesPerSecond, linesAtOnce)}
}

// Serve accepts connections until ctx ends. Then it ends all of them and closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var conns sync.WaitGroup
	defer conns.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	starts := make(chan struct{}, maxStarts)
	for {
		starts <- struct{}{}
		conn, err := l.Accept()
		if err == nil {
			conns.Go(func() {
				p, err := s.start(conn)
				<-starts
				if err != nil {
					s.log(slog.LevelError, "ssh: a connection is refused", "error", err)
					return
				}
				remote := conn.RemoteAddr().String()
				a := s.logins.enter(p, auth.PeerName(ctx, remote))
				defer a.leave() // runs after end, so a refused connection has its place until its process has exited
				defer s.end(p)
				s.serve(ctx, p, a, remote)
			})
			continue
		}
		<-starts
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("ssh: %w", err)
		}
		_ = pause.For(ctx, acceptPause) // an error such as too many open files
	}
}

// maxStarts bounds the processes that start at the same time. Other connections wait in the
// listener's queue, so strangers can use only a part of the host's CPU time for starts.
const maxStarts = 4

// acceptPause is how long Serve accepts no connections after an error.
const acceptPause = 100 * time.Millisecond

// serve serves one connection.
func (s *Server) serve(ctx context.Context, p *peer, a *attempt, remote string) {
	defer context.AfterFunc(ctx, func() { time.AfterFunc(farewell, func() { p.Close() }) })()
	late := time.AfterFunc(s.Limits.Login, func() { p.Close() })
	defer late.Stop()
	entry := audit.Entry{Time: time.Now(), RequestID: audit.NewID(), Method: audit.SSH, Path: "/login", Remote: remote}
	login, known := s.admit(ctx, p, &entry)
	late.Stop()
	if login == nil && a.has() {
		s.Counts.SSHLogin("refused")
		if !known {
			s.audit(entry, errRefused)
		}
		return
	}
	if !a.leave() { // a newer connection has its place
		s.Counts.SSHLogin("busy")
		return
	}
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
	c := &client{s: s, login: login, peer: p, entry: entry, pongs: make(chan struct{}, 1), open: map[uint32]*channel{}}
	if p.Send(&sshproto.Admit{OK: true}) == nil {
		c.serve(ctx)
	}
}

// admit waits until a client has proved that it may log in, adds the login to entry, and returns
// the login. It does not yet tell the client of its success. If the client does not succeed, the
// login is nil, and the second result is true if the client is a known principal that was refused.
func (s *Server) admit(ctx context.Context, p *peer, entry *audit.Entry) (admitted *login, known bool) {
	for tries := 0; tries < maxAttempts; {
		m, err := p.Receive()
		if err != nil {
			return nil, known
		}
		switch m := m.(type) {
		case *sshproto.Sign:
			if p.sign(ctx, s.HostKey, m) != nil {
				return nil, known
			}
		case *sshproto.Login:
			tries++
			l, err := s.login(m.User, m.Key)
			e := *entry
			if l != nil {
				e.RequestID, e.Who, e.Sandbox, e.UserAgent = audit.NewID(), l.key.Who, l.id, m.Version
			}
			if err == nil {
				*entry = e
				return l, known
			}
			answer := &sshproto.Admit{}
			if l != nil { // each attempt of a known principal has an audit line, like each of its requests
				known = true
				s.audit(e, err)
				answer.Banner = "forkd: " + err.Error() + "\r\n"
			}
			if p.Send(answer) != nil {
				return nil, known
			}
		default:
			return nil, known
		}
	}
	_, _ = p.Receive() // the process tells the client that it has tried too often, and ends
	return nil, known
}

// farewell is the time for messages to clients when the daemon stops.
const farewell = time.Second

// audit writes a line to the audit log.
func (s *Server) audit(e audit.Entry, err error) {
	e.Status, e.LatencyUS = 200, time.Since(e.Time).Microseconds()
	if err != nil {
		e.Status = face.ProblemOf(err).Status
	}
	if err := s.Face.Audit.Write(e); err != nil {
		s.Log.Error("audit", "error", err)
	}
}
