package eval

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guest/reap"
	"github.com/forkd/forkd/internal/guest/userenv"
)

// Bounds on the driver's messages.
const (
	maxMessage = 64 << 20 // bytes of one message, such as an image
	// startTimeout is how long the driver of a new interpreter may take to become ready. Jupyter's
	// kernel imports a thousand modules, which takes minutes on a busy computer with an emulated
	// CPU.
	startTimeout = 15 * time.Minute
	// forkTimeout is how long the driver's control thread may take to answer. The thread answers
	// late only if user code holds the interpreter lock in one long C call, or if a hundred guests
	// share an emulated CPU. The fork then fails, because the interpreter still has the random
	// numbers of its siblings.
	forkTimeout = 30 * time.Second
	// prepareTimeout is how long the driver may take to answer "prepare". The driver runs a full
	// garbage collection before it answers.
	prepareTimeout = 2 * time.Minute
)

var errDied = errors.New("the interpreter died")

// interpreter is one process that runs a backend.
type interpreter struct {
	backend *backend
	child   *reap.Child
	code    *os.File // channel for code to run, and for messages about the code; see drivers/wire.py
	replies *bufio.Reader
	control *os.File
	answers *bufio.Reader
	output  *output

	// idle and late are guarded by the session's lock.
	idle bool           // no code can run before the next call, according to the latest answer to "prepare"
	late controlRequest // request to carry out before the next call; Op is empty if there is none

	// The fields below belong to the call that has the turn.
	executions int
	told       bool // a client has been told that the process has died

	killed atomic.Bool // the process was killed because its code did not end after an interrupt
}

// start starts an interpreter as user u in directory dir, and waits until its driver is ready.
func (b *backend) start(r *reap.Reaper, env *userenv.Env, u *userenv.User, dir string) (*interpreter, error) {
	environ := env.Environ(u, nil)
	path, err := b.find(environ)
	if err != nil {
		return nil, err
	}
	i := &interpreter{backend: b, idle: !b.listens}
	var given []*os.File // descriptors for the child
	defer func() {
		for _, f := range given {
			f.Close()
		}
	}()
	codeEnd, err := i.channels(&given)
	if err != nil {
		i.close()
		return nil, fmt.Errorf("start %s: %w", b.program, err)
	}
	cmd := &exec.Cmd{
		Path: path, Args: append([]string{b.program}, b.args...), Env: environ, Dir: dir,
		Stdout: given[0], Stderr: given[1], ExtraFiles: given[2:],
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Credential: u.Credential()},
	}
	if i.child, err = r.Start(cmd); err != nil {
		i.close()
		return nil, fmt.Errorf("start %s: %w", b.program, err)
	}
	codeEnd.Close() // only the child may hold this file, so that the stream ends when the child exits
	go i.output.run()
	i.code.SetReadDeadline(time.Now().Add(startTimeout))
	first, err := i.receive()
	i.code.SetReadDeadline(time.Time{})
	if err == nil {
		err = i.greeting(first)
	}
	if err != nil {
		i.stop()
		return nil, fmt.Errorf("start %s: %w", b.program, err)
	}
	return i, nil
}

// greeting checks the first line of a driver, which says that the driver is ready, or why it is
// not.
func (i *interpreter) greeting(line []byte) error {
	var m message
	if err := json.Unmarshal(bytes.TrimPrefix(line, []byte("M0 ")), &m); err != nil {
		return fmt.Errorf("the driver did not become ready: %w", err)
	}
	switch m.Type {
	case "ready":
		return nil
	case "unsupported":
		return &unsupportedError{i.backend.language, m.Text}
	}
	return fmt.Errorf("the driver did not become ready, but said %q", m.Type)
}

// channels makes the pipes and sockets of an interpreter. It appends the child's ends to *given, in
// the order of the child's descriptors: stdout, stderr, code, control, driver text.
func (i *interpreter) channels(given *[]*os.File) (codeEnd *os.File, err error) {
	var outs [2]*os.File
	for n := range outs {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		outs[n] = r
		*given = append(*given, w)
	}
	i.output = newOutput(outs[0], outs[1])
	for _, end := range []**os.File{&i.code, &i.control} {
		ours, theirs, err := socketPair()
		if err != nil {
			return nil, err
		}
		*end = ours
		*given = append(*given, theirs)
	}
	i.replies, i.answers = bufio.NewReader(i.code), bufio.NewReader(i.control)
	text, err := driverFile(i.backend.driver)
	if err != nil {
		return nil, err
	}
	*given = append(*given, text)
	return (*given)[2], nil
}

func socketPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	// Set our end to non-blocking before NewFile, because Go's poller manages only non-blocking
	// files, and deadlines need the poller. The child's end stays blocking.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "agent"), os.NewFile(uintptr(fds[1]), "interpreter"), nil
}

func driverFile(driver string) (*os.File, error) {
	fd, err := unix.MemfdCreate("forkd-driver", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), "forkd-driver")
	if _, err := f.WriteString(driver); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// dead reports whether the process has ended.
func (i *interpreter) dead() bool {
	select {
	case <-i.child.Done():
		return true
	default:
		return false
	}
}

// receive returns the next line from the driver's code channel, without its newline.
func (i *interpreter) receive() ([]byte, error) { return readLine(i.replies, maxMessage) }

func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if err == nil && line == nil {
			return part[:len(part)-1], nil
		}
		line = append(line, part...)
		if err == nil {
			return line[:len(line)-1], nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
		if len(line) > limit {
			return nil, fmt.Errorf("a message of the interpreter exceeds %d bytes", limit)
		}
	}
}

// stop kills the interpreter and the processes in its group, and waits until the interpreter's
// process has ended.
func (i *interpreter) stop() {
	_ = i.child.SignalGroup(syscall.SIGKILL) // fails only if the process has ended
	<-i.child.Done()
	i.close()
}

func (i *interpreter) close() {
	for _, f := range []*os.File{i.code, i.control} {
		if f != nil {
			f.Close()
		}
	}
	if i.output != nil {
		i.output.close()
	}
}
