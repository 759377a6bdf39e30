// Package jail starts and locks up the processes that handle what guests write: forkd-vmm and
// forkd-net.
//
// The daemon starts such a process with a Starter: in namespaces of its own, and as a user of its
// own where the daemon is root. The process calls Enter before it reads anything that a guest
// or the daemon sent. From then on it has an empty, read-only root, no capability, and the system
// calls of its Filter and no others. What is not allowed by the filter is never carried out; a
// process that tries is ended by its own runtime (SIGSYS), which prints the call, for package
// violation to find.
//
// Which calls those are is said by the packages that make them, in terms of Call. Package filter
// makes the filter of them, when the code is generated: assembling it in each process would cost
// more memory than all the rest of the jail.
//
// The package sets no limits of CPU and memory: those are of cgroups.
package jail

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Options are what a host that cannot give everything is spared. The zero value is the whole jail.
type Options struct {
	// NoNamespaces starts processes in the daemon's namespaces, as the daemon's user and with its
	// root directory: Landlock and the filter are then what keeps them from files.
	NoNamespaces bool
}

// How a process was started, as it finds it in its environment. Without a word there, it refuses to
// enter a jail: the root directory that it would leave is the host's.
const (
	environment  = "FORKD_JAIL"
	noNamespaces = "no-namespaces" // in those of the daemon
	ownMapped    = "mapped"        // in a user namespace, whose only user is the daemon's
	ownUser      = "user="         // it becomes this user
)

// Users that processes run as, when the daemon is root: 2^27 numbers that no distribution gives to
// users, subordinate users or containers (systemd's UIDS-GIDS.md lists who takes which). Each VMM
// gets one by chance: of a thousand at once, two have the same with a probability of 1 in 270, and
// gain nothing from it.
const (
	firstUser = 0x7000_0000
	users     = 1 << 27
)

// namespaces are those that every process gets, for less than 0.2 ms.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// Starter starts processes that will enter their jails.
//
// Where the daemon is root, a process gets no user namespace, but a user of its own. It is as
// powerless as in one, for it keeps no capability and can get none; but Go starts a process in a
// new user namespace by a full fork, which takes 3 ms longer for a daemon of 40 MiB. Nor does it
// get a network namespace of its own: all VMMs share one, which is empty, and in which they can
// make no socket. One each would cost 0.7 ms, and as much again when it ends.
type Starter struct {
	options Options
	offline chan func() // to the threads that are in the empty network; nil if the daemon is not root
}

// New returns a Starter for as long as the process lives.
func New(o Options) (*Starter, error) {
	// What this process was started with and did not ask for goes to none that it starts. What it
	// opens itself goes to nobody anyway.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fmt.Errorf("keep descriptors from processes: %w", err)
	}
	s := &Starter{options: o}
	if o.NoNamespaces || !ownUsers() {
		return s, nil
	}
	s.offline = make(chan func())
	network := -1
	for range min(runtime.NumCPU(), starters) {
		ready := make(chan started)
		go s.serve(network, ready)
		first := <-ready
		if first.err != nil {
			return nil, first.err
		}
		if network < 0 {
			defer unix.Close(first.network)
		}
		network = first.network
	}
	return s, nil
}

// starters bounds the threads that start processes. One start keeps its thread for most of a
// millisecond, and a fork of many children waits for as many.
const starters = 4

// started tells of a thread that is ready to start processes.
type started struct {
	network int // the empty network
	err     error
}

// serve makes its thread one that starts processes without a network, in the given empty one or,
// if that is -1, a new one.
func (s *Starter) serve(network int, ready chan<- started) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The first thread stands for the process in /proc/self: it waits for another one to do it.
		other := make(chan started)
		go s.serve(network, other)
		ready <- <-other
		runtime.UnlockOSThread()
		return
	}
	network, err := prepareThread(network)
	ready <- started{network, err}
	if err != nil {
		return // the thread ends, for it is still locked
	}
	for start := range s.offline {
		start()
	}
}

