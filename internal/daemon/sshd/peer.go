package sshd

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/time/rate"

	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/process"
	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/proto/sshproto"
)

// Process says how to start the processes that speak SSH, one for each connection.
type Process struct {
	Bin    string        // path of forkd-ssh
	Jail   *jail.Starter // starts the processes
	Cgroup *cgroup.Leaf  // bounds the memory of all processes together; nil: no bound
	Memory uint64        // memory bound of Cgroup, in bytes; 0: no bound
}

// strangerBytes is the maximum memory of a process before the login, in bytes. It includes the
// kernel's memory for the process. (forkd-ssh limits itself to 32 MiB.)
const strangerBytes = 40 << 20

// logins() returns how many processes may wait for a login. These processes take at most half of
// the memory of all processes, so strangers cannot make the kernel kill the processes of
// connections that have logged in.
func (p *Process) logins(most int) int {
	if p.Memory == 0 {
		return most
	}
	return max(1, int(min(uint64(most), p.Memory/2/strangerBytes)))
}

// processName is the name of a connection's process.
const processName = "forkd-ssh"

// logBytes bounds the standard error of a process, in bytes.
const logBytes = 256 << 10

// oomScore makes the kernel's OOM killer choose these processes before sandboxes and the daemon.
const oomScore = 900

// startTime bounds the time until a process is in its jail.
const startTime = 20 * time.Second

// peer is the process that speaks SSH with a client.
type peer struct {
	*sshproto.Control
	process *process.Process
	signs   *rate.Limiter
}

// Rate of signatures by the host key for one process, per second, and the burst. A client needs one
// signature for the login, and one for each gigabyte or hour. More signatures have to wait.
const (
	signsPerSecond = 1
	signsAtOnce    = 4
)

// start starts the process of a connection and passes the connection to it. The daemon closes its
// own descriptor of the connection.
func (s *Server) start(conn net.Conn) (*peer, error) {
	defer conn.Close()
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil, fmt.Errorf("a connection of the type %T", conn)
	}
	file, err := tcp.File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	control, theirs, err := sshproto.NewControl()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	place, err := s.Process.Cgroup.Open()
	if err != nil {
		return nil, errors.Join(err, control.Close())
	}
	defer place.Close() // Close of a nil file only returns an error
	started, err := process.Start(process.Spec{Name: processName, Bin: s.Process.Bin, Env: []string{"GOMAXPROCS=1"},
		Files: []*os.File{theirs, file}, LogBytes: logBytes, Cgroup: place, Jail: s.Process.Jail})
	if err != nil {
		return nil, errors.Join(err, control.Close())
	}
	_ = started.SetOOMScore(oomScore) // if this fails, the kernel chooses by size only
	_ = theirs.Close()                // otherwise the daemon would not notice the process's end
	p := &peer{Control: control, process: started, signs: rate.NewLimiter(signsPerSecond, signsAtOnce)}
	late := time.AfterFunc(startTime, func() { p.Close() })
	defer late.Stop()
	if err = p.Send(&sshproto.Setup{HostKey: s.HostKey.PublicKey().Marshal()}); err == nil {
		var m sshproto.Message
		if m, err = p.Receive(); err == nil {
			if _, ok := m.(*sshproto.Ready); !ok {
				err = fmt.Errorf("it sends %T first", m)
			}
		}
	}
	if err != nil {
		s.end(p)
		return nil, fmt.Errorf("start %s: %w", processName, err)
	}
	return p, nil
}

// Close shuts down the control socket, and then kills the process. An attacker who has taken over
// the process may have sent the process's descriptor of this socket in a message. That descriptor
// would keep the socket open after the process has exited.
func (p *peer) Close() error {
	p.Control.Shutdown()
	return p.process.Kill()
}

// end waits until the process of a closed connection has exited, and logs a failure of the process.
func (s *Server) end(p *peer) {
	_ = p.Control.Close()
	late := time.AfterFunc(endTime, func() { p.Close() })
	err := p.process.Wait()
	late.Stop()
	if n := s.killed(); n > 0 {
		s.log(slog.LevelInfo, "ssh: the kernel has killed processes, because all connections need too much memory",
			"processes", n)
	}
	said := p.process.Said()
	switch {
	case err != nil:
		s.log(slog.LevelError, "ssh: the process of a connection cannot be waited for", "error", err)
	case strings.Contains(said, "out of memory"), strings.Contains(said, "cannot allocate memory"):
		s.Counts.SSHOutOfMemory()
		s.log(slog.LevelInfo, "ssh: a connection has ended, because its client needs too much memory")
	case said != "":
		s.log(slog.LevelError, "ssh: the process of a connection has failed", "output",
			strings.ToValidUTF8(said[:min(len(said), maxLogged)], "?"))
	}
}

// Bounds on the log's lines about connections: the number of lines per second, the burst after a
// time without lines, and the bytes of a process's output in one line. Clients that have not logged
// in can cause such lines.
const (
	linesPerSecond = 2
	linesAtOnce    = 50
	maxLogged      = 4096
)

// log writes a line about a connection. If there were too many lines, it omits this line.
func (s *Server) log(level slog.Level, msg string, args ...any) {
	if !s.lines.Allow() {
		s.leftOut.Add(1)
		return
	}
	s.Log.Log(context.Background(), level, msg, append(args, "left_out", s.leftOut.Swap(0))...)
}

// killed() returns how many processes the kernel has killed for their memory usage since the
// previous call, and counts these processes. Such processes leave no output.
func (s *Server) killed() uint64 {
	killed := s.counted.more(s.oomKills)
	for range killed {
		s.Counts.SSHOutOfMemory()
	}
	return killed
}

// counted remembers how much of a growing number has been counted.
type counted struct {
	mu sync.Mutex
	// +checklocks:mu
	seen uint64
}

// more() calls number(), and returns how much its result has grown since the previous call.
func (c *counted) more(number func() uint64) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := number()
	grown := n - min(n, c.seen)
	c.seen = n
	return grown
}

// endTime is how long a process may run after its connection has been closed.
const endTime = time.Second

// sign signs the hash of a key exchange for a process. It refuses everything that cannot be such a
// hash, so the host key signs nothing else.
func (p *peer) sign(ctx context.Context, key ssh.AlgorithmSigner, m *sshproto.Sign) error {
	switch len(m.Hash) {
	case 32, 48, 64: // SHA-256, SHA-384, SHA-512
	default:
		return fmt.Errorf("a hash of %d bytes", len(m.Hash))
	}
	if bytes.HasPrefix(m.Hash, []byte("SSHSIG")) { // the text that ssh-keygen -Y signs begins like this (PROTOCOL.sshsig)
		return errors.New("no hash, but the text of a signature")
	}
	if err := p.signs.Wait(ctx); err != nil {
		return err
	}
	signature, err := key.SignWithAlgorithm(rand.Reader, m.Hash, m.Algorithm)
	if err != nil {
		return err
	}
	return p.Send(&sshproto.Signature{Signature: ssh.Marshal(signature)})
}
