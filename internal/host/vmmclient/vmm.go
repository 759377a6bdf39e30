package vmmclient

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/format/console"
	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/process"
	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/jail/violation"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// Config configures Spawn.
type Config struct {
	Bin string // path of the forkd-vmm binary
	// directory of this VMM, which Spawn makes; must be short, because it is part of unix sockets'
	// addresses
	Dir     string
	ID      string // id of the VM in messages
	Shape   vm.Shape
	Cgroups *cgroup.Tree // makes the VMM's cgroup, which has the base name of Dir; nil: no limits
	Jail    *jail.Starter
	KVM     *KVM // parts of KVM that VMMs share; nil: nothing is shared
}

// vmmEnv is the environment of a VMM. It bounds the memory of the VMM's Go runtime.
//
// GOMAXPROCS=1 saves the pages of a second thread, until package vmm raises the value when the VMM
// has vCPUs. GOGC=400 makes garbage collections rare, because each collection would write to more
// pages, and the heap has only a few hundred KiB. Without disablethp, the heap would take two
// transparent huge pages, or 4 MiB. The VMM's own code cannot disable huge pages, because the
// runtime touches the heap before any other code runs. containermaxprocs and updatemaxprocs stop
// the runtime from watching the cgroup's CPU limit, which would keep files open. profstackdepth and
// memprofilerate save the memory of unused profiles.
var vmmEnv = []string{"GOMAXPROCS=1", "GOGC=400",
	"GODEBUG=madvdontneed=1,disablethp=1,containermaxprocs=0,updatemaxprocs=0,profstackdepth=1,memprofilerate=0"}

// Conn is a stream that the guest has opened to the host.
type Conn struct {
	Port uint32
	Conn net.Conn
}

// VMM is one forkd-vmm process. Its methods may be called concurrently; the VMM executes the
// requests one after another.
//
// A request fails with ErrNoAnswer when its context ends, or after a time limit that depends on its
// kind. The outcome of the request is then unknown, and its reply is dropped when it arrives. No
// further request can be made before the reply has arrived.
type VMM struct {
	id      string
	dir     string
	proc    *process.Process
	leaf    *cgroup.Leaf // nil: no limits
	ctl     *ctlsock.Conn
	conns   chan Conn
	stalled chan struct{} // see Stalled; has a buffer of one value
	// closed when no more messages will come from the VMM, because it hung up or violated the
	// protocol
	lost chan struct{}
	done chan struct{} // closed after lost, when the process has also ended

	limits limits
	// used as a lock: holds a value from a request until its reply, even if no caller waits for the
	// reply
	turn chan struct{}

	first uint64        // random number at which this client's serials begin
	asked atomic.Uint64 // number of branches that this client has requested; first+asked is the latest serial

	mu sync.Mutex
	// +checklocks:mu
	exit vm.Exit
	// +checklocks:mu
	broke error // how the VMM violated the protocol, see condemn; nil if it has not
	// +checklocks:mu
	answer chan reply // receives the reply to the current request; nil if there is none; has a buffer of one value
	// +checklocks:mu
	// channels for the reports that live branches have ended, by serial; each has a buffer of one value
	copies map[uint64]chan vmmproto.Branched
	// +checklocks:mu
	streams []net.Conn // streams that the guest may open; nil for each stream that it has opened
}

// Errors of requests. After ErrNoAnswer the outcome of the request is unknown; Stats reveals it
// later.
var (
	ErrGone     = errors.New("the VMM has ended")
	ErrNoAnswer = errors.New("the VMM does not answer; delete the sandbox if that lasts")
	ErrHostile  = errors.New("the VMM broke the control protocol and was killed")
)

