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

// Size is that of a terminal, in characters. One that is 0 is the agent's to choose.
type Size struct{ Cols, Rows uint16 }

// message is nil for no terminal.
func (s *Size) message() *process.PTY {
	if s == nil {
		return nil
	}
	return &process.PTY{Size: &process.PTY_Size{Cols: uint32(s.Cols), Rows: uint32(s.Rows)}}
}

// Process is a process of the guest that was started through the agent. Its methods fail with an
// *Error of CodeNotFound when it has ended.
type Process struct {
	PID    uint32
	client *Client
}

// Process returns the process with a number, without asking whether there is one.
func (c *Client) Process(pid uint32) *Process { return &Process{PID: pid, client: c} }

func (p *Process) selector() *process.ProcessSelector {
	return &process.ProcessSelector{Selector: &process.ProcessSelector_Pid{Pid: p.PID}}
}

// fail says what could not be done to the process.
func (p *Process) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	return remote(fmt.Sprintf("%s process %d", op, p.PID), err)
}

// Input writes to the stdin of the process, or to its terminal. It returns when the process's pipe
// has taken everything.
func (p *Process) Input(ctx context.Context, data []byte) error {
	in := &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: data}}
	req := connect.NewRequest(&process.SendInputRequest{Process: p.selector(), Input: in})
	req.Header().Set(agentproto.TerminalHeader, "1")
	_, err := call[process.SendInputRequest, process.SendInputResponse](ctx, p.client,
		processconnect.ProcessSendInputProcedure,
		small, req)
	return p.fail("send input to", err)
}

// CloseStdin ends the input of the process; a terminal is sent Ctrl-D.
func (p *Process) CloseStdin(ctx context.Context) error {
	req := connect.NewRequest(&process.CloseStdinRequest{Process: p.selector()})
	req.Header().Set(agentproto.TerminalHeader, "1")
	_, err := call[process.CloseStdinRequest, process.CloseStdinResponse](ctx, p.client,
		processconnect.ProcessCloseStdinProcedure,
		small, req)
	return p.fail("close the stdin of", err)
}

// Signal sends a signal to the process and the others of its group, such as a shell's commands.
func (p *Process) Signal(ctx context.Context, s syscall.Signal) error {
	req := connect.NewRequest(&process.SendSignalRequest{Process: p.selector(), Signal: process.Signal(s)})
	req.Header().Set(agentproto.GroupHeader, "1")
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

// Attach hands the output of a running process to sink as it comes from now on, and returns how it
// ended. started is called first. The process outlives the call, whatever ends that.
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

// ProcessInfo is what the agent knows of a process.
type ProcessInfo struct {
	PID  uint32
	Args []string // as it was started
	Cwd  string   // as it was asked for; empty: the user's home
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
