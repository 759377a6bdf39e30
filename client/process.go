package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"

	v1 "github.com/forkd/forkd/api/v1"
)

// Messages of processes.
type (
	TTYSize     = v1.TTYSize
	ProcessInfo = v1.Process
)

// ErrDetached is returned by Wait after Detach, and by ExecStream after DetachProcess. The process
// is still running.
var ErrDetached = errors.New("detached from the process, which goes on")

// ErrStdinClosed is returned by Write if the process has closed its stdin, or has exited before it
// read all of the input.
var ErrStdinClosed = errors.New("the process takes no more input")

// Process is a process of a sandbox, started by StartExec or found by Attach. The methods of
// Process may be called concurrently, and make progress only while Wait runs.
type Process struct {
	PID uint32

	ws  *websocket.Conn
	ctx context.Context

	mu     sync.Mutex // serializes writes to the connection
	sent   int64
	taken  chan int64 // number of input bytes that the process has read so far; only the newest value counts
	closed chan struct{}
	done   chan struct{}
	left   error // why Wait returned before the end of the process, or nil; valid when done is closed
}

// StartExec runs a command and lets the caller send input and signals to it. The command is killed
// when ctx ends, when the connection breaks, or after req.TimeoutSecs (0: never). The fields Stdin
// and Detach of req must be unset.
func (c *Client) StartExec(ctx context.Context, id string, req ExecRequest) (*Process, error) {
	if err := checkExec(req); err != nil {
		return nil, err
	}
	return c.follow(ctx, sandboxPath(id, "/exec"), &v1.ExecInput{Start: &req})
}

// Attach connects to a running process and receives its later output. When ctx ends, the process
// keeps running.
func (c *Client) Attach(ctx context.Context, id string, pid uint32) (*Process, error) {
	return c.follow(ctx, processPath(id, pid, "/attach"), nil)
}

// follow opens a WebSocket and waits until the process runs.
func (c *Client) follow(ctx context.Context, path string, first *v1.ExecInput) (*Process, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	dialing, sent := traced(ctx)
	ws, resp, err := websocket.Dial(dialing, c.base+path, &websocket.DialOptions{HTTPClient: c.upgrades,
		HTTPHeader: c.signed(http.Header{})})
	if err != nil {
		if resp != nil && resp.StatusCode >= http.StatusMultipleChoices {
			return nil, apiError(resp)
		}
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, &ConnectionError{Address: c.address, Sent: sent.Load(), Err: err}
	}
	ws.SetReadLimit(maxAnswer)
	p := &Process{ws: ws, ctx: ctx, taken: make(chan int64, 1), closed: make(chan struct{}), done: make(chan struct{})}
	if first != nil {
		err = p.send(*first)
	}
	var e v1.ExecEvent
	if err == nil {
		_, e, err = p.receive()
	}
	switch {
	case err != nil:
	case e.Started != nil:
		p.PID = e.Started.PID
		return p, nil
	case e.End != nil: // the command could not be started
		err = &NotStartedError{*e.End}
	case e.Error != "":
		err = &Error{Status: e.Status, Message: e.Error, Code: e.Code}
	default:
		err = errors.New("exec: the stream does not begin with the command's start")
	}
	ws.CloseNow()
	return nil, err
}

// NotStartedError says why a command could not be started.
type NotStartedError struct{ ExecEnd }

func (e *NotStartedError) Error() string { return e.ExecEnd.Error }

// receive returns the next message: output or an event. The first byte of the output names the
// stream.
func (p *Process) receive() (output []byte, e v1.ExecEvent, err error) {
	kind, message, err := p.ws.Read(p.ctx)
	switch {
	case err != nil && p.ctx.Err() != nil:
		return nil, e, p.ctx.Err()
	case err != nil:
		return nil, e, broken(p.ctx, "exec", p.PID, err)
	case kind == websocket.MessageText:
		err = json.Unmarshal(message, &e)
	case len(message) > 0:
		output = message
	}
	return output, e, err
}

// Wait writes the output of the process as it arrives and returns how the process ended. If a write
// fails, Wait disconnects from the process and returns the error. Disconnecting kills a process
// that StartExec started, but not a process that Attach found. Wait may be called only once.
func (p *Process) Wait(stdout, stderr io.Writer) (end ExecEnd, err error) {
	defer p.ws.CloseNow()
	defer func() {
		p.left = err
		close(p.done)
	}()
	closed := false
	for {
		output, e, err := p.receive()
		if err != nil {
			return end, err
		}
		switch {
		case output != nil && output[0] == v1.SocketStdout:
			_, err = stdout.Write(output[1:])
		case output != nil:
			_, err = stderr.Write(output[1:])
		case e.End != nil:
			_ = p.ws.Close(websocket.StatusNormalClosure, "")
			return *e.End, nil
		case e.Detached:
			_ = p.ws.Close(websocket.StatusNormalClosure, "")
			return end, ErrDetached
		case e.Error != "":
			return end, &Error{Status: e.Status, Message: e.Error, Code: e.Code}
		case e.StdinTaken > 0:
			select {
			case <-p.taken: // drops an older value
			default:
			}
			p.taken <- e.StdinTaken
		case e.StdinClosed && !closed:
			close(p.closed)
			closed = true
		}
		if err != nil {
			return end, err
		}
	}
}