// Spawn starts a VMM and makes its machine, which is paused and has no guest. After an error Spawn
// removes everything that it has made.
func Spawn(ctx context.Context, cfg Config) (_ *VMM, err error) {
	var undo cleanup.Stack
	defer undo.Run()
	if err := os.Mkdir(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create VMM directory: %w", err)
	}
	undo.Add(func() { _ = os.RemoveAll(cfg.Dir) })
	leaf, err := cfg.Cgroups.New(filepath.Base(cfg.Dir), cfg.Shape.MemoryBytes)
	if err != nil {
		return nil, err
	}
	undo.Add(func() { _ = leaf.Remove() })
	place, err := leaf.Open()
	if err != nil {
		return nil, err
	}
	if place != nil {
		defer place.Close()
	}
	listener, err := ctlsock.Listen(filepath.Join(cfg.Dir, ControlSocket))
	if err != nil {
		return nil, err
	}
	listenerFile := os.NewFile(uintptr(listener), "control listener")
	defer listenerFile.Close()
	// Connect before the process starts, because the process exits when its peer hangs up. So if
	// the daemon is killed before it has recorded the process, the process exits.
	ctl, err := ctlsock.Dial(filepath.Join(cfg.Dir, ControlSocket))
	if err != nil {
		return nil, err
	}
	proc, err := process.Start(process.Spec{
		Name: "forkd-vmm", Bin: cfg.Bin, Env: vmmEnv, Files: []*os.File{listenerFile}, Cgroup: place, Jail: cfg.Jail,
		Record: filepath.Join(cfg.Dir, pidFile),
	})
	_ = listenerFile.Close() // if it stayed open, the daemon would not notice an exit before the connection is accepted
	if err != nil {
		return nil, errors.Join(err, ctl.Close())
	}
	v := newVMM(cfg.ID, cfg.Dir, proc, leaf, ctl)
	v.setOOMScore(oomScore)
	undo.Add(func() { _ = v.Kill() })
	if err := v.create(ctx, &cfg); err != nil {
		return nil, fmt.Errorf("create machine: %w", err)
	}
	undo.Release()
	return v, nil
}

// Attach connects to the VMM that an earlier daemon has started in dir and left running, and finds
// the VMM's cgroup. A working VMM listens until it ends. A VMM that does not listen has closed its
// socket. No daemon can connect to such a VMM any more, so Attach kills it. If IsShortage is true
// for the error, Attach has changed nothing.
func Attach(cgroups *cgroup.Tree, id, dir string) (*VMM, error) {
	proc, err := process.Find("forkd-vmm", filepath.Join(dir, pidFile))
	if err != nil {
		return nil, err
	}
	ctl, err := ctlsock.Dial(filepath.Join(dir, ControlSocket))
	switch {
	case err == nil:
		v := newVMM(id, dir, proc, cgroups.Find(filepath.Base(dir)), ctl)
		v.tightenAfter(v.limits.long)
		return v, nil
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOENT):
		return nil, errors.Join(err, kill(proc))
	}
	pid := proc.PID()
	proc.Release()
	return nil, fmt.Errorf("%w: process %d: %w", errUndecided, pid, err)
}

// errUndecided is wrapped by errors of connect(2) that do not show whether a VMM listens. An
// example is EAGAIN: the socket's queue is full of connections of earlier daemons that the VMM has
// not accepted yet.
var errUndecided = errors.New("it is not known whether the VMM can be reached")

// IsShortage reports whether err means that the daemon lacks a resource, so that err says nothing
// about the VMM.
func IsShortage(err error) bool {
	for _, short := range []error{errUndecided, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.ETOOMANYREFS} {
		if errors.Is(err, short) {
			return true
		}
	}
	return false
}

// kill kills a process that has no client, and waits until it has ended.
func kill(proc *process.Process) error {
	if err := proc.Kill(); err != nil {
		proc.Release()
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- proc.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(defaultLimits.end):
		return fmt.Errorf("process %d has not ended %v after SIGKILL", proc.PID(), defaultLimits.end)
	}
}

func newVMM(id, dir string, proc *process.Process, leaf *cgroup.Leaf, ctl *ctlsock.Conn) *VMM {
	v := &VMM{
		id: id, dir: dir, proc: proc, leaf: leaf, ctl: ctl,
		conns: make(chan Conn, 4), stalled: make(chan struct{}, 1), lost: make(chan struct{}), done: make(chan struct{}),
		limits: defaultLimits, turn: make(chan struct{}, 1), copies: map[uint64]chan vmmproto.Branched{},
	}
	v.first = rand.Uint64()
	go v.receive()
	go v.reap()
	return v
}

