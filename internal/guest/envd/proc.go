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

// Sizes in bytes of one read of a process's output.
const (
	pipeChunk = 32 << 10
	ptyChunk  = 16 << 10
)

// After a process has ended, processes that it left behind may keep its output open for
// lingerTimeout. The output of the process itself is always delivered.
const lingerTimeout = time.Second

var (
	errNoStdin = errors.New("the process has no open stdin")
	errNoPTY   = errors.New("the process has no terminal")
	errHasPTY  = errors.New("the process has a terminal; send pty input")
)

// proc is a running or recently ended process. Every subscriber receives all output of the process.
// The output is not stored, so the process waits for the slowest subscriber.
type proc struct {
	config *process.ProcessConfig
	tag    *string

	oomKills string // value of oomKills() when the process started
	child    *reap.Child
	outputs  sync.WaitGroup
	stopped  time.Time // when the process ended; set before p.ended is closed
	ended    chan struct{}
	end      *process.ProcessEvent_EndEvent // set before p.ended is closed

	stdin *os.File // nil if the process has none
	tty   *os.File // master side of the terminal; nil without a terminal

	inMu        sync.Mutex // held while writing to stdin or tty
	stdinClosed bool

	mu   sync.Mutex
	subs map[*subscription]struct{}
}

// subscription receives a process's events. When the subscriber stops receiving, it closes the
// channel in the field gone.
type subscription struct {
	events chan *process.ProcessEvent
	gone   chan struct{}
}

// subscribe returns a subscription to all events from now on. Its channel is closed after the end
// event.
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

// start runs a command. The caller has set its path, arguments, environment, directory and
// credential.
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
			f.Close() // Close of a nil file only returns an error
		}
		return nil, err
	}
	sub := p.subscribe() // subscribe before output is read, so that the subscriber misses none
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
	cmd.SysProcAttr.Setctty = true // descriptor 0 becomes the controlling terminal
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
		return outs, nil // stdin stays nil, which exec.Cmd replaces with /dev/null
	}
	r, w, err := os.Pipe()
	if err != nil {
		return outs, err
	}
	cmd.Stdin, *given, p.stdin = r, append(*given, r), w
	return outs, nil
}

// read publishes the data of f until f ends, or until the deadline that p.wait sets.
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
		if err != nil { // io.EOF, or EIO when no process has the terminal open any more
			return
		}
	}
}

// rest publishes the data that is in the pipe at the moment. It reads the descriptor directly,
// because os.File does not read after the deadline that p.wait has set.
func (p *proc) rest(f *os.File, kind outputKind, buf []byte) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	// The loop is bounded, because processes that were left behind may continue to write. The bound
	// is the default maximum size of a pipe.
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

// wait waits until the process has ended. It publishes the rest of the output, and then the end
// event.
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

// oomKills returns the number of processes that the guest's kernel has killed for lack of memory,
// as text from /proc/vmstat.
func oomKills() string {
	stat, _ := os.ReadFile("/proc/vmstat") // after an error, out-of-memory kills are not reported
	_, rest, _ := strings.Cut(string(stat), "\noom_kill ")
	count, _, _ := strings.Cut(rest, "\n")
	return count
}

// endEvent describes how a process ended. The parameter outOfMemory says that the kernel killed a
// process for lack of memory while this process ran. It is unknown whether the kernel killed this
// process or another one.
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

// input writes to the process's stdin or terminal, and blocks while the process does not read. If
// terminal is set and the process has a terminal, input for stdin goes to the terminal.
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

// endOfInput is Ctrl-D, the byte that ends a terminal's input in the default configuration.
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

// closeInput closes stdin. If a write to stdin is blocked because the process does not read,
// closeInput makes the write fail, so that the write cannot keep stdin open.
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
