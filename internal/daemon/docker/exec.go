package docker

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/tenancy"
)

// Bounds on execs. Execs are kept after their end. So clients can ask for their exit codes.
const (
	maxExecs      = 4096 // execs of all containers
	maxExecsOfOne = 512  // execs of one container
	maxRunning    = 128  // execs of one container that run at the same time

	maxExecSize  = 256 << 10 // bytes of the command of one exec
	maxExecBytes = 32 << 20  // bytes of the commands of all execs
	itemSize     = 128       // bytes that an argument or a variable takes in addition to its text

	// An exec that was not started within this time can be forgotten, to make room for an exec of
	// another client.
	startWithin = 5 * time.Minute
)

// exec is a command that runs in a container in addition to the main process.
type exec struct {
	id  string
	of  *container
	req execRequest // only the fields that cmd does not have
	cmd command

	client string // client that created the exec
	made   time.Time
	count  *gate.Hold // place in execs.count
	bytes  *gate.Hold // bytes of the command in execs.bytes

	proc *process // valid once started is true

	mu      sync.Mutex
	started bool
}

// execRequest is the body of a request to create an exec.
type execRequest struct {
	Cmd                                     words
	Env                                     []string
	User, WorkingDir, DetachKeys            string
	TTY                                     bool `json:"Tty"`
	AttachStdin, AttachStdout, AttachStderr bool
}

// process returns the process of an exec, or nil if the exec has not been started.
func (e *exec) process() *process {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.started {
		return nil
	}
	return e.proc
}

func (e *exec) hasStarted() bool { return e.process() != nil }

