package envd

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/creack/pty"

	"github.com/forkd/forkd/internal/guest/reap"
	"github.com/forkd/forkd/internal/guest/userenv"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/envdproto/process"
)

// processService implements process.Process.
type processService struct{ s *Server }

// Start runs a process and streams its events. It kills the process group at the deadline of the
// call. If the client disconnects earlier, the process continues, and the deadline still applies.
func (ps *processService) Start(ctx context.Context, req *connect.Request[process.StartRequest],
	out *connect.ServerStream[process.StartResponse]) error {
	p, sub, err := ps.spawn(req)
	if err != nil {
		return err
	}
	defer p.unsubscribe(sub)
	ps.s.procs.add(p)
	var late atomic.Bool // set if the deadline kills the process, so that the answer is a timeout error
	if deadline, ok := ctx.Deadline(); ok {
		timer := time.AfterFunc(time.Until(deadline), func() {
			late.Store(true)
			_ = p.child.SignalGroup(syscall.SIGKILL)
		})
		go func() {
			<-p.ended
			timer.Stop()
		}()
	}
	send := func(ev *process.ProcessEvent) error {
		if ev.GetEnd() != nil && late.Load() {
			return context.DeadlineExceeded
		}
		return out.Send(&process.StartResponse{Event: ev})
	}
	return streamProcess(ctx, p, sub, keepalive(req.Header()), send)
}

// streamProcess sends the start event and then the events of the subscription.
func streamProcess(ctx context.Context, p *proc, sub *subscription, interval time.Duration,
	send func(*process.ProcessEvent) error) error {
	first := &process.ProcessEvent_StartEvent{Pid: uint32(p.child.Pid)}
	if err := send(&process.ProcessEvent{Event: &process.ProcessEvent_Start{Start: first}}); err != nil {
		return err
	}
	alive := func() error {
		none := &process.ProcessEvent_Keepalive{Keepalive: &process.ProcessEvent_KeepAlive{}}
		return send(&process.ProcessEvent{Event: none})
	}
	err := streamEvents(ctx, sub.events, interval, send, alive)
	if errors.Is(err, context.DeadlineExceeded) {
		return connect.NewError(connect.CodeDeadlineExceeded, errors.New("the call's timeout passed"))
	}
	return err
}

func (ps *processService) spawn(req *connect.Request[process.StartRequest]) (*proc, *subscription, error) {
	msg := req.Msg
	if msg.GetProcess().GetCmd() == "" {
		return nil, nil, invalid(errors.New("process.cmd is empty"))
	}
	u, err := ps.s.rpcUser(req.Header())
	if err != nil {
		return nil, nil, err
	}
	cfg := msg.GetProcess()
	dir, err := ps.s.cfg.Env.Dir(u, cfg.GetCwd())
	if err != nil {
		return nil, nil, invalid(err)
	}
	if err := userenv.CheckVars(cfg.GetEnvs()); err != nil {
		return nil, nil, invalid(fmt.Errorf("process.envs: %w", err))
	}
	env := ps.s.cfg.Env.Environ(u, cfg.GetEnvs())
	path, err := lookPath(cfg.GetCmd(), dir, env)
	if err != nil {
		return nil, nil, startError(cfg.GetCmd(), err)
	}
	cmd := &exec.Cmd{
		Path: path, Args: append([]string{cfg.GetCmd()}, cfg.GetArgs()...), Env: env, Dir: dir,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Credential: u.Credential()},
	}
	var size *pty.Winsize
	if msg.Pty != nil {
		size = winsize(msg.Pty)
	}
	p := &proc{config: cfg, tag: msg.Tag, oomKills: oomKills()}
	sub, err := start(ps.s.cfg.Reaper, cmd, p, size, msg.Stdin == nil || *msg.Stdin)
	if err != nil {
		return nil, nil, startError(cfg.GetCmd(), err)
	}
	return p, sub, nil
}

// startError returns different codes for "no such command", "not executable" and other failures,
// because clients depend on them.
func startError(cmd string, err error) error {
	code := connect.CodeInternal
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR):
		code = connect.CodeNotFound
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.ENOEXEC), errors.Is(err, syscall.EPERM):
		code = connect.CodePermissionDenied
	case errors.Is(err, syscall.E2BIG), errors.Is(err, syscall.EINVAL):
		code = connect.CodeInvalidArgument
	}
	return connect.NewError(code, fmt.Errorf("start %q: %w", cmd, err))
}

// winsize converts a terminal size. An invalid or missing size becomes 80x24.
func winsize(p *process.PTY) *pty.Winsize {
	const most = 1<<16 - 1
	cols, rows := p.GetSize().GetCols(), p.GetSize().GetRows()
	if cols == 0 || rows == 0 || cols > most || rows > most {
		cols, rows = 80, 24
	}
	return &pty.Winsize{Cols: uint16(cols), Rows: uint16(rows)}
}

func (ps *processService) find(sel *process.ProcessSelector) (*proc, error) {
	if p := ps.s.procs.find(sel); p != nil {
		return p, nil
	}
	if tag := sel.GetTag(); tag != "" {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("no process has the tag %q", tag))
	}
	return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process %d was not started here or has ended",
		sel.GetPid()))
}

