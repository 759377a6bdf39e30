package envd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"github.com/forkd/forkd/internal/guest/reap"
	"github.com/forkd/forkd/internal/proto/envdproto/process"
)

// Sizes of one read of a process's output, in bytes.
const (
	pipeChunk = 32 << 10
	ptyChunk  = 16 << 10
)

// lingerTimeout bounds how long to wait, after a process's end, for output of processes that it
// left behind. Its own output is always delivered.
const lingerTimeout = time.Second

var (
	errNoStdin = errors.New("the process has no open stdin")
	errNoPTY   = errors.New("the process has no terminal")
	errHasPTY  = errors.New("the process has a terminal; send pty input")
)

// proc is one process, running or recently ended. Its output goes to every subscriber at the pace
// of the slowest, so that none is lost and none is kept.
type proc struct {
	config *process.ProcessConfig
	tag    *string

	oomKills string // oomKills at the start
	child    *reap.Child
	outputs  sync.WaitGroup
	stopped  time.Time // end of the process, for the table; set before ended is closed
	ended    chan struct{}
	end      *process.ProcessEvent_EndEvent // valid after ended is closed

	stdin *os.File // nil if none
	tty   *os.File // master side, nil without a terminal

	inMu        sync.Mutex // held while writing to stdin or tty
	stdinClosed bool

	mu   sync.Mutex
	subs map[*subscription]struct{}
}

// subscription receives a process's events. The subscriber closes gone when it stops receiving.
type subscription struct {
	events chan *process.ProcessEvent
	gone   chan struct{}
}

// subscribe returns a subscription to later events; the channel is closed after the end event.
func (p *proc) subscribe() *subscription {
	s := &subscription{events: make(chan *process.ProcessEvent), gone: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.subs != nil {
		p.subs[s] = struct{}{}
		return s
	}
	go s.finish(p.end)
	return s
}

func (p *proc) unsubscribe(s *subscription) {
	close(s.gone)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.subs, s)
}

func (s *subscription) send(ev *process.ProcessEvent) {
	select {
	case s.events <- ev:
	case <-s.gone:
	}
}

func (s *subscription) finish(end *process.ProcessEvent_EndEvent) {
	s.send(&process.ProcessEvent{Event: &process.ProcessEvent_End{End: end}})
	close(s.events)
}

func (p *proc) publish(ev *process.ProcessEvent) {
	p.mu.Lock()
	subs := make([]*subscription, 0, len(p.subs))
	for s := range p.subs {
		subs = append(subs, s)
	}
	p.mu.Unlock()
	for _, s := range subs {
		s.send(ev)
	}
}

type outputKind int

const (
	kindStdout outputKind = iota
	kindStderr
	kindPTY
)

func dataEvent(kind outputKind, data []byte) *process.ProcessEvent {
	d := &process.ProcessEvent_DataEvent{}
	switch kind {
	case kindStdout:
		d.Output = &process.ProcessEvent_DataEvent_Stdout{Stdout: data}
	case kindStderr:
		d.Output = &process.ProcessEvent_DataEvent_Stderr{Stderr: data}
	case kindPTY:
		d.Output = &process.ProcessEvent_DataEvent_Pty{Pty: data}
	}
	return &process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: d}}
}

// start runs cmd, whose path, arguments, environment, directory and credential are set.
func start(r *reap.Reaper, cmd *exec.Cmd, p *proc, size *pty.Winsize, wantStdin bool) (*subscription, error) {
	p.subs, p.ended = map[*subscription]struct{}{}, make(chan struct{})
	var given []*os.File
	defer func() {
		for _, f := range given {
			f.Close()
		}
	}()
	var outs []*os.File
	var err error
	if size != nil {
		outs, err = p.openPTY(cmd, size, &given)
	} else {
		outs, err = p.openPipes(cmd, wantStdin, &given)
	}
	if err == nil {
		p.child, err = r.Start(cmd)
	}
	if err != nil {
		for _, f := range append(outs, p.stdin) {
			f.Close() // closing nil is an error without effect
		}
		return nil, err
	}
	sub := p.subscribe() // before the first byte is read
	for i, f := range outs {
		kind, chunk := outputKind(i), pipeChunk
		if size != nil {
			kind, chunk = kindPTY, ptyChunk
		}
		p.outputs.Add(1)
		go p.read(f, kind, chunk)
	}
	go p.wait(outs)
	return sub, nil
}

func (p *proc) openPTY(cmd *exec.Cmd, size *pty.Winsize, given *[]*os.File) ([]*os.File, error) {
	master, slave, err := pty.Open()
	if err != nil {
		return nil, fmt.Errorf("open a terminal: %w", err)
	}
	*given = append(*given, slave)
	p.tty = master
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr.Setctty = true // of descriptor 0
	if err := pty.Setsize(master, size); err != nil {
		return []*os.File{master}, fmt.Errorf("set up a terminal: %w", err)
	}
	if cmd.SysProcAttr.Credential != nil {
		if err := slave.Chown(int(cmd.SysProcAttr.Credential.Uid), -1); err != nil {
			return []*os.File{master}, fmt.Errorf("set up a terminal: %w", err)
		}
	}
	return []*os.File{master}, nil
}

