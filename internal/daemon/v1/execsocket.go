package v1

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/agentclient"
)

// execSocket runs a command over a WebSocket. The first message of the WebSocket is the request.
func (a *api) execSocket(w http.ResponseWriter, r *http.Request) error {
	return a.serveSocket(w, r, "exec in", func(s *socket) (follower, error) {
		req, err := s.start(face.ShareOf(r))
		if err != nil {
			return nil, err
		}
		run, err := checkExec(req, openEnded())
		return func(ctx context.Context, guest *agentclient.Client, o output) (agentclient.ExecResult, error) {
			run.Started = o.started
			return guest.ExecStream(ctx, run, o.data)
		}, err
	})
}

var (
	errClientLeft = errors.New("the client left")
	errStopping   = face.NewError(http.StatusServiceUnavailable, "the daemon is stopping")
)

// serveSocket upgrades the connection of a request to a WebSocket and carries a command over it. It
// returns when the command, the sandbox or the connection ends. To start a command or to find a
// running command, it calls begin.
func (a *api) serveSocket(w http.ResponseWriter, r *http.Request, op string,
	begin func(*socket) (follower, error)) error {
	if r.ProtoMajor != 1 || !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		w.Header().Set("Upgrade", "websocket")
		return face.NewError(http.StatusUpgradeRequired,
			"this path is a WebSocket over HTTP/1.1: request the upgrade, or POST an exec")
	}
	if _, err := a.view(r).Sandbox(r.PathValue("id")); err != nil {
		return err
	}
	// Package face has checked the origin.
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return nil // Accept has sent an answer
	}
	defer ws.CloseNow()
	ws.SetReadLimit(-1) // messages are read in parts
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(a.Face.Stopping, func() { cancel(errStopping) })()
	life, die := context.WithCancel(context.Background())
	defer die()
	s := &socket{ws: ws, life: life, idle: a.Face.Limits.Idle, keepalive: a.Face.Limits.Keepalive, end: cancel,
		running: make(chan struct{}),
		parts:   make(chan part), buffers: make(chan []byte, inputBuffers), sending: make(chan struct{}, 1)}
	for range inputBuffers {
		s.buffers <- nil
	}
	follow, err := begin(s)
	var work sync.WaitGroup
	defer work.Wait()
	defer ws.CloseNow() // makes the reading goroutine end
	var res agentclient.ExecResult
	if err == nil {
		work.Go(func() { s.read(ctx) })
		work.Go(func() { s.feed(ctx) })
		work.Go(func() { s.keepAlive(ctx) })
		res, err = a.runOn(ctx, r, op, func(ctx context.Context, guest *agentclient.Client) (agentclient.ExecResult, error) {
			// When ctx has ended, the client must receive the rest within Limits.Stall. Writes that
			// take longer fail.
			defer context.AfterFunc(ctx, func() { time.AfterFunc(a.Face.Limits.Stall, die) })()
			return follow(ctx, guest, output{started: s.started, data: s.output})
		})
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause // err may be only a consequence of the cause
	}
	if err == nil {
		s.settle()
	}
	cancel(nil)
	last := lastEvent(res, err)
	if errors.Is(err, agentclient.ErrDetached) {
		last = apiv1.ExecEvent{Detached: true}
	}
	_ = s.send(last) // fails only if the client has left
	status := websocket.StatusNormalClosure
	if errors.Is(err, errProtocol) {
		status = websocket.StatusProtocolError
	}
	_ = ws.Close(status, "")
	return nil
}

// socket is the connection between a client and a command.
type socket struct {
	ws   *websocket.Conn
	life context.Context // context of the connection; after the command has ended, its result is sent with this context
	idle time.Duration   // maximum time for which the client may receive nothing

	keepalive time.Duration // interval of keepalives; shorter than the idle timeout of proxies, which is often a minute

	end context.CancelCauseFunc // ends the command

	process *agentclient.Process // valid after s.running was closed
	running chan struct{}

	parts   chan part   // parts of the input, received by s.feed
	buffers chan []byte // unused buffers; a nil buffer is not allocated yet

	sending chan struct{} // full while s.feed is sending a part to the process, and after s.settle
}

// inputBuffers is 2, so that one part of the input can be received from the client while another
// part is sent to the guest.
const inputBuffers = 2

// part is a part of the input, or its end.
type part struct {
	data []byte
	last bool
}

// errProtocol is the error for a client that sends an invalid WebSocket frame.
var errProtocol = face.BadRequest("WebSocket protocol error")

// next waits for a message from the client.
func (s *socket) next(ctx context.Context) (websocket.MessageType, io.Reader, error) {
	kind, message, err := s.ws.Reader(ctx)
	var broken *net.OpError
	switch {
	case err == nil, ctx.Err() != nil, websocket.CloseStatus(err) >= 0, errors.As(err, &broken),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return kind, message, err // the client has left or is being disconnected
	}
	return kind, message, fmt.Errorf("%w: %w", errProtocol, err)
}