// hasEnded reports whether an exec was started and has ended.
func (e *exec) hasEnded() bool {
	p := e.process()
	if p == nil {
		return false
	}
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (s *Server) createExec(w http.ResponseWriter, r *http.Request) error {
	c, err := s.find(r)
	if err != nil {
		return err
	}
	var raw json.RawMessage
	if err := readJSON(w, r, &raw); err != nil {
		return err
	}
	if err := onlyKnown("", raw, "Cmd", "Env", "User", "WorkingDir", "DetachKeys", "Tty", "AttachStdin", "AttachStdout",
		"AttachStderr", "Detach", "ConsoleSize", "Container"); err != nil {
		return err
	}
	var req execRequest
	if len(raw) > 0 {
		if err := decode("request body", raw, &req); err != nil {
			return err
		}
	}
	if len(req.Cmd) == 0 || req.Cmd[0] == "" {
		return face.BadRequest("Cmd: No exec command specified")
	}
	if err := checkDetachKeys(req.DetachKeys); err != nil {
		return err
	}
	if err := wantRunning(&c); err != nil {
		return err
	}
	sp := specOf(c.info)
	user, err := account(req.User)
	if err != nil {
		return err
	}
	cmd := command{args: req.Cmd, env: envOf(req.Env), user: user, dir: req.WorkingDir, stdin: req.AttachStdin}
	if cmd.user == "" {
		cmd.user = sp.Config.User
	}
	if cmd.dir == "" {
		cmd.dir = sp.Config.WorkingDir
	}
	if n := cmd.size(); n > maxExecSize {
		return face.BadRequest("Cmd, Env: the command takes %d bytes: want at most %d, with %d for each argument and "+
			"variable; copy large data with docker cp", n, maxExecSize, itemSize)
	}
	req = execRequest{TTY: req.TTY, AttachStdin: req.AttachStdin, AttachStdout: req.AttachStdout,
		AttachStderr: req.AttachStderr} // cmd has the other fields
	e := &exec{id: newExecID(), of: c.container, req: req, cmd: cmd, client: face.ClientOf(r), made: time.Now()}
	if err := s.execs.add(e); err != nil {
		return err
	}
	return face.WriteJSON(w, r, http.StatusCreated, struct {
		ID string `json:"Id"`
	}{e.id})
}

func newExecID() string {
	var b [32]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func wantRunning(c *found) error {
	switch st := c.status(); st {
	case running:
		return nil
	case paused:
		return conflict("Container %s is paused, unpause the container before exec", containerID(c.id))
	}
	return conflict("container %s is not running", containerID(c.id))
}

// findExec returns the exec that a request names, if the client may see its container.
func (s *Server) findExec(r *http.Request) (*exec, error) {
	id := r.PathValue("id")
	s.execs.mu.Lock()
	e := s.execs.all[id]
	s.execs.mu.Unlock()
	if e == nil || s.view(r).Reach(e.of.id) != nil {
		return nil, noExec(id)
	}
	audit.From(r.Context()).Sandbox = e.of.id
	return e, nil
}

func noExec(id string) error { return notFound("No such exec instance: %.100s", id) }

// startExec starts an exec. If the client does not detach, the connection carries the output and
// the input until the process ends.
func (s *Server) startExec(w http.ResponseWriter, r *http.Request) error {
	e, err := s.findExec(r)
	if err != nil {
		return err
	}
	var req struct {
		Detach, Tty bool
		ConsoleSize []int
	}
	if err := readJSON(w, r, &req); err != nil {
		return err
	}
	var size *agentclient.Size
	if len(req.ConsoleSize) == 2 {
		rows, cols := req.ConsoleSize[0], req.ConsoleSize[1]
		if rows < 0 || cols < 0 || rows > maxSide || cols > maxSide {
			return face.BadRequest("ConsoleSize: %d by %d: want 0 to %d", rows, cols, maxSide)
		}
		size = &agentclient.Size{Cols: uint16(cols), Rows: uint16(rows)}
	}
	leave, err := s.Face.Guests.Enter(face.ClientOf(r), e.of.id) // the place is held as long as the process runs
	if err != nil {
		return err
	}
	out := newOutput(0)
	p, err := e.start(s, out, s.view(r), size)
	if err != nil {
		leave()
		return err
	}
	if req.Detach {
		if err := s.begin(p, e.cmd, leave); err != nil {
			return err
		}
		w.WriteHeader(http.StatusOK)
		return nil
	}
	_, reader := out.read()
	defer reader.close()
	t, err := s.hijack(w, r, e.req.TTY)
	if err != nil {
		p.abandon(err)
		leave()
		return err
	}
	defer t.conn.Close()
	s.carry(e, p, t, reader, leave)
	return nil
}

// maxSide is the maximum number of rows and of columns of a terminal.
const maxSide = 1<<16 - 1

// start marks an exec as started, and returns its process. The caller must call begin or abandon
// for this process.
func (e *exec) start(s *Server, out *output, view *tenancy.View, size *agentclient.Size) (*process, error) {
	now := 0
	for _, other := range s.execs.ofContainer(e.of.id) {
		if p := other.process(); p != nil && !other.hasEnded() {
			now++
		}
	}
	if now >= maxRunning {
		return nil, face.NewError(http.StatusTooManyRequests, "too many execs run in this container: end some of them")
	}
	s.execs.mu.Lock() // so that an exec is not started while it is forgotten
	defer s.execs.mu.Unlock()
	if s.execs.all[e.id] != e {
		return nil, noExec(e.id)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.started {
		return nil, conflict("Error: Exec command %s is already running", e.id)
	}
	// When the container's status becomes exited, the code that ends the main process kills all
	// started execs. Check the status while e.mu is locked. Without the lock, this exec could start
	// after the other execs were killed.
	if st, _, _ := e.of.now(); st.Status == exited {
		return nil, conflict("container %s is not running", containerID(e.of.id))
	}
	e.started = true
	e.proc = newProcess(e.of.id, view, out, e.req.TTY, size)
	return e.proc, nil
}

// carry runs an exec over a client's connection. If the client leaves, the process continues.
func (s *Server) carry(e *exec, p *process, t *stream, reader *reader, ended func()) {
	ctx, cancel := t.whileConnected(s.life)
	defer cancel()
	if e.req.AttachStdin {
		go func() {
			select {
			case <-p.running:
			case <-ctx.Done():
				return
			}
			if errors.Is(t.input(ctx, p, true), errDetached) {
				cancel()
			}
		}()
	}
	wants := map[agentclient.Stream]bool{agentclient.Stdout: e.req.AttachStdout || e.req.TTY,
		agentclient.Stderr: e.req.AttachStderr}
	failed := make(chan error, 1)
	go func() { failed <- s.begin(p, e.cmd, ended) }()
	t.follow(ctx, reader, wants)
	select {
	case err := <-failed:
		if err != nil && !errors.Is(err, agentclient.ErrDetached) {
			text := "OCI runtime exec failed: " + strings.TrimSpace(err.Error()) + "\r\n"
			_ = t.output(agentclient.Stdout, []byte(text)) // fails only if the client has left
		}
	case <-ctx.Done():
	}
}

// abandon ends a process for which begin was not called.
func (p *process) abandon(err error) {
	p.finish(exitNotExecutable, err)
	close(p.ended)
}

func (s *Server) resizeExec(w http.ResponseWriter, r *http.Request) error {
	e, err := s.findExec(r)
	if err != nil {
		return err
	}
	leave, err := s.Face.Control.Enter(face.ClientOf(r), e.of.id) // counted by sandbox, as in /v1
	if err != nil {
		return err
	}
	defer leave()
	size, err := sizeQuery(r)
	if err != nil {
		return err
	}
	p := e.process()
	if p == nil {
		return conflict("exec %s is not running", e.id)
	}
	if err := p.resize(r.Context(), size); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// execInspection describes an exec.
type execInspection struct {
	ID            string
	Running       bool
	ExitCode      *int // nil: the exec has not ended
	ProcessConfig struct {
		TTY        bool     `json:"tty"`
		Entrypoint string   `json:"entrypoint"`
		Arguments  []string `json:"arguments"`
		Privileged bool     `json:"privileged"`
		User       string   `json:"user,omitempty"`
	}
	OpenStdin, OpenStderr, OpenStdout, CanRemove bool
	ContainerID                                  string
	DetachKeys                                   string
	Pid                                          int
}

func (s *Server) inspectExec(w http.ResponseWriter, r *http.Request) error {
	e, err := s.findExec(r)
	if err != nil {
		return err
	}
	out := execInspection{ID: e.id, OpenStdin: e.req.AttachStdin, OpenStdout: e.req.AttachStdout,
		OpenStderr: e.req.AttachStderr, ContainerID: containerID(e.of.id)}
	out.ProcessConfig.TTY, out.ProcessConfig.User = e.req.TTY, e.cmd.user
	out.ProcessConfig.Entrypoint, out.ProcessConfig.Arguments = e.cmd.args[0], append([]string{}, e.cmd.args[1:]...)
	if p := e.process(); p != nil {
		p.mu.Lock()
		out.Pid = int(p.pid)
		p.mu.Unlock()
		if out.Running = !e.hasEnded(); !out.Running {
			code, _ := p.end()
			out.ExitCode = &code
		}
	}
	return face.WriteJSON(w, r, http.StatusOK, out)
}