func (p *proc) openPipes(cmd *exec.Cmd, wantStdin bool, given *[]*os.File) ([]*os.File, error) {
	var outs []*os.File
	for _, end := range []*io.Writer{&cmd.Stdout, &cmd.Stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			return outs, err
		}
		outs, *given, *end = append(outs, r), append(*given, w), w
	}
	if !wantStdin {
		return outs, nil // exec.Cmd opens /dev/null
	}
	r, w, err := os.Pipe()
	if err != nil {
		return outs, err
	}
	cmd.Stdin, *given, p.stdin = r, append(*given, r), w
	return outs, nil
}

// read publishes the data of f until its end, or until wait makes it stop.
func (p *proc) read(f *os.File, kind outputKind, chunk int) {
	defer p.outputs.Done()
	for buf := make([]byte, chunk); ; {
		n, err := f.Read(buf)
		if n > 0 {
			p.publish(dataEvent(kind, append([]byte(nil), buf[:n]...)))
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			p.rest(f, kind, buf)
			return
		}
		if err != nil { // EOF, or EIO from a terminal that no process has open
			return
		}
	}
}

// rest publishes the data now in the pipe. os.File no longer reads that data, because the deadline
// that made read stop has passed; rest bypasses the deadline.
func (p *proc) rest(f *os.File, kind outputKind, buf []byte) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	// Bounded, because processes left behind may go on writing: by default a pipe holds no more
	// than this.
	for left := 1 << 20; left > 0; {
		n := 0
		raw.Control(func(fd uintptr) { n, _ = syscall.Read(int(fd), buf) })
		if n <= 0 {
			return
		}
		left -= n
		p.publish(dataEvent(kind, append([]byte(nil), buf[:n]...)))
	}
}

// wait handles the process's end: all output first, then the end event, once.
func (p *proc) wait(outs []*os.File) {
	status := p.child.Status()
	for _, f := range outs {
		f.SetReadDeadline(time.Now().Add(lingerTimeout))
	}
	p.outputs.Wait()
	p.closeInput()
	for _, f := range outs {
		f.Close()
	}
	p.end = endEvent(status, status.Signal() == syscall.SIGKILL && oomKills() != p.oomKills)
	p.mu.Lock()
	subs := p.subs
	p.subs = nil
	p.mu.Unlock()
	p.stopped = time.Now()
	close(p.ended)
	for s := range subs {
		go s.finish(p.end)
	}
}

// oomKills returns how many processes the guest's kernel has killed for lack of memory, according
// to /proc/vmstat.
func oomKills() string {
	stat, _ := os.ReadFile("/proc/vmstat") // optional: without it lack of memory is not reported
	_, rest, _ := strings.Cut(string(stat), "\noom_kill ")
	count, _, _ := strings.Cut(rest, "\n")
	return count
}

// endEvent describes an end. It cannot tell whether an out-of-memory kill hit this process:
// outOfMemory says that there was one in the meantime.
func endEvent(status syscall.WaitStatus, outOfMemory bool) *process.ProcessEvent_EndEvent {
	if status.Signaled() {
		text := "signal: " + status.Signal().String()
		if status.CoreDump() {
			text += " (core dumped)"
		}
		if outOfMemory {
			text += " (the guest ran out of memory)"
		}
		return &process.ProcessEvent_EndEvent{ExitCode: -1, Status: text, Error: &text}
	}
	end := &process.ProcessEvent_EndEvent{
		ExitCode: int32(status.ExitStatus()), Exited: true, Status: fmt.Sprintf("exit status %d", status.ExitStatus()),
	}
	if end.ExitCode != 0 {
		end.Error = &end.Status
	}
	return end
}

// input writes to the process's stdin or terminal, and waits while the process does not read. With
// terminal, input for stdin goes to the terminal, if there is one.
func (p *proc) input(in *process.ProcessInput, terminal bool) error {
	p.inMu.Lock()
	defer p.inMu.Unlock()
	var to *os.File
	var data []byte
	switch in := in.GetInput().(type) {
	case *process.ProcessInput_Stdin:
		switch to, data = p.stdin, in.Stdin; {
		case p.tty != nil && terminal:
			to = p.tty
		case p.tty != nil:
			return errHasPTY
		case to == nil || p.stdinClosed:
			return errNoStdin
		}
	case *process.ProcessInput_Pty:
		if to, data = p.tty, in.Pty; to == nil {
			return errNoPTY
		}
	}
	if len(data) == 0 {
		return nil
	}
	_, err := to.Write(data)
	return err
}

// endOfInput is the byte that ends a terminal's input, unless it was configured otherwise: Ctrl-D.
const endOfInput = 4

func (p *proc) closeStdin(terminal bool) error {
	if p.tty != nil && terminal {
		return p.input(&process.ProcessInput{Input: &process.ProcessInput_Pty{Pty: []byte{endOfInput}}}, true)
	}
	if p.tty != nil {
		return errHasPTY
	}
	p.closeInput()
	return nil
}

// closeInput closes stdin. A write that waits for the process to read fails rather than keeping
// stdin open.
func (p *proc) closeInput() {
	if p.stdin == nil {
		return
	}
	p.stdin.SetWriteDeadline(time.Unix(1, 0))
	p.inMu.Lock()
	defer p.inMu.Unlock()
	if !p.stdinClosed {
		p.stdin.Close()
		p.stdinClosed = true
	}
}