// start reads the first message of an exec. The message counts against the request's share of
// memory.
func (s *socket) start(share *face.Share) (*apiv1.ExecRequest, error) {
	ctx, cancel := context.WithTimeout(s.life, face.BodyTimeout)
	defer cancel()
	kind, message, err := s.next(ctx)
	if err != nil {
		return nil, err
	}
	var first apiv1.ExecInput
	if kind == websocket.MessageText {
		body := share.Body(http.MaxBytesReader(nil, io.NopCloser(message), face.MaxBody))
		err = face.StrictJSON(body, &first, "first message", false)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if first.Start == nil {
		return nil, face.BadRequest("first message: want text, a JSON object with the field start")
	}
	if len(first.Start.Stdin) > 0 || first.Start.Detach {
		return nil, face.BadRequest("start: stdin and detach are messages of their own on a WebSocket")
	}
	return first.Start, nil
}

// send sends an event to the client. If that fails, send closes the connection.
func (s *socket) send(e apiv1.ExecEvent) error {
	p, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return s.write(websocket.MessageText, p)
}

func (s *socket) write(kind websocket.MessageType, p []byte) error {
	ctx, cancel := context.WithTimeout(s.life, s.idle)
	defer cancel()
	err := s.ws.Write(ctx, kind, p)
	if err != nil {
		s.end(errClientLeft)
	}
	return err
}

func (s *socket) started(p *agentclient.Process) error {
	s.process = p
	close(s.running)
	return s.send(apiv1.ExecEvent{Started: &apiv1.ExecStarted{PID: p.PID}})
}

func (s *socket) output(from agentclient.Stream, p []byte) error {
	message := make([]byte, 0, 1+len(p))
	if from == agentclient.Stdout {
		message = append(message, apiv1.SocketStdout)
	} else {
		message = append(message, apiv1.SocketStderr)
	}
	return s.write(websocket.MessageBinary, append(message, p...))
}

func (s *socket) keepAlive(ctx context.Context) {
	for tick := time.NewTicker(s.keepalive); ; {
		select {
		case <-tick.C:
			if s.send(apiv1.ExecEvent{Keepalive: true}) != nil {
				return
			}
		case <-ctx.Done():
			tick.Stop()
			return
		}
	}
}

// read handles the client's messages until the client leaves or the command ends. If the client
// leaves, the command is ended.
func (s *socket) read(ctx context.Context) {
	for {
		kind, message, err := s.next(s.life)
		if err == nil && kind == websocket.MessageBinary {
			err = s.takeInput(ctx, message)
		} else if err == nil {
			err = s.takeText(ctx, message)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			var wrong *face.Error
			if !errors.As(err, &wrong) {
				err = errClientLeft
			}
			s.end(err)
			return
		}
	}
}

// takeInput passes the parts of a message to the goroutine that runs s.feed.
func (s *socket) takeInput(ctx context.Context, message io.Reader) error {
	for {
		var buf []byte
		select {
		case buf = <-s.buffers:
		case <-ctx.Done():
			return ctx.Err()
		}
		if buf == nil {
			buf = make([]byte, inputChunk)
		}
		n, err := io.ReadFull(message, buf[:inputChunk])
		if n > 0 {
			if err := s.hand(ctx, part{data: buf[:n]}); err != nil {
				return err
			}
		} else {
			s.buffers <- buf
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *socket) hand(ctx context.Context, p part) error {
	select {
	case s.parts <- p:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// maxText bounds text messages after the first, in bytes.
const maxText = 64 << 10

func (s *socket) takeText(ctx context.Context, message io.Reader) error {
	var in apiv1.ExecInput
	body := http.MaxBytesReader(nil, io.NopCloser(message), maxText)
	if err := face.StrictJSON(body, &in, "message", false); err != nil {
		return face.BadRequest("%v", err)
	}
	switch {
	case in.CloseStdin:
		return s.hand(ctx, part{last: true})
	case in.Detach:
		s.end(agentclient.ErrDetached)
	case in.Signal != "":
		signal, err := parseSignal(in.Signal)
		if err != nil {
			return err
		}
		s.control(ctx, func(ctx context.Context) error { return s.process.Signal(ctx, signal) })
	case in.Resize != nil:
		size, err := checkSize("resize", *in.Resize)
		if err != nil {
			return err
		}
		s.control(ctx, func(ctx context.Context) error { return s.process.Resize(ctx, size) })
	default:
		return face.BadRequest("message: want one of resize, signal, close_stdin and detach")
	}
	return nil
}

// control calls f when the process is running. Two errors are ignored, and the stream continues:
// the process has exited, or the process has no terminal.
func (s *socket) control(ctx context.Context, f func(context.Context) error) {
	select {
	case <-s.running:
	case <-ctx.Done():
		return
	}
	ctx, cancel := context.WithTimeout(ctx, maxControl)
	defer cancel()
	_ = f(ctx)
}

// settleTime bounds how long s.settle waits for the part of the input that s.feed is sending. The
// wait could be endless if another process has the same pipe open and never reads it.
const settleTime = 500 * time.Millisecond

// settle is called when the command has ended. It waits until s.feed has told the client how much
// input the process read, and then stops s.feed.
func (s *socket) settle() {
	select {
	case s.sending <- struct{}{}:
	case <-time.After(settleTime):
	}
}

// feed sends the input to the process, and tells the client how much the process has read. It runs
// in a goroutine of its own, so that a process that reads no input does not delay signals.
func (s *socket) feed(ctx context.Context) {
	select {
	case <-s.running:
	case <-ctx.Done():
		return
	}
	var taken int64
	for closed := false; ; {
		var p part
		select {
		case p = <-s.parts:
		case <-ctx.Done():
			return
		}
		select {
		case s.sending <- struct{}{}:
		case <-ctx.Done():
			return
		}
		if !closed && p.last {
			_ = s.process.CloseStdin(ctx) // fails if the process has exited
		} else if !closed {
			if err := s.process.Input(ctx, p.data); err != nil {
				closed = true
				_ = s.send(apiv1.ExecEvent{StdinClosed: true}) // if the client has left, sending output fails too
			} else {
				taken += int64(len(p.data))
				_ = s.send(apiv1.ExecEvent{StdinTaken: taken})
			}
		}
		<-s.sending
		if p.data != nil {
			s.buffers <- p.data
		}
	}
}
