package eval

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"syscall"
	"time"
)

// Operations that the driver's control thread accepts; see drivers/wire.py.
const (
	opForked  = "forked"
	opEnv     = "env"
	opPrepare = "prepare"
)

// controlRequest is one line to the driver's control thread.
type controlRequest struct {
	Op  string            `json:"op,omitempty"`
	Env map[string]string `json:"env,omitempty"`
}

// controlReply is the answer to a controlRequest.
type controlReply struct {
	Error string `json:"error"`
	Idle  bool   `json:"idle"` // no code of the user can run before the next call; valid only in the answer to "prepare"
}

// putOff stores a request until the next call, if no code can run in the interpreter before that
// call. It returns true if it has stored the request, or if the request needs no action. It returns
// false if the caller must send the request now.
func (i *interpreter) putOff(req controlRequest) bool {
	if !i.backend.listens && req.Op == opPrepare {
		return true // a driver that does not listen has nothing to prepare
	}
	if !i.idle || req.Op == opPrepare {
		return false
	}
	if i.late.Op != opForked {
		i.late.Op = req.Op
	}
	if len(req.Env) > 0 {
		env := maps.Clone(i.late.Env)
		if env == nil {
			env = map[string]string{}
		}
		maps.Copy(env, req.Env)
		i.late.Env = env
	}
	return true
}

// catchUp sends a request that was put off, unless the driver will receive it as part of the next
// call.
func (i *interpreter) catchUp() error {
	if i.late.Op == "" || !i.backend.listens {
		return nil
	}
	req := i.late
	i.late = controlRequest{}
	if err := i.sendControl(req); err != nil {
		return err
	}
	return i.awaitControl()
}

// sendControl writes a request, whose answer the caller must then read with awaitControl. Writing
// and reading are separate, so that several interpreters can work at the same time.
func (i *interpreter) sendControl(req controlRequest) error {
	line, err := json.Marshal(req)
	if err != nil {
		return err
	}
	timeout := forkTimeout
	if req.Op == opPrepare {
		timeout = prepareTimeout
	}
	i.control.SetDeadline(time.Now().Add(timeout))
	if _, err := i.control.Write(append(line, '\n')); err != nil {
		return i.controlError(err)
	}
	return nil
}

// awaitControl reads the answer to the request that sendControl wrote.
func (i *interpreter) awaitControl() error {
	i.idle = false
	line, err := readLine(i.answers, maxMessage)
	i.control.SetDeadline(time.Time{})
	if err != nil {
		return i.controlError(err)
	}
	var reply controlReply
	if err := json.Unmarshal(line, &reply); err != nil {
		return fmt.Errorf("interpreter: answer: %w", err)
	}
	if reply.Error != "" {
		return fmt.Errorf("interpreter: %s", reply.Error)
	}
	i.idle = reply.Idle
	return nil
}

func (i *interpreter) controlError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// Stop the interpreter, because its late answer would be mistaken for the answer to the
		// next request.
		i.stop()
		return errors.New("interpreter: no answer in time; is it in a long call that holds the interpreter lock?")
	}
	return fmt.Errorf("interpreter: control: %w", err)
}

// endedInstead reports whether a control request failed because the interpreter's process has
// ended, for example because its code is being killed. This is no failure of a fork, because a
// process that has ended cannot repeat random numbers.
func (i *interpreter) endedInstead(err error) bool {
	if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		return false
	}
	select {
	case <-i.child.Done():
		return true
	case <-time.After(lastReplies): // the process still runs, but has closed its socket
		return false
	}
}
