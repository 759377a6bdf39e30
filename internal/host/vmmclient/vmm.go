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
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// Config configures Spawn.
type Config struct {
	Bin     string // path of the forkd-vmm binary
	Dir     string // directory of this VMM, made by Spawn; its path must fit into a unix socket address with a file name
	ID      string // for messages
	Shape   vm.Shape
	Cgroups *cgroup.Tree // holds its leaf, named as Dir; nil: no limits
	Jail    *jail.Starter
	KVM     *KVM // nil: not shared with other VMMs
}

// vmmEnv bounds the memory of the VMM's Go runtime.
//
// Its heap never holds more than a few hundred KiB, so collecting garbage would only dirty pages.
// So would a second thread while it starts; package vmm raises GOMAXPROCS when it has vCPUs. If the
// host gives transparent huge pages to all processes, the heap would take two of them, 4 MiB. The
// VMM cannot disable them itself, because its runtime has touched the heap by then; the runtime's
// other memory is too small for one. The VMM need not follow its cgroup's CPU limit, for which it
// would keep files open, nor reserve memory for profiles in every thread. Its memory profile is
// never read, but by default the runtime takes one sample in every program, and allocates a whole
// profile for it.
var vmmEnv = []string{"GOMAXPROCS=1", "GOGC=400",
	"GODEBUG=madvdontneed=1,disablethp=1,containermaxprocs=0,updatemaxprocs=0,profstackdepth=1,memprofilerate=0"}

// Conn is a stream that the guest opened to the host.
type Conn struct {
	Port uint32
	Conn net.Conn
}

// VMM is one forkd-vmm process. Its methods may be called concurrently; requests are carried out
// one after another.
//
// A request ends with its context, and after a time that depends on its work. Its error is then an
// ErrNoAnswer, and its outcome is unknown. A late reply is dropped. Until then the VMM accepts no
// other request.
type VMM struct {
	id      string
	dir     string
	proc    *process.Process
	leaf    *cgroup.Leaf // nil: no limits
	ctl     *ctlsock.Conn
	conns   chan Conn
	stalled chan struct{} // has a buffer of one
	lost    chan struct{} // closed when nothing more will be received from the VMM: it hung up, or broke the protocol
	done    chan struct{} // closed when the process has ended too

	limits limits
	turn   chan struct{} // has a buffer of one: held from a request to its reply, even if no caller waits for the reply

	first uint64        // base of this client's serials: a random number
	asked atomic.Uint64 // number of branches requested by this client; first+asked is the latest serial

	mu sync.Mutex
	// +checklocks:mu
	exit vm.Exit
	// +checklocks:mu
	broke error // how the VMM broke the protocol, see condemn; nil: it did not
	// +checklocks:mu
	answer chan reply // for the current request, nil if there is none; has a buffer of one
	// +checklocks:mu
	copies map[uint64]chan vmmproto.Branched // ends of current live branches, by serial; each has a buffer of one
}

// Errors of requests. The outcome of a request without an answer is unknown; Stats reveals it
// later.
var (
	ErrGone     = errors.New("the VMM has ended")
	ErrNoAnswer = errors.New("the VMM does not answer; delete the sandbox if that lasts")
	ErrHostile  = errors.New("the VMM broke the control protocol and was killed")
)

// Spawn starts a VMM and makes its machine, empty and paused. On failure nothing is left behind.
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
	// Connect before the process starts, because the process exits when its daemon hangs up. So a
	// daemon that dies before it has recorded the process leaves no process behind.
	ctl, err := ctlsock.Dial(filepath.Join(cfg.Dir, ControlSocket))
	if err != nil {
		return nil, err
	}
	proc, err := process.Start(process.Spec{
		Name: "forkd-vmm", Bin: cfg.Bin, Env: vmmEnv, Listener: listenerFile, Cgroup: place, Jail: cfg.Jail,
		Record: filepath.Join(cfg.Dir, pidFile),
	})
	_ = listenerFile.Close() // so that the process's exit is noticed before it has accepted the connection
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

// Attach finds the VMM that another daemon started in dir and left running, and its leaf in
// cgroups. An intact VMM listens as long as it lives. If nothing listens, the VMM has closed its
// socket, so that no daemon can reach it any more, and Attach kills it. If IsShortage reports true
// for the error, nothing has been touched.
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

// errUndecided marks errors of connecting that leave open whether a VMM listens. An example is
// EAGAIN: a living VMM has not accepted the connections of earlier daemons yet.
var errUndecided = errors.New("it is not known whether the VMM can be reached")

// IsShortage reports whether an error means that the daemon lacks a resource, and says nothing
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

// reap waits for the end of the process and of its connection, and then announces it.
func (v *VMM) reap() {
	_ = v.proc.Wait()
	// Messages that the VMM has sent are still received, such as its exit event. The VMM's end of the
	// connection may outlive the VMM, if the VMM has passed the descriptor on.
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
	_ = v.leaf.Remove() // the next daemon sweeps the rest
	_ = v.ctl.Close()
	close(v.done)
}

// killed returns the exit of a VMM that ended without a message.
func (v *VMM) killed() vm.Exit {
	switch byLimit, why := v.leaf.Killed(); {
	case byLimit:
		return vm.Exit{Reason: vm.ExitMemoryLimit, Detail: why}
	case why != "":
		return vm.Exit{Reason: vm.ExitHostMemory, Detail: why}
	}
	return vm.Exit{Reason: vm.ExitInternal, Detail: "forkd-vmm was killed" + v.lastWords()}
}

// lastWords returns the beginning of the VMM's standard error, such as the message of a panic. For
// a system call that the jail forbids it returns the name of the call.
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
	vsock, err := listenVsock(filepath.Join(cfg.Dir, VsockSocket))
	if err != nil {
		return err
	}
	defer unix.Close(vsock)
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
	if err := v.call(ctx, vmmproto.KindCreate, req, []int{device, vsock, int(ring.Fd())}, &created); err != nil {
		return err
	}
	kvm.learn(created.CPUID) // trusted, because there is no guest yet
	return nil
}

// vsockBacklog is the number of host connections that may wait for the VMM to accept them.
const vsockBacklog = 64

func listenVsock(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("create vsock socket: %w", err)
	}
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, vsockBacklog)); err != nil {
		return -1, errors.Join(fmt.Errorf("listen on vsock socket %s: %w", path, err), unix.Close(fd))
	}
	return fd, nil
}
