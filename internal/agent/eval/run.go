package eval

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"syscall"
	"time"
)

// keepaliveInterval is how long a stream may be silent, as the protocol's clients expect it.
const keepaliveInterval = 5 * time.Second

// interruptInterval is how soon code that goes on is interrupted again. One signal may be lost: os.system ignores it
// before its command is there to receive it, and code may catch it.
const interruptInterval = time.Second

// runRequest is one line to the driver's code channel.
type runRequest struct {
	Code string            `json:"code"`
	Env  map[string]string `json:"env,omitempty"`
	Repr bool              `json:"repr"`
}

// message is a line of the /execute stream that the agent itself makes; the others come from the driver as they are.
type message struct {
	Type      string `json:"type"`
	Count     int    `json:"execution_count,omitempty"`
	Text      string `json:"text,omitempty"`
	Timestamp int64  `json:"timestamp,omitempty"` // ns since 1970
	Name      string `json:"name,omitempty"`
	Value     string `json:"value,omitempty"`
	Traceback string `json:"traceback,omitempty"`
}

// stream passes lines to a client until it is detached. It may be used concurrently.
type stream struct {
	mu       sync.Mutex
	write    func(line []byte) // nil once detached
	activity bool              // a line was written since the last keepalive tick
}

func (s *stream) line(line []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.activity = true
	if s.write != nil {
		s.write(line)
	}
}

func (s *stream) send(m message) {
	line, err := json.Marshal(m)
	if err == nil { // strings and numbers always encode
		s.line(line)
	}
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

// execute runs code in a context and passes what it says to write, line by line without newlines. It waits for its
// turn first. When ctx ends, the code is interrupted and execute returns at once; the context is free again when the
// code has really ended. An error means that nothing was written.
func (s *Server) execute(ctx context.Context, c *session, req runRequest, write func(line []byte)) error {
	select {
	case <-c.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	interp, err := c.awake(s.cfg)
	var line []byte
	if err == nil {
		line, err = json.Marshal(req)
	}
	if err != nil {
		c.turn <- struct{}{}
		return err
	}
	out := &stream{write: write}
	code := &running{ended: make(chan struct{})}
	go func() {
		interp.runCode(append(line, '\n'), out)
		code.end(c)
	}()
	tick := time.NewTicker(keepaliveInterval)
	defer tick.Stop()
	for {
		select {
		case <-code.ended:
			return nil
		case <-tick.C:
			out.keepalive()
		case <-ctx.Done():
			out.detach()
			go code.interrupt(interp)
			return nil
		}
	}
}

// running is code that has not given back its turn.
type running struct {
	mu    sync.Mutex
	ended chan struct{} // closed under mu together with giving back the turn: no interrupt can hit the next call
}

func (r *running) end(c *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.turn <- struct{}{}
	close(r.ended)
}

// interrupt signals the interpreter's group, as a terminal does, until the code ends: while os.system waits for a
// command, only the command ends it. Code that ends just now is no matter, for the driver ignores the signal between
// calls.
func (r *running) interrupt(interp *interpreter) {
	again := time.NewTicker(interruptInterval)
	defer again.Stop()
	for {
		r.mu.Lock()
		select {
		case <-r.ended:
			r.mu.Unlock()
			return
		default:
			_ = interp.child.SignalGroup(syscall.SIGINT)
		}
		r.mu.Unlock()
		select {
		case <-r.ended:
			return
		case <-again.C:
		}
	}
}

// runCode sends one request and relays its messages until the code has ended or the interpreter has died; either way
// the stream gets its end.
func (i *interpreter) runCode(line []byte, out *stream) {
	// Not the driver's message: the code's output, which comes another way, could overtake it.
	i.executions++
	out.send(message{Type: "number_of_executions", Count: i.executions})
	i.output.attach(out.output)
	defer i.output.attach(nil)
	_, err := i.code.Write(line)
	for err == nil {
		var reply []byte
		if reply, err = i.receive(); err != nil || len(reply) == 0 {
			continue
		}
		if reply[0] == 'D' {
			i.output.drain()
			out.send(message{Type: "end_of_execution"})
			return
		}
		out.line(reply[1:])
	}
	// A broken channel is of no use even if the process still lives.
	_ = i.child.SignalGroup(syscall.SIGKILL)
	status := i.child.Status()
	i.output.drain()
	out.send(message{
		Type: "error", Name: "UnexpectedEndOfExecution",
		Value: fmt.Sprintf("%v: %s; its state is lost, the next call starts a new one", errDied, describe(status)),
	})
	out.send(message{Type: "end_of_execution"})
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "signal: " + status.Signal().String()
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}
