package sshd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/forkd/forkd/internal/host/agentclient"
)

// session is a channel with one process of the guest.
type session struct {
	c       *client
	channel *channel
	env     environment

	mu sync.Mutex
	// +checklocks:mu
	size *agentclient.Size // size of the terminal; nil: the process has no terminal

	running chan struct{} // closed when process is set
	process *agentclient.Process
	input   sync.WaitGroup
}

// Time limits of requests to the guest's agent.
const (
	controlTime = 10 * time.Second // for a signal or a change of the terminal's size
	hangUpTime  = 30 * time.Second // for the signal to a process whose client has left
)

// start describes the process that the client wants a session to run.
type start struct {
	kind string // "shell", "exec" or "sftp"
	args []string
}

// session serves a channel of the type "session".
func (c *client) session(ctx context.Context, id uint32) {
	channel, err := c.accept(id)
	if err != nil {
		return // the connection has ended
	}
	c.s.Counts.SSHSessionBegun()
	begun := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	started := make(chan start, 1)
	s := &session{c: c, channel: channel, running: make(chan struct{})}
	go func() {
		s.requests(ctx, started)
		cancel(errLeft)
	}()
	kind := start{kind: "none"}
	select {
	case kind = <-started:
		err = s.run(ctx, kind)
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-time.After(c.s.Limits.Login):
		err = errNoCommand
		s.say(ctx, err.Error())
	}
	_ = s.send(ctx, channel.CloseWrite) // fails only if the client has left
	c.settle(channel, err)
	s.input.Wait()
	c.ended(kind.kind, "/"+kind.kind, begun, err)
}

// requests() answers the requests of a session until the client closes the channel. It sends the
// first request for a process to the Go channel in the parameter started.
func (s *session) requests(ctx context.Context, started chan<- start) {
	begun := false
	for r := range s.channel.requests {
		ok := false
		switch r.Type {
		case "env":
			ok = !begun && s.env.set(r.Payload)
		case "pty-req":
			ok = !begun && s.setTerminal(r.Payload)
		case "window-change":
			ok = s.resize(ctx, r.Payload)
		case "signal":
			ok = s.signal(ctx, r.Payload)
		case "shell", "exec", "subsystem":
			st, valid := parseStart(r.Type, r.Payload)
			if ok = valid && !begun; ok {
				begun = true
				s.channel.reply(r, true) // before the process can send anything
				started <- st
				continue
			}
		}
		s.channel.reply(r, ok)
	}
}

func (s *session) setTerminal(payload []byte) bool {
	term, size, ok := parsePTY(payload)
	if ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.size = &size
		s.env.setTerm(term)
	}
	return ok
}

// resize changes the size of the terminal, or of the terminal that the process will get.
func (s *session) resize(ctx context.Context, payload []byte) bool {
	size, ok := parseWindow(payload)
	if !ok {
		return false
	}
	s.mu.Lock()
	if s.size != nil {
		s.size = &size
	}
	s.mu.Unlock()
	s.control(ctx, func(ctx context.Context) error { return s.process.Resize(ctx, size) })
	return true
}

func (s *session) signal(ctx context.Context, payload []byte) bool {
	signal, ok := parseSignal(payload)
	if ok {
		s.control(ctx, func(ctx context.Context) error { return s.process.Signal(ctx, signal) })
	}
	return ok
}

// control calls f if the process is running. It ignores the error, because the process may just have
// exited.
func (s *session) control(ctx context.Context, f func(context.Context) error) {
	select {
	case <-s.running:
	default:
		return
	}
	ctx, cancel := context.WithTimeout(ctx, controlTime)
	defer cancel()
	_ = f(ctx)
}

// shellArgs returns the arguments that run a command with the login shell of the account, as sshd
// does. If command is empty, the arguments start a login shell. The account's name is in $USER.
func shellArgs(command string) []string {
	const script = `forkd_shell=
while IFS=: read -r forkd_name _ _ _ _ _ forkd_path; do
	[ "$forkd_name" = "$USER" ] && forkd_shell=$forkd_path && break
done 2>/dev/null </etc/passwd
case $forkd_shell in */nologin | */false) forkd_shell= ;; esac
[ -x "$forkd_shell" ] || forkd_shell=/bin/sh
export SHELL="$forkd_shell"
`
	if command == "" {
		return []string{"/bin/sh", "-c", script + `exec "$SHELL" -l`}
	}
	return []string{"/bin/sh", "-c", script + `exec "$SHELL" -c "$1"`, "sh", command}
}

