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

// keepaliveInterval is the longest silence of a stream that the protocol's clients expect.
const keepaliveInterval = 5 * time.Second

// interruptInterval is the interval of interrupts for code that does not end. One signal may be
// lost: os.system ignores it before its command can receive it, and code may catch it.
const interruptInterval = time.Second

// interruptGrace is how long interrupted code may take to end. Then its interpreter is killed,
// because it would block every later call: code can catch the interrupt, and a loop within one C
// function never sees it.
const interruptGrace = agentproto.EvalGrace

// abandonedGrace is interruptGrace for code whose client has left. It is longer, because no client
// waits for the answer. In a fork, code that was running in the source has no client, and a child
// has much to do in its first seconds.
const abandonedGrace = 30 * time.Second

// busyWait is how long a call with a timeout waits for its turn. Other calls wait as long as their
// clients do, as in a notebook.
const busyWait = 10 * time.Second

// runRequest is one line to the driver's code channel.
type runRequest struct {
	ID   int               `json:"id"` // of the answers
	Code string            `json:"code"`
	Env  map[string]string `json:"env,omitempty"`
	Repr bool              `json:"repr"`
	Late controlRequest    `json:"late,omitzero"` // request that a driver without a control thread has missed
}

// message is a line of the /execute stream that the agent itself makes; other lines come unchanged
// from the driver.
type message struct {
	Type      string `json:"type"`
	Count     int    `json:"execution_count,omitempty"`
	Text      string `json:"text,omitempty"`
	Timestamp int64  `json:"timestamp,omitempty"` // ns since 1970
	Name      string `json:"name,omitempty"`
	Value     string `json:"value,omitempty"`
	Traceback string `json:"traceback,omitempty"`
	Restarted bool   `json:"restarted,omitempty"` // of type timeout, which is forkd's own: the interpreter was killed
}

// stream passes lines to a client until it is detached. It may be used concurrently.
type stream struct {
	mu       sync.Mutex
	write    func(line []byte) // nil once detached
	activity bool              // a line was written since the last keepalive tick
}

// line passes a line on and reports whether the client is still attached.
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
	return err == nil && s.line(line) // strings and numbers always encode
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

// detach returns when no line is being written and none will be.
func (s *stream) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.write = nil
}

// busyError refuses a call whose context is running the code of another call.
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

// execute runs code in a context and passes its output to write, line by line without newlines. It
// first waits for its turn. When timeout (0: none) has passed, it interrupts the code, and kills
// the interpreter if the code does not end; the client receives the outcome. When ctx ends, the
// same happens and execute returns at once. The context becomes free when the code has really
// ended. An error means that nothing was written.
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
	req.Late = interp.late // empty if the driver listens
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
		// The last line is sent last, so that a client that has read it finds the context free.
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

// running is code that holds its turn.
type running struct {
	interp  *interpreter
	started time.Time
	late    atomic.Bool // the code's timeout has passed

	mu    sync.Mutex
	ended chan struct{} // closed under mu together with releasing the turn, so that no interrupt can hit the next call
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

// signal signals the interpreter's group, as a terminal does, and reports whether the code has not
// ended. While os.system waits for a command, only the command's end ends it. Code that is just
// ending does not matter, because the driver ignores interrupts between calls.
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

// stop interrupts the code until it ends, and kills its interpreter after the grace time.
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

// runCode sends one request and relays its messages until the code has ended or the interpreter has
// died. It first sends note as if the code had written it.
func (i *interpreter) runCode(line []byte, out *stream, note string, code *running) {
	// The driver does not send this message, because the code's output could overtake it on its own
	// channel.
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
		// Output displayed by a thread of an earlier call is dropped.
		if text, ok := bytes.CutPrefix(reply, []byte(prefix)); ok {
			out.line(text)
		}
	}
	// A broken channel is useless even if the process still lives.
	_ = i.child.SignalGroup(syscall.SIGKILL)
	i.child.Status()
	i.output.drain()
	value := fmt.Sprintf("%v; its state is lost, the next call starts a new one", i.death())
	i.told = out.send(message{Type: "error", Name: "UnexpectedEndOfExecution", Value: value, Traceback: value})
}

// lastReplies is how long answers are read after the process's end; all of them have been written
// by then.
const lastReplies = time.Second

// endReplies makes receive fail soon after the process has ended, even if copies of it hold its
// socket open.
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