// reap waits for the end of the process and of its connection, and then closes v.done.
func (v *VMM) reap() {
	_ = v.proc.Wait()
	// receive still handles messages that the VMM sent before its end, such as the reason of its exit.
	// Shut the connection down, because it outlives the VMM if the VMM has passed the descriptor to
	// another process.
	v.ctl.Shutdown()
	<-v.lost
	v.mu.Lock()
	switch {
	case v.broke != nil:
		v.exit = vm.Exit{Reason: vm.ExitInternal, Detail: "forkd-vmm broke the control protocol and was killed: " +
			v.broke.Error()}
	case v.exit.Reason == 0:
		v.exit = v.killed()
	}
	v.mu.Unlock()
	_ = v.leaf.Remove() // after an error, the next daemon removes it
	_ = v.ctl.Close()
	close(v.done)
}

// killed returns the exit of a VMM that ended without reporting a reason.
func (v *VMM) killed() vm.Exit {
	switch byLimit, why := v.leaf.Killed(); {
	case byLimit:
		return vm.Exit{Reason: vm.ExitMemoryLimit, Detail: why}
	case why != "":
		return vm.Exit{Reason: vm.ExitHostMemory, Detail: why}
	}
	return vm.Exit{Reason: vm.ExitInternal, Detail: "forkd-vmm was killed" + v.lastWords()}
}

// lastWords returns the beginning of the VMM's standard error, for example a panic. If the jail has
// refused a system call, lastWords returns the name of the call.
func (v *VMM) lastWords() string {
	said := v.proc.Said()
	if call := violation.Call(said); call != "" {
		return ": its jail forbids the system call " + call
	}
	const most = 2000 // bytes
	if text := strings.TrimSpace(said[:min(len(said), most)]); text != "" {
		return ": " + vmmproto.Text(text)
	}
	return ""
}

func (v *VMM) create(ctx context.Context, cfg *Config) error {
	kvm := cfg.KVM
	if kvm == nil {
		kvm = &KVM{}
		defer kvm.Close()
	}
	device, cpuid, err := kvm.open()
	if err != nil {
		return err
	}
	vsock, err := listen(filepath.Join(cfg.Dir, VsockSocket), unix.SOCK_STREAM, vsockBacklog)
	if err != nil {
		return err
	}
	defer unix.Close(vsock)
	frames, err := listen(filepath.Join(cfg.Dir, framesSocket), unix.SOCK_SEQPACKET, framesBacklog)
	if err != nil {
		return err
	}
	defer unix.Close(frames)
	ring, err := os.OpenFile(filepath.Join(cfg.Dir, consoleFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer ring.Close()
	if err := console.Format(ring); err != nil {
		return err
	}
	req := &vmmproto.Create{Version: vmmproto.Version, Shape: cfg.Shape, CPUID: cpuid}
	var created vmmproto.Created
	if err := v.call(ctx, vmmproto.KindCreate, req, []int{device, vsock, int(ring.Fd()), frames}, &created); err != nil {
		return err
	}
	kvm.learn(created.CPUID) // the answer can be trusted, because the VMM has no guest yet
	return nil
}

// Numbers of connections that may wait for the VMM to accept them.
const (
	vsockBacklog = 64
	// At most two frame sockets wait for a working VMM, because it accepts all waiting sockets at its
	// next request. If a hostile VMM accepts none, framesBacklog bounds the memory of the waiting
	// sockets.
	framesBacklog = 16
)

// listen makes a listener in non-blocking mode for the VMM. The kind is SOCK_STREAM or
// SOCK_SEQPACKET.
func listen(path string, kind, backlog int) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("create a socket: %w", err)
	}
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, backlog)); err != nil {
		return -1, errors.Join(fmt.Errorf("listen on socket %s: %w", path, err), unix.Close(fd))
	}
	return fd, nil
}

// DialFrames connects a new frame socket to the VMM, and returns the other end, which is for
// forkd-net. The VMM begins to use the newest frame socket at the next Boot, Restore or SetNet that
// asks for a network. DialFrames does not wait. If too many connections wait for the VMM,
// DialFrames returns an error.
func (v *VMM) DialFrames() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a frame socket: %w", err)
	}
	// The descriptor is still blocking here, so package os does not add the file to its poller. This
	// process does not read or write the file, and polling it would cost system calls and a wake-up
	// in every fork.
	f := os.NewFile(uintptr(fd), "frame socket")
	err = errors.Join(unix.SetNonblock(fd, true),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, frame.BufferBytes))
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: filepath.Join(v.dir, framesSocket)})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect a frame socket to forkd-vmm %s: %w", v.id, err), f.Close())
	}
	return f, nil
}