// run runs a process, and tells the client how it ended.
func (s *session) run(ctx context.Context, st start) error {
	var result agentclient.ExecResult
	err := s.c.use(ctx, func(ctx context.Context, guest *agentclient.Client) (err error) {
		result, err = s.follow(ctx, guest, st)
		return err
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause // err may be only a consequence of cause
	}
	switch {
	case err != nil:
		s.say(ctx, err.Error())
		s.exit(ctx, exitFailed)
	case result.Outcome == agentclient.NotFound:
		s.say(ctx, result.Status)
		s.exit(ctx, exitNotFound)
	case result.Outcome == agentclient.NotExecutable:
		s.say(ctx, result.Status)
		s.exit(ctx, exitNotExecutable)
	case result.Outcome == agentclient.Signaled:
		s.signaled(ctx, result)
	default:
		s.exit(ctx, result.ExitCode)
	}
	return err
}

// Exit codes that do not come from the process. exitFailed is ssh's own code for errors.
const (
	exitFailed        = 255
	exitNotExecutable = 126
	exitNotFound      = 127
)

// follow runs the process until it ends. If the client leaves, follow sends SIGHUP to the process.
func (s *session) follow(ctx context.Context, guest *agentclient.Client, st start) (agentclient.ExecResult, error) {
	s.mu.Lock()
	size := s.size
	s.mu.Unlock()
	if st.kind == "sftp" {
		path, err := s.c.s.SFTP.place(ctx, guest)
		if err != nil {
			return agentclient.ExecResult{}, fmt.Errorf("sftp: %w", err)
		}
		st.args, size = []string{path}, nil
	}
	feeding, cancel := context.WithCancel(ctx)
	defer cancel()
	result, err := guest.ExecStream(ctx, agentclient.ExecRequest{Args: st.args, Env: s.env.vars,
		User: s.c.login.account, OpenStdin: true, Terminal: size,
		Started: func(p *agentclient.Process) error {
			s.process = p
			close(s.running)
			s.input.Go(func() { s.feed(feeding) })
			return nil
		}}, func(from agentclient.Stream, p []byte) error { return s.output(ctx, from, p) })
	detached := errors.Is(err, agentclient.ErrDetached) || errors.Is(context.Cause(ctx), agentclient.ErrDetached)
	if err != nil && detached && s.process != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangUpTime)
		defer cancel()
		_ = s.process.HangUp(ctx) // fails only if the process has exited
	}
	return result, err
}

// inputChunk is the size of one read of the client's input, in bytes.
const inputChunk = 32 << 10

// feed sends the client's input to the process.
func (s *session) feed(ctx context.Context) {
	for buf := make([]byte, inputChunk); ; {
		n, err := s.channel.Read(buf)
		if n > 0 && s.process.Input(ctx, buf[:n]) != nil {
			_, _ = io.Copy(io.Discard, s.channel) // the process reads no more input; the copy ends when the channel ends
			return
		}
		if err != nil {
			_ = s.process.CloseStdin(ctx) // fails only if the process has exited
			return
		}
	}
}

// send calls f, which sends something to the client. If the client takes nothing for too long, its
// connection is closed. When ctx ends, the client has less time.
func (s *session) send(ctx context.Context, f func() error) error {
	late := time.AfterFunc(s.c.s.Face.Limits.Idle, func() { s.c.peer.Close() })
	defer late.Stop()
	sent := make(chan struct{})
	defer close(sent)
	defer context.AfterFunc(ctx, func() {
		select {
		case <-sent:
		case <-time.After(s.c.s.Limits.Closing):
			s.c.peer.Close()
		}
	})()
	if f() != nil {
		return errLeft
	}
	return nil
}

// output sends output to the client.
func (s *session) output(ctx context.Context, from agentclient.Stream, p []byte) error {
	write := s.channel.Write
	if from == agentclient.Stderr {
		write = s.channel.WriteErrors
	}
	return s.send(ctx, func() error {
		_, err := write(p)
		return err
	})
}

// say sends a message of the daemon to the client.
func (s *session) say(ctx context.Context, text string) {
	text = strings.ToValidUTF8(text, "?")
	_ = s.output(ctx, agentclient.Stderr, []byte("forkd: "+text+"\r\n")) // fails only if the client has left
}

// exit tells the client the exit code of the process.
func (s *session) exit(ctx context.Context, code int) {
	s.ended(ctx, "exit-status", ssh.Marshal(struct{ Code uint32 }{uint32(code)}))
}

func (s *session) ended(ctx context.Context, kind string, payload []byte) {
	// This fails only if the client has left.
	_ = s.send(ctx, func() error { return s.channel.Exit(kind, payload) })
}

// signaled() tells the client the signal that ended the process.
func (s *session) signaled(ctx context.Context, r agentclient.ExecResult) {
	s.ended(ctx, "exit-signal", ssh.Marshal(struct {
		Signal   string
		Dumped   bool
		Message  string
		Language string
	}{signalName(r.Signal), false, r.Status, ""}))
}
