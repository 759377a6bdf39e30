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

// Bounds of the driver's answers.
const (
	maxMessage = 64 << 20 // bytes of one message, such as an image
	// startTimeout is how long an interpreter may take until its driver is ready. Jupyter's kernel
	// imports a thousand modules, which takes minutes on a busy computer with an emulated CPU.
	startTimeout = 15 * time.Minute
	// forkTimeout bounds the wait for the control thread. It is late only while user code holds the
	// interpreter lock in one long C call, or when a hundred guests share an emulated CPU. Then the
	// fork fails, because its random numbers cannot be replaced.
	forkTimeout = 30 * time.Second
	// prepareTimeout bounds a full garbage collection.
	prepareTimeout = 2 * time.Minute
)

var errDied = errors.New("the interpreter died")

// interpreter is one process.
type interpreter struct {
	backend *backend
	child   *reap.Child
	code    *os.File // messages of running code; see drivers/wire.py
	replies *bufio.Reader
	control *os.File
	answers *bufio.Reader
	output  *output

	// Guarded by the session's lock.
	idle bool           // no code runs or can run before the next call, according to the last "prepare"
	late controlRequest // what the next call must do first; Op is empty if nothing

	// For the call whose turn it is.
	executions int
	told       bool // a client has received the message that the process has died

	killed atomic.Bool // killed because its code did not end after an interrupt
}

// start starts an interpreter as u in dir and waits until its driver is ready.
func (b *backend) start(r *reap.Reaper, env *userenv.Env, u *userenv.User, dir string) (*interpreter, error) {
	environ := env.Environ(u, nil)
	path, err := b.find(environ)
	if err != nil {
		return nil, err
	}
	i := &interpreter{backend: b, idle: !b.listens}
	var given []*os.File // the child's ends
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
	codeEnd.Close() // so that the end of the process is seen as the end of the stream
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

// greeting reads the first line of a driver, which says that it is ready or why it is not.
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

// channels makes the pipes and sockets of an interpreter and appends the child's ends in the order
// of its descriptors: stdout, stderr, code, control, driver text.
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
	// Non-blocking before NewFile, so that Go's poller takes it and deadlines work; the child's end
	// stays blocking.
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

// receive returns the driver's next line of the code channel, without its newline.
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

// stop kills the interpreter and everything it started, and waits until it has ended.
func (i *interpreter) stop() {
	_ = i.child.SignalGroup(syscall.SIGKILL) // an error means that the process is gone
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