// maxUntaken bounds the input, in bytes, that was sent and that the process has not read yet. The
// daemon buffers this number of bytes. With more input, signals would wait behind the input.
const maxUntaken = 128 << 10

// Write sends input to the process and returns when the process has read it.
func (p *Process) Write(b []byte) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(b) > 0 {
		part := b[:min(len(b), maxUntaken)]
		if err := p.ws.Write(p.ctx, websocket.MessageBinary, part); err != nil {
			return n, p.notWritten(err)
		}
		p.sent += int64(len(part))
		if err := p.waitTaken(); err != nil {
			return n, err
		}
		n += len(part)
		b = b[len(part):]
	}
	return n, nil
}

// waitTaken waits until the process has read all input that was sent.
func (p *Process) waitTaken() error {
	for {
		select {
		case taken := <-p.taken:
			if taken >= p.sent {
				return nil
			}
		case <-p.closed:
			return ErrStdinClosed
		case <-p.done: // all received messages have been handled
			select {
			case taken := <-p.taken:
				if taken >= p.sent {
					return nil
				}
			default:
			}
			return p.noInput()
		}
	}
}

// endGrace is how long Write waits, after the connection broke, for Wait to report that the process
// has ended.
const endGrace = time.Second

// noInput returns the error of a write after Wait has returned.
func (p *Process) noInput() error {
	if p.left != nil {
		return p.left
	}
	return ErrStdinClosed
}

// notWritten returns the error of a write whose connection broke. The error is ErrStdinClosed if
// the process has ended.
func (p *Process) notWritten(err error) error {
	select {
	case <-p.done:
		return p.noInput()
	case <-p.ctx.Done():
		return p.ctx.Err()
	case <-time.After(endGrace):
		return err
	}
}

// CloseStdin closes the process's input. On a terminal, it sends Ctrl-D.
func (p *Process) CloseStdin() error { return p.send(v1.ExecInput{CloseStdin: true}) }

// Resize sets the size of the process's terminal.
func (p *Process) Resize(size TTYSize) error { return p.send(v1.ExecInput{Resize: &size}) }

// Signal sends a signal, such as "SIGINT", to the process and its group.
func (p *Process) Signal(name string) error { return p.send(v1.ExecInput{Signal: name}) }

// Detach makes Wait return ErrDetached and leaves the process running.
func (p *Process) Detach() error { return p.send(v1.ExecInput{Detach: true}) }

func (p *Process) send(in v1.ExecInput) error {
	b, err := json.Marshal(in)
	if err != nil {
		return err
	}
	return p.ws.Write(p.ctx, websocket.MessageText, b)
}

// ExecDetached starts a command and returns its process id without waiting. Output that the command
// writes while no client is attached is lost.
func (c *Client) ExecDetached(ctx context.Context, id string, req ExecRequest) (pid uint32, err error) {
	if err := checkExec(req); err != nil {
		return 0, err
	}
	req.Detach = true
	var started v1.ExecStarted
	err = c.call(ctx, http.MethodPost, sandboxPath(id, "/exec"), req, &started)
	return started.PID, err
}

// Processes lists the running processes that an exec has started in a sandbox.
func (c *Client) Processes(ctx context.Context, id string) (list []ProcessInfo, err error) {
	err = c.call(ctx, http.MethodGet, sandboxPath(id, "/processes"), nil, &list)
	return list, err
}

// SignalProcess sends a signal, such as "SIGTERM", to a process and its group.
func (c *Client) SignalProcess(ctx context.Context, id string, pid uint32, signal string) error {
	return c.call(ctx, http.MethodPost, processPath(id, pid, "/signal"), v1.SignalRequest{Signal: signal}, nil)
}

// SendStdin sends all data of a reader to a process. If last is true, SendStdin then closes the
// process's stdin.
func (c *Client) SendStdin(ctx context.Context, id string, pid uint32, input io.Reader, last bool) error {
	path := processPath(id, pid, "/stdin?close="+strconv.FormatBool(last))
	resp, err := c.request(ctx, http.MethodPost, path, "application/octet-stream", input)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// ResizeProcess sets the size of a process's terminal.
func (c *Client) ResizeProcess(ctx context.Context, id string, pid uint32, size TTYSize) error {
	return c.call(ctx, http.MethodPost, processPath(id, pid, "/resize"), size, nil)
}

// DetachProcess makes the ExecStream of a process return and leaves the process running.
func (c *Client) DetachProcess(ctx context.Context, id string, pid uint32) error {
	return c.call(ctx, http.MethodPost, processPath(id, pid, "/detach"), nil, nil)
}

func processPath(id string, pid uint32, rest string) string {
	return sandboxPath(id, "/processes/"+strconv.FormatUint(uint64(pid), 10)+rest)
}
