package tcghost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/emu/machineapi"
)

// Stdio connects the input and outputs of an executed program. A nil In is empty input; a nil Out
// or Err discards output.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
	Signals  <-chan os.Signal // sent to the program's process group
}

// Exec runs a program in the emulated host and returns how it ended. When ctx is done, the program
// and its child processes are killed. The error wraps ErrNotRunning if the emulated host is not
// running, and ErrLost if the emulated host stops during the call. Errors of the program itself are
// in the ExecExit.
func (m Machine) Exec(ctx context.Context, start machineapi.ExecStart, stdio Stdio) (machineapi.ExecExit, error) {
	c, s, err := m.connect()
	if err != nil {
		return machineapi.ExecExit{}, err
	}
	defer c.close()
	conn, err := c.upgrade(ctx)
	if err != nil {
		return machineapi.ExecExit{}, m.broken(ctx, s.BootID, err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()

	exit, err := stream(conn, start, stdio)
	if err != nil {
		return exit, m.broken(ctx, s.BootID, err)
	}
	return exit, nil
}

// broken returns the reason why an exec stream ended early. Either ctx is done, or the caller's
// writer has failed, or the emulated host has refused the request, or the emulated host is gone.
func (m Machine) broken(ctx context.Context, bootID string, err error) error {
	var output outputError
	var status refusedError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("exec in emulated host %s: %w", m.Name, ctx.Err())
	case errors.As(err, &output), errors.As(err, &status):
		return fmt.Errorf("exec in emulated host %s: %w", m.Name, err)
	}
	return m.lost(bootID, err)
}

// lostPatience bounds how long the supervisor may take to notice that an emulated host is gone, and
// to update the state file.
const lostPatience = 3 * time.Second

// lost returns an error with the reason why a connection to the emulated host broke.
func (m Machine) lost(bootID string, cause error) error {
	for deadline := time.Now().Add(lostPatience); time.Now().Before(deadline); time.Sleep(statePause) {
		s, err := m.State()
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", ErrLost, errors.Join(cause, err))
		case s.Phase == Stopping || s.Phase == Stopped:
			return fmt.Errorf("%w: it was stopped", ErrLost)
		case s.BootID != bootID || s.Phase != Ready:
			return fmt.Errorf("%w and is now %s: %s", ErrLost, s.Phase, s.LastFailure)
		}
	}
	return fmt.Errorf("%w: %w", ErrLost, cause)
}

// upgrade opens an exec stream.
func (c *client) upgrade(ctx context.Context) (io.ReadWriteCloser, error) {
	req, err := c.request(ctx, http.MethodPost, machineapi.PathExec, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", machineapi.Upgrade)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if resp.StatusCode != http.StatusSwitchingProtocols || !ok {
		defer resp.Body.Close()
		return nil, refused(http.MethodPost, machineapi.PathExec, resp.StatusCode, io.LimitReader(resp.Body, maxAnswer))
	}
	return conn, nil
}

// sender writes frames for two goroutines: one goroutine sends input, and the other sends signals.
// It writes each frame as a whole.
type sender struct {
	mu sync.Mutex
	// +checklocks:mu
	w io.Writer
}

func (s *sender) frame(t machineapi.FrameType, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return machineapi.WriteFrame(s.w, t, payload)
}

// stream runs the exec protocol over conn. The goroutine that reads stdio.In may continue after
// stream has returned, because a read from a terminal cannot be interrupted.
func stream(conn io.ReadWriter, start machineapi.ExecStart, stdio Stdio) (machineapi.ExecExit, error) {
	var exit machineapi.ExecExit
	if err := machineapi.WriteJSON(conn, machineapi.FrameStart, start); err != nil {
		return exit, err
	}
	out := &sender{w: conn}
	done := make(chan struct{})
	defer close(done)
	fed := make(chan struct{}, 1)
	go sendInput(out, stdio.In, fed, done)
	go sendSignals(out, stdio.Signals, done)
	for {
		t, body, err := machineapi.ReadFrame(conn)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // the stream ended without FrameExit
		}
		if err != nil {
			return exit, err
		}
		switch t {
		case machineapi.FrameStdout:
			err = write(stdio.Out, body)
		case machineapi.FrameStderr:
			err = write(stdio.Err, body)
		case machineapi.FrameStdinDone:
			select {
			case fed <- struct{}{}:
			default: // there were more FrameStdinDone than frames; ignore them
			}
		case machineapi.FrameExit:
			if err := json.Unmarshal(body, &exit); err != nil {
				return exit, fmt.Errorf("exec: exit: %w", err)
			}
			return exit, nil
		default:
			err = fmt.Errorf("exec: unexpected frame of type %d", t)
		}
		if err != nil {
			return exit, err
		}
	}
}

func write(w io.Writer, b []byte) error {
	if w == nil {
		return nil
	}
	if _, err := w.Write(b); err != nil {
		return outputError{err}
	}
	return nil
}

// outputError marks an error of the caller's writer, to distinguish it from an error of the
// emulated host.
type outputError struct{ error }

func (e outputError) Error() string { return "write output: " + e.error.Error() }
func (e outputError) Unwrap() error { return e.error }

// sendInput sends the content of a reader, piece by piece, and then an end-of-file frame. Before
// each further piece, it waits until the emulated host has processed the previous piece.
func sendInput(out *sender, in io.Reader, fed, done <-chan struct{}) {
	buf := make([]byte, 64<<10)
	for {
		n, err := 0, io.EOF
		if in != nil {
			n, err = in.Read(buf)
		}
		if n > 0 {
			if out.frame(machineapi.FrameStdin, buf[:n]) != nil {
				return
			}
			select {
			case <-fed:
			case <-done:
				return
			}
		}
		if err != nil {
			out.frame(machineapi.FrameStdin, nil) // if the connection is broken, the reader of frames returns the error
			return
		}
	}
}

func sendSignals(out *sender, signals <-chan os.Signal, done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case sig := <-signals:
			if n, ok := sig.(syscall.Signal); ok && out.frame(machineapi.FrameSignal, []byte{byte(n)}) != nil {
				return
			}
		}
	}
}