// Start starts a process as os.StartProcess does. Unless it is online it has no way to any network.
func (s *Starter) Start(name string, argv []string, attr os.ProcAttr, online bool) (p *os.Process, err error) {
	sys := syscall.SysProcAttr{}
	if attr.Sys != nil {
		sys = *attr.Sys
	}
	attr.Sys = &sys
	how := noNamespaces
	switch {
	case s.options.NoNamespaces:
	case s.offline != nil:
		how = fmt.Sprint(ownUser, firstUser+rand.IntN(users))
		sys.Cloneflags |= namespaces
	default:
		how = ownMapped
		sys.Cloneflags |= namespaces | unix.CLONE_NEWUSER
		if !online {
			sys.Cloneflags |= unix.CLONE_NEWNET
		}
		sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	attr.Env = append(slices.Clone(attr.Env), environment+"="+how)
	if s.offline == nil || online {
		return os.StartProcess(name, argv, &attr)
	}
	done := make(chan struct{})
	s.offline <- func() {
		p, err = os.StartProcess(name, argv, &attr)
		close(done)
	}
	<-done
	return p, err
}

// Try starts a program that enters its jail, to see whether this host allows that. The program
// finds no socket, and ends.
func (s *Starter) Try(program string) error {
	nothing, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer nothing.Close()
	said, says, err := os.Pipe()
	if err != nil {
		return err
	}
	defer said.Close()
	attr := os.ProcAttr{Dir: "/", Env: []string{"GOMAXPROCS=1"}, Files: []*os.File{nil, nil, says, nothing}}
	p, err := s.Start(program, []string{filepath.Base(program)}, attr, false)
	_ = says.Close()
	if err != nil {
		return err
	}
	text, err := io.ReadAll(said)
	state, waited := p.Wait()
	if err := errors.Join(err, waited); err != nil {
		return err
	}
	if state.ExitCode() == ExitCode || !state.Exited() {
		return errors.New(strings.TrimSpace(string(text)))
	}
	return nil
}

// prepareThread moves this thread into an empty network, which it returns, and does once what Enter
// would have to do in each process, with all of its threads: there is an empty directory, and what
// the thread starts has no groups and only the capabilities that Enter needs.
func prepareThread(network int) (int, error) {
	var err error
	if network < 0 {
		network, err = newNetwork()
	} else {
		err = unix.Setns(network, unix.CLONE_NEWNET)
	}
	if err != nil {
		return -1, fmt.Errorf("enter an empty network namespace: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return -1, fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := mountEmpty(); err != nil {
		return -1, fmt.Errorf("mount an empty directory: %w", err)
	}
	// Not unix.Setgroups, which is for all threads.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
		return -1, fmt.Errorf("leave all groups: %w", errno)
	}
	return network, passOnCapabilities()
}

// newNetwork moves this thread into a new network namespace and returns it.
func newNetwork() (int, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return -1, err
	}
	return unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// passOnCapabilities lets what this thread starts have only what Enter needs.
func passOnCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3} // of this thread
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	for _, c := range []int{unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_SETUID, unix.CAP_SETGID} {
		caps[c/32].Inheritable |= 1 << (c % 32)
	}
	if err := unix.Capset(&header, &caps[0]); err != nil {
		return fmt.Errorf("pass on capabilities: %w", err)
	}
	for c := uintptr(0); ; c++ {
		switch err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); {
		case err == unix.EINVAL && c > 0: // behind the last that the kernel knows
			return nil
		case err != nil:
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
}

// ownUsers reports whether this process can start others as users of their own: it is root, and not
// root of a container that has too few users.
func ownUsers() bool {
	if os.Geteuid() != 0 {
		return false
	}
	for _, name := range []string{"uid_map", "gid_map"} {
		text, err := os.ReadFile("/proc/self/" + name)
		if err != nil || !covers(string(text)) {
			return false
		}
	}
	return true
}

// covers reports whether a map of /proc/PID/uid_map has all of our users.
func covers(text string) bool {
	for line := range strings.Lines(text) {
		var inside, outside, length uint64
		if _, err := fmt.Sscan(line, &inside, &outside, &length); err == nil &&
			inside <= firstUser && firstUser+users <= inside+length {
			return true
		}
	}
	return false
}
