package eval

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/proto/agentproto"
)

// keepaliveInterval is how long a stream may be without messages before it sends a keepalive.
// Clients of the protocol expect these keepalives.
const keepaliveInterval = 5 * time.Second

// interruptInterval is the time between two interrupts of code that does not end. One signal may
// have no effect: code can catch it, and the shell that os.system starts ignores it until the
// shell's command has started.
const interruptInterval = time.Second

// interruptGrace is how long code may take to end after an interrupt. After this time the
// interpreter is killed, because the code would block every later call. Code can catch the
// interrupt, and a loop within one C function never receives it.
const interruptGrace = agentproto.EvalGrace

// abandonedGrace replaces interruptGrace for code whose client has disconnected. It is longer,
// because no client waits for the code to end. In the child of a fork, code that was running at the
// fork has lost its client, and takes longer because a child is busy in its first seconds.
const abandonedGrace = 30 * time.Second

// busyWait is how long a call that has a timeout waits for its turn. Other calls wait until their
// clients disconnect.
const busyWait = 10 * time.Second

// runRequest is one line on the driver's code channel.
type runRequest struct {
	ID   int               `json:"id"` // number of the request; the driver's answers begin with it
	Code string            `json:"code"`
	Env  map[string]string `json:"env,omitempty"`
	Repr bool              `json:"repr"`
	Late controlRequest    `json:"late,omitzero"` // request that the driver has missed, as it has no control thread
}

// message is a line of the /execute stream that the agent itself writes. Other lines come from the
// driver unchanged.
type message struct {
	Type      string `json:"type"`
	Count     int    `json:"execution_count,omitempty"`
	Text      string `json:"text,omitempty"`
	Timestamp int64  `json:"timestamp,omitempty"` // nanoseconds since 1970
	Name      string `json:"name,omitempty"`
	Value     string `json:"value,omitempty"`
	Traceback string `json:"traceback,omitempty"`
	// whether the interpreter was killed; only set with the type "timeout", which forkd adds to the
	// protocol
	Restarted bool `json:"restarted,omitempty"`
}

// stream passes lines to a client until the method detach is called. It may be used concurrently.
type stream struct {
	mu       sync.Mutex
	write    func(line []byte) // nil after detach
	activity bool              // a line was written since the last tick of the keepalive timer
}

// line sends a line and reports whether the client is still attached.
func (s *stream) line(line []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.activity = true
	if s.write == nil {
		return false
	}
	s.write(line)
	return true
}

func (s *stream) send(m message) bool {
	line, err := json.Marshal(m)
	return err == nil && s.line(line) // encoding strings and numbers cannot fail
}

func (s *stream) output(name, text string) {
	s.send(message{Type: name, Text: text, Timestamp: time.Now().UnixNano()})
}

func (s *stream) keepalive() {
	s.mu.Lock()
	idle := !s.activity
	s.activity = false
	s.mu.Unlock()
	if idle {
		s.send(message{Type: "keepalive"})
	}
}

// detach stops the stream. When it returns, no line is being written, and no line will be written.
func (s *stream) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.write = nil
}

// busyError says that the context is running the code of another call.
type busyError struct {
	context string
	running time.Duration
}

func (e *busyError) Error() string {
	return fmt.Sprintf("context %s is busy with an earlier call (started %v ago); interrupt or restart it, or call again later",
		e.context, e.running.Round(time.Second))
}

// takeTurn waits until no other code runs in the context.
func (c *session) takeTurn(ctx context.Context, timeout time.Duration) error {
	var late <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(min(timeout, busyWait))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-c.turn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-late:
		c.mu.Lock()
		defer c.mu.Unlock()
		busy := &busyError{context: c.ID}
		if c.running != nil {
			busy.running = time.Since(c.running.started)
		}
		return busy
	}
}

// execute runs code in a context. It waits for its turn, and calls write(line) for each line of the
// output, without its newline.
//
// After the timeout, execute interrupts the code, kills the interpreter if the code does not end,
// and tells the client the outcome. A timeout of 0 means no limit. If ctx ends, execute returns at
// once, while the code is interrupted or killed in the background. The context is free again when
// the code has really ended. execute returns an error only if nothing was written.
func (s *Server) execute(ctx context.Context, c *session, req runRequest, timeout time.Duration,
	write func(line []byte)) error {
	if err := c.takeTurn(ctx, timeout); err != nil {
		return err
	}
	interp, err := c.awake(s.cfg)
	if err != nil {
		c.turn <- struct{}{}
		return err
	}
	req.ID = interp.executions + 1
	c.mu.Lock()
	req.Late = interp.late // empty if the driver has a control thread: then catchUp has already sent the request
	line, err := interp.backend.encode(req)
	if err != nil {
		c.mu.Unlock()
		c.turn <- struct{}{}
		return err
	}
	interp.executions, interp.late = req.ID, controlRequest{}
	c.mu.Unlock()
	out := &stream{write: write}
	code := &running{interp: interp, started: time.Now(), ended: make(chan struct{})}
	c.mu.Lock()
	c.running = code
	note := c.note
	c.note = ""
	c.mu.Unlock()
	said := make(chan struct{})
	go func() {
		interp.runCode(line, out, note, code)
		// Release the turn before the last line is sent. So a client that has read the last line
		// finds the context free.
		code.end(c)
		out.send(message{Type: "end_of_execution"})
		close(said)
	}()
	tick := time.NewTicker(keepaliveInterval)
	defer tick.Stop()
	var late <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		late = timer.C
	}
	for {
		select {
		case <-said:
			return nil
		case <-tick.C:
			out.keepalive()
		case <-late:
			code.late.Store(true)
			go code.stop(s.grace)
		case <-ctx.Done():
			out.detach()
			if !code.late.Load() {
				go code.stop(s.abandonedGrace)
			}
			return nil
		}
	}
}