// findLive returns the running process that a selector matches, or a not-found error.
func (ps *processService) findLive(sel *process.ProcessSelector) (*proc, error) {
	p, err := ps.find(sel)
	if err == nil && p.hasEnded() {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process %d has ended", p.child.Pid))
	}
	return p, err
}

// Connect streams the events of a running process, beginning with the next event.
func (ps *processService) Connect(ctx context.Context, req *connect.Request[process.ConnectRequest],
	out *connect.ServerStream[process.ConnectResponse]) error {
	p, err := ps.find(req.Msg.GetProcess())
	if err != nil {
		return err
	}
	sub := p.subscribe()
	defer p.unsubscribe(sub)
	send := func(ev *process.ProcessEvent) error { return out.Send(&process.ConnectResponse{Event: ev}) }
	return streamProcess(ctx, p, sub, keepalive(req.Header()), send)
}

// List returns the running processes with their start configurations.
func (ps *processService) List(context.Context,
	*connect.Request[process.ListRequest]) (*connect.Response[process.ListResponse], error) {
	out := &process.ListResponse{}
	for _, p := range ps.s.procs.live() {
		out.Processes = append(out.Processes, &process.ProcessInfo{Config: p.config, Pid: uint32(p.child.Pid), Tag: p.tag})
	}
	return connect.NewResponse(out), nil
}

// SendInput writes to a process's stdin or terminal.
func (ps *processService) SendInput(_ context.Context,
	req *connect.Request[process.SendInputRequest]) (*connect.Response[process.SendInputResponse], error) {
	p, err := ps.findLive(req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	if err := p.input(req.Msg.GetInput(), req.Header().Get(agentproto.TerminalHeader) != ""); err != nil {
		return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("send input to process %d: %w", p.child.Pid, err))
	}
	return connect.NewResponse(&process.SendInputResponse{}), nil
}

// StreamInput writes the messages of a client to a process's stdin or terminal, in order.
func (ps *processService) StreamInput(_ context.Context,
	in *connect.ClientStream[process.StreamInputRequest]) (*connect.Response[process.StreamInputResponse], error) {
	var p *proc
	for in.Receive() {
		switch ev := in.Msg().GetEvent().(type) {
		case *process.StreamInputRequest_Start:
			if p != nil {
				return nil, invalid(errors.New("start: the stream has named its process already"))
			}
			var err error
			if p, err = ps.findLive(ev.Start.GetProcess()); err != nil {
				return nil, err
			}
		case *process.StreamInputRequest_Data:
			if p == nil {
				return nil, invalid(errors.New("data: the first message of the stream must be start, which names the process"))
			}
			if err := p.input(ev.Data.GetInput(), in.RequestHeader().Get(agentproto.TerminalHeader) != ""); err != nil {
				return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("send input to process %d: %w", p.child.Pid, err))
			}
		}
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	return connect.NewResponse(&process.StreamInputResponse{}), nil
}

// maxSignal is the highest signal of Linux, SIGRTMAX.
const maxSignal = 64

// SendSignal sends a signal to one process, or to its group if the request has
// agentproto.GroupHeader.
func (ps *processService) SendSignal(_ context.Context,
	req *connect.Request[process.SendSignalRequest]) (*connect.Response[process.SendSignalResponse], error) {
	p, err := ps.findLive(req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	sig := req.Msg.GetSignal() // the protocol names only two signals, but any signal of Linux is accepted
	if sig < 1 || sig > maxSignal {
		return nil, invalid(fmt.Errorf("signal %d: want 1 to %d", sig, maxSignal))
	}
	signal := p.child.Signal
	if req.Header().Get(agentproto.GroupHeader) != "" {
		signal = p.child.SignalGroup
	}
	err = signal(syscall.Signal(sig))
	if errors.Is(err, reap.ErrExited) {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process %d has ended", p.child.Pid))
	}
	if err != nil {
		return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("signal process %d: %w", p.child.Pid, err))
	}
	return connect.NewResponse(&process.SendSignalResponse{}), nil
}

// CloseStdin closes a process's stdin.
func (ps *processService) CloseStdin(_ context.Context,
	req *connect.Request[process.CloseStdinRequest]) (*connect.Response[process.CloseStdinResponse], error) {
	p, err := ps.findLive(req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	if err := p.closeStdin(req.Header().Get(agentproto.TerminalHeader) != ""); err != nil {
		return nil, connect.NewError(connect.CodeUnknown, fmt.Errorf("close stdin of process %d: %w", p.child.Pid, err))
	}
	return connect.NewResponse(&process.CloseStdinResponse{}), nil
}

// Update changes the size of a process's terminal.
func (ps *processService) Update(_ context.Context,
	req *connect.Request[process.UpdateRequest]) (*connect.Response[process.UpdateResponse], error) {
	p, err := ps.findLive(req.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	if req.Msg.Pty != nil {
		if p.tty == nil {
			return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("resize process %d: %w", p.child.Pid, errNoPTY))
		}
		if err := pty.Setsize(p.tty, winsize(req.Msg.Pty)); err != nil {
			return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("resize process %d: %w", p.child.Pid, err))
		}
	}
	return connect.NewResponse(&process.UpdateResponse{}), nil
}
