package agentclient

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"connectrpc.com/connect"

	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/envdproto/process"
	"github.com/forkd/forkd/internal/proto/envdproto/process/processconnect"
)

// Size is the size of a terminal, in characters. If Cols or Rows is 0, the agent chooses the size.
type Size struct{ Cols, Rows uint16 }

// message returns the size in the form of the agent's protocol, or nil if s is nil.
func (s *Size) message() *process.PTY {
	if s == nil {
		return nil
	}
	return &process.PTY{Size: &process.PTY_Size{Cols: uint32(s.Cols), Rows: uint32(s.Rows)}}
}

// Process is a process of the guest that was started through the agent. After the process has
// exited, the methods return an *Error with CodeNotFound.
type Process struct {
	PID    uint32
	client *Client
}

// Process returns a Process with the given id. It does not check that the process exists.
func (c *Client) Process(pid uint32) *Process { return &Process{PID: pid, client: c} }

func (p *Process) selector() *process.ProcessSelector {
	return &process.ProcessSelector{Selector: &process.ProcessSelector_Pid{Pid: p.PID}}
}

// fail returns the error of an operation on the process, or nil if err is nil.
func (p *Process) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	return remote(fmt.Sprintf("%s process %d", op, p.PID), err)
}

// Input writes to the stdin or the terminal of the process. It returns when the pipe of the process
// has accepted all data.
func (p *Process) Input(ctx context.Context, data []byte) error {
	in := &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: data}}
	req := connect.NewRequest(&process.SendInputRequest{Process: p.selector(), Input: in})
	req.Header().Set(agentproto.TerminalHeader, "1")
	_, err := call[process.SendInputRequest, process.SendInputResponse](ctx, p.client,
		processconnect.ProcessSendInputProcedure,
		small, req)
	return p.fail("send input to", err)
}

// CloseStdin closes the stdin of the process. If the process has a terminal, CloseStdin sends
// Ctrl-D.
func (p *Process) CloseStdin(ctx context.Context) error {
	req := connect.NewRequest(&process.CloseStdinRequest{Process: p.selector()})
	req.Header().Set(agentproto.TerminalHeader, "1")
	_, err := call[process.CloseStdinRequest, process.CloseStdinResponse](ctx, p.client,
		processconnect.ProcessCloseStdinProcedure,
		small, req)
	return p.fail("close the stdin of", err)
}

// Signal sends a signal to the process group, for example to a shell and its commands.
func (p *Process) Signal(ctx context.Context, s syscall.Signal) error { return p.signal(ctx, s, true) }

// HangUp sends SIGHUP to the process, but not to the rest of its process group. When the process
// has ended, the agent closes the terminal or the pipes of the process. So programs that the
// process has started in the background can continue.
func (p *Process) HangUp(ctx context.Context) error { return p.signal(ctx, syscall.SIGHUP, false) }

func (p *Process) signal(ctx context.Context, s syscall.Signal, group bool) error {
	req := connect.NewRequest(&process.SendSignalRequest{Process: p.selector(), Signal: process.Signal(s)})
	if group {
		req.Header().Set(agentproto.GroupHeader, "1")
	}
	_, err := call[process.SendSignalRequest, process.SendSignalResponse](ctx, p.client,
		processconnect.ProcessSendSignalProcedure,
		small, req)
	return p.fail("signal", err)
}

// Resize sets the size of the process's terminal.
func (p *Process) Resize(ctx context.Context, s Size) error {
	_, err := call[process.UpdateRequest, process.UpdateResponse](ctx, p.client, processconnect.ProcessUpdateProcedure,
		small,
		connect.NewRequest(&process.UpdateRequest{Process: p.selector(), Pty: s.message()}))
	return p.fail("resize the terminal of", err)
}

// Attach calls started(p) for a running process p, and then passes the further output of the
// process to the given sink. It returns how the process ended. If Attach returns before the process
// has ended, the process continues.
func (c *Client) Attach(ctx context.Context, pid uint32, started func(*Process) error,
	sink func(Stream, []byte) error) (ExecResult, error) {
	none := ExecResult{ExitCode: -1}
	op := fmt.Sprintf("attach to process %d", pid)
	stream, err := follow[process.ConnectRequest, process.ConnectResponse](ctx, c, processconnect.ProcessConnectProcedure,
		connect.NewRequest(&process.ConnectRequest{Process: c.Process(pid).selector()}))
	if err != nil {
		return none, remote(op, err)
	}
	defer stream.Close()
	run := execCall{client: c, req: ExecRequest{Started: started}, sink: sink, started: make(chan struct{})}
	for stream.Receive() {
		end, err := run.event(ctx, stream.Msg().GetEvent())
		if err != nil || end != nil {
			return ended(end), err
		}
	}
	if err = stream.Err(); err == nil {
		err = errors.New("the stream ended without the process's end")
	}
	return none, remote(op, err)
}

// ProcessInfo is the agent's description of a process.
type ProcessInfo struct {
	PID  uint32
	Args []string // arguments that the process was started with
	Cwd  string   // working directory in the request that started the process; empty: the user's home
}

// Processes returns the running processes that were started through the agent, oldest first.
func (c *Client) Processes(ctx context.Context) ([]ProcessInfo, error) {
	answer, err := call[process.ListRequest, process.ListResponse](ctx, c, processconnect.ProcessListProcedure,
		processes,
		connect.NewRequest(&process.ListRequest{}))
	if err != nil {
		return nil, remote("list processes", err)
	}
	var list []ProcessInfo
	for _, p := range answer.GetProcesses() {
		cfg := p.GetConfig()
		list = append(list, ProcessInfo{PID: p.GetPid(), Args: append([]string{cfg.GetCmd()}, cfg.GetArgs()...),
			Cwd: cfg.GetCwd()})
	}
	return list, nil
}