// running is code that has its context's turn.
type running struct {
	interp  *interpreter
	started time.Time
	late    atomic.Bool // set when the code's timeout has passed

	mu    sync.Mutex
	ended chan struct{} // closed under mu when the turn is released, so that no interrupt hits the next call
}

func (r *running) end(c *session) {
	c.mu.Lock()
	c.running = nil
	c.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	c.turn <- struct{}{}
	close(r.ended)
}

// signal sends a signal to the interpreter's process group, as a terminal does. So a command that
// os.system has started also receives the signal. The method returns false if the code has already
// ended. If the code ends at the same moment, the signal does no harm, because the driver ignores
// interrupts between calls.
func (r *running) signal(sig syscall.Signal) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.ended:
		return false
	default:
		if sig == syscall.SIGKILL {
			r.interp.killed.Store(true)
		}
		_ = r.interp.child.SignalGroup(sig)
		return true
	}
}

// stop interrupts the code repeatedly until the code ends. If the code has not ended after the time
// in grace, stop kills the interpreter.
func (r *running) stop(grace time.Duration) {
	again := time.NewTicker(interruptInterval)
	defer again.Stop()
	over := time.NewTimer(grace)
	defer over.Stop()
	for r.signal(syscall.SIGINT) {
		select {
		case <-r.ended:
			return
		case <-over.C:
			r.signal(syscall.SIGKILL)
			return
		case <-again.C:
		}
	}
}

// runCode sends one request, and relays the driver's messages until the code has ended or the
// interpreter has died. If the text note is not empty, runCode sends it first, as if the code had
// written it to stderr.
func (i *interpreter) runCode(line []byte, out *stream, note string, code *running) {
	// The agent itself sends this message, so that it arrives before the output of the code. If the
	// driver sent it, it could arrive after the output, because the two have separate channels.
	out.send(message{Type: "number_of_executions", Count: i.executions})
	if note != "" {
		out.output("stderr", note)
	}
	i.output.attach(out.output)
	defer i.output.attach(nil)
	defer func() {
		i.output.drain()
		if code.late.Load() {
			out.send(message{Type: "timeout", Restarted: i.killed.Load()})
		}
	}()
	finished := make(chan struct{})
	defer close(finished)
	go i.endReplies(finished)
	prefix, end := fmt.Sprintf("M%d ", i.executions), fmt.Sprintf("D%d", i.executions)
	_, err := i.code.Write(line)
	for err == nil {
		var reply []byte
		if reply, err = i.receive(); err != nil {
			break
		}
		if string(reply) == end {
			return
		}
		// A message without the prefix comes from a thread of an earlier call, and is dropped.
		if text, ok := bytes.CutPrefix(reply, []byte(prefix)); ok {
			out.line(text)
		}
	}
	// The code channel is broken, so the interpreter is useless even if its process still runs.
	_ = i.child.SignalGroup(syscall.SIGKILL)
	i.child.Status()
	i.output.drain()
	value := fmt.Sprintf("%v; its state is lost, the next call starts a new one", i.death())
	i.told = out.send(message{Type: "error", Name: "UnexpectedEndOfExecution", Value: value, Traceback: value})
}

// lastReplies is how long answers are read after the process has ended. The process has written all
// answers before its end.
const lastReplies = time.Second

// endReplies waits until the process has ended, and then sets a deadline, so that receive soon
// fails. Without the deadline, child processes could keep the socket of the ended process open, and
// receive would wait for them.
func (i *interpreter) endReplies(finished <-chan struct{}) {
	select {
	case <-i.child.Done():
		i.code.SetReadDeadline(time.Now().Add(lastReplies))
	case <-finished:
	}
}

// death returns an error that says how the process ended.
func (i *interpreter) death() error {
	if i.killed.Load() {
		return fmt.Errorf("%w: it was killed because its code did not end when it was interrupted", errDied)
	}
	return fmt.Errorf("%w: %s", errDied, describe(i.child.Status()))
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "signal: " + status.Signal().String()
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}
