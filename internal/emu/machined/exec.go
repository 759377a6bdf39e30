package machined

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/emu/machineapi"
)

// drainGrace is how long output may still arrive after the process and its child processes were
// killed. Only a process that has left the group and the cgroup can keep the pipes open for longer.
const drainGrace = 2 * time.Second

// stdioChunk is the maximum size of the output in one frame, in bytes.
const stdioChunk = 64 << 10

// frameConn is a connection on which several goroutines write frames. It writes each frame as a
// whole.
type frameConn struct {
	mu sync.Mutex
	// +checklocks:mu
	w io.Writer
}

func (c *frameConn) frame(t machineapi.FrameType, payload []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return machineapi.WriteFrame(c.w, t, payload)
}

func (c *frameConn) exit(e machineapi.ExecExit) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return machineapi.WriteJSON(c.w, machineapi.FrameExit, e)
}

// serveExec runs one process for the client at conn. The client sends ExecStart first, and then
// input and signals. The client receives the output and then the exit. When the process exits or
// times out, or when the client disconnects, serveExec kills the process and all its child
// processes.
func serveExec(conn io.ReadWriter, groups groups) error {
	out := &frameConn{w: conn}
	start, err := readStart(conn)
	if err != nil {
		return out.exit(machineapi.ExecExit{Error: err.Error()})
	}
	p, err := startProcess(start, groups)
	if err != nil {
		notFound := errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist)
		return out.exit(machineapi.ExecExit{Error: err.Error(), NotFound: notFound})
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		p.input(ctx, conn, out)
		if ctx.Err() == nil { // the client has disconnected, or has violated the protocol
			p.group.kill()
		}
	}()
	return out.exit(p.wait(out, time.Duration(start.TimeoutMS)*time.Millisecond))
}

func readStart(conn io.Reader) (machineapi.ExecStart, error) {
	var start machineapi.ExecStart
	t, body, err := machineapi.ReadFrame(conn)
	if err != nil {
		return start, err
	}
	if t != machineapi.FrameStart {
		return start, fmt.Errorf("exec: first frame has type %d, want %d", t, machineapi.FrameStart)
	}
	if err := json.Unmarshal(body, &start); err != nil {
		return start, fmt.Errorf("exec: start: %w", err)
	}
	if len(start.Argv) == 0 {
		return start, errors.New("exec: argv is empty: name a program")
	}
	return start, nil
}

// process is one running exec.
type process struct {
	cmd            *exec.Cmd
	group          group
	stdin          io.WriteCloser
	stdout, stderr *os.File
}

func startProcess(start machineapi.ExecStart, groups groups) (*process, error) {
	cmd := exec.Command(start.Argv[0], start.Argv[1:]...)
	cmd.Env = append(os.Environ(), start.Env...)
	cmd.Dir = start.Dir
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	p := &process{cmd: cmd}
	var err error
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("exec: %w", err)
	}
	var outW, errW *os.File
	if p.stdout, outW, err = os.Pipe(); err != nil {
		return nil, fmt.Errorf("exec: %w", err)
	}
	defer outW.Close()
	if p.stderr, errW, err = os.Pipe(); err != nil {
		p.stdout.Close()
		return nil, fmt.Errorf("exec: %w", err)
	}
	defer errW.Close()
	// Use pipes instead of writers. With writers, Wait would return only when no other process
	// keeps the pipes open any more.
	cmd.Stdout, cmd.Stderr = outW, errW
	if p.group, err = groups.start(cmd); err != nil {
		p.stdout.Close()
		p.stderr.Close()
		return nil, fmt.Errorf("exec %s: %w", start.Argv[0], err)
	}
	return p, nil
}

// input handles the client's frames until the connection ends. It never waits for the process, so
// that it notices the end of the connection.
func (p *process) input(ctx context.Context, conn io.Reader, out *frameConn) {
	chunks := make(chan []byte, 1) // one frame may wait for feed
	defer close(chunks)
	go p.feed(ctx, chunks, out)
	for {
		t, body, err := machineapi.ReadFrame(conn)
		if err != nil {
			return
		}
		switch {
		case t == machineapi.FrameStdin:
			select {
			case chunks <- body:
			default:
				return // the client has sent a second frame before FrameStdinDone
			}
		case t == machineapi.FrameSignal && len(body) == 1:
			p.group.signal(syscall.Signal(body[0]))
		default:
			return
		}
	}
}

// feed writes input to the process. If a write fails, the process has closed its input, and the
// rest of the input is discarded.
func (p *process) feed(ctx context.Context, chunks <-chan []byte, out *frameConn) {
	for {
		select {
		case <-ctx.Done():
			return
		case chunk, ok := <-chunks:
			if !ok {
				return
			}
			if len(chunk) == 0 {
				p.stdin.Close()
			} else {
				p.stdin.Write(chunk)
			}
			if ctx.Err() != nil || out.frame(machineapi.FrameStdinDone, nil) != nil {
				return
			}
		}
	}
}

// wait sends the output until the process has exited and its child processes are dead. It returns
// how the process ended.
func (p *process) wait(out *frameConn, timeout time.Duration) machineapi.ExecExit {
	timedOut := make(chan struct{})
	if timeout > 0 {
		timer := time.AfterFunc(timeout, func() {
			close(timedOut)
			p.group.kill()
		})
		defer timer.Stop()
	}
	var copies sync.WaitGroup
	copies.Go(func() { copyFrames(out, machineapi.FrameStdout, p.stdout) })
	copies.Go(func() { copyFrames(out, machineapi.FrameStderr, p.stderr) })

	exit := exitOf(p.cmd.Wait(), p.cmd.ProcessState)
	select {
	case <-timedOut:
		exit = machineapi.ExecExit{TimedOut: true}
	default:
	}
	p.group.end()
	drained := time.AfterFunc(drainGrace, func() {
		p.stdout.SetReadDeadline(time.Now())
		p.stderr.SetReadDeadline(time.Now())
	})
	copies.Wait()
	drained.Stop()
	p.stdout.Close()
	p.stderr.Close()
	return exit
}

// copyFrames sends the content of r as frames. When the client has disconnected, copyFrames
// continues to read, so that the process does not block before it is killed.
func copyFrames(out *frameConn, t machineapi.FrameType, r io.Reader) {
	buf := make([]byte, stdioChunk)
	gone := false
	for {
		n, err := r.Read(buf)
		if n > 0 && !gone {
			gone = out.frame(t, buf[:n]) != nil
		}
		if err != nil {
			return
		}
	}
}

// exitOf converts the result of Cmd.Wait.
func exitOf(err error, state *os.ProcessState) machineapi.ExecExit {
	if state == nil {
		return machineapi.ExecExit{Error: fmt.Sprintf("wait: %v", err)}
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return machineapi.ExecExit{Signal: int(ws.Signal())}
	}
	return machineapi.ExecExit{Code: state.ExitCode()}
}
