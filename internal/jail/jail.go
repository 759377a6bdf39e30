// Package jail starts and confines the processes that handle data from guests and from strangers:
// forkd-vmm, forkd-net, forkd-ssh and forkd-feed.
//
// The daemon starts such a process with a Starter. The process has its own namespaces and, if the
// daemon is root, its own user. The process calls Enter before it reads anything from a guest, a
// client or the daemon. From then on it has an empty, read-only root directory, no capabilities,
// and only the system calls of its filter. The kernel does not carry out other calls. If the
// process tries such a call, it receives SIGSYS. Its Go runtime then prints the registers and
// exits, and package violation finds the call in that output.
//
// The packages that make system calls declare these calls as values of type Call. Package filter
// makes the filter from these declarations during code generation. Assembling the filter in each
// process would take more memory than the rest of the jail.
//
// The package does not limit CPU, and limits memory only for the many forkd-ssh processes. For CPU,
// and for the memory of the other processes, the daemon uses cgroups.
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

// Options weaken the jail on hosts that lack a feature. The zero Options is the complete jail.
type Options struct {
	// NoNamespaces starts processes in the daemon's namespaces, with the daemon's user and root
	// directory. Then only Landlock and the filter deny access to files.
	NoNamespaces bool
}

// The environment variable that tells Enter how the process was started, and its values. Without
// the variable, Enter returns an error. If it continued, it could unmount the root directory of the
// host.
const (
	environment  = "FORKD_JAIL"    // name of the variable
	noNamespaces = "no-namespaces" // the process is in the daemon's namespaces
	ownMapped    = "mapped"        // the process is in a user namespace that has only the daemon's user
	ownUser      = "user="         // followed by the number of the user to which Enter changes
	placed       = "placed"        // the process has its own user, no capabilities, and an empty root directory already
)

// Proc is the path of procfs for a process that a Starter has started. It is the process's working
// directory until Enter.
const Proc = "."

// User numbers of the jailed processes, if the daemon is root. No distribution assigns these 2^27
// numbers to users, subordinate users or containers (systemd's UIDS-GIDS.md lists the assignments).
// Each VMM has a random number. Among a thousand VMMs, two have the same number with a probability
// of 1 in 270. Two VMMs with the same number still have no access to each other.
const (
	firstUser = 0x7000_0000
	users     = 1 << 27
)

// namespaces are the new namespaces of every process. Creating them takes about 0.1 ms.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// Starter starts processes that will enter their jails.
//
// If the daemon is root, a process has its own user instead of a user namespace. This is equally
// safe, because the process has no capabilities and cannot gain any capability. A new user
// namespace would be slower, because Go then starts the process by a full fork, which takes 3 ms
// longer in a daemon of 40 MiB.
//
// Such a process also has no network namespace of its own, because creating a network namespace
// takes 0.7 ms, and removing it takes 0.7 ms. All VMMs share an empty network namespace, in which
// they cannot make sockets. A new IPC namespace would take 0.1 ms, so processes share the IPC
// namespace of the thread that starts them. This namespace is empty, and the filter of system calls
// permits no call that could add an object to the namespace.
//
// Special threads start the processes, so that processes inherit the threads' properties: an empty
// root directory, an empty network namespace, an empty IPC namespace, no groups, and no
// capabilities. If the new process, which is a Go program, set these properties up itself, each
// step would stop all of its threads. There is one side effect: a process that Go starts shares its
// parent's memory until it executes its program. Because the process changes its user in that time,
// Linux marks the daemon as not dumpable. For a root daemon, this has no other consequence.
type Starter struct {
	options Options
	null    *os.File    // used in place of missing descriptors
	offline chan func() // functions for the threads in the empty network namespace; nil if the daemon is not root
	starts  starts
}

// New returns a Starter, which cannot be closed.
func New(o Options) (*Starter, error) {
	// New processes must not inherit the descriptors that this process has inherited. Descriptors
	// that this process opens itself are close-on-exec anyway.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fmt.Errorf("keep descriptors from processes: %w", err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	s := &Starter{options: o, null: null}
	if o.NoNamespaces || !ownUsers() {
		return s, nil
	}
	s.offline = make(chan func())
	network := -1
	for range min(runtime.NumCPU(), maxStarters) {
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

// maxStarters bounds the number of threads that start processes. There is one for each CPU, because
// starting a process keeps a thread busy for most of a millisecond, and a fork of many children
// starts many processes.
const maxStarters = 32

// started is the message of a thread that is ready to start processes.
type started struct {
	network int // descriptor of the empty network namespace
	err     error
}

// serve uses its thread to start processes in the given empty network namespace. If network is -1,
// serve first creates this namespace.
func (s *Starter) serve(network int, ready chan<- started) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The process's first thread cannot be used, because it stands for the process in
		// /proc/self.
		other := make(chan started)
		go s.serve(network, other)
		ready <- <-other
		runtime.UnlockOSThread()
		return
	}
	network, err := prepareThread(network)
	ready <- started{network, err}
	if err != nil {
		return // this ends the thread, because the goroutine is still locked to it
	}
	for start := range s.offline {
		start()
	}
}

// Start starts a process like os.StartProcess, but with the working directory Proc. Unless online
// is true, the process has no access to any network. If the daemon is root, other users must be
// able to execute the program and to search the program's directory. They need no access to the
// directories above.
func (s *Starter) Start(name string, argv []string, attr os.ProcAttr, online bool) (p *os.Process, err error) {
	defer s.starts.begin()()
	sys := syscall.SysProcAttr{}
	if attr.Sys != nil {
		sys = *attr.Sys
	}
	attr.Sys, attr.Dir = &sys, "/proc"
	attr.Files = slices.Clone(attr.Files)
	for i, f := range attr.Files {
		if f == nil {
			attr.Files[i] = s.null // for nil, Go would open /dev/null, which the thread's root directory may lack
		}
	}
	how, user := noNamespaces, uint32(firstUser+rand.IntN(users))
	switch {
	case s.options.NoNamespaces:
	case s.offline != nil && !online:
		how = placed
		sys.Cloneflags |= namespaces
		sys.Credential = &syscall.Credential{Uid: user, Gid: user, NoSetGroups: true}
	case s.offline != nil:
		how = fmt.Sprint(ownUser, user)
		sys.Cloneflags |= namespaces | unix.CLONE_NEWIPC
	default:
		how = ownMapped
		sys.Cloneflags |= namespaces | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER
		if !online {
			sys.Cloneflags |= unix.CLONE_NEWNET
		}
		sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	attr.Env = append(slices.Clone(attr.Env), environment+"="+how)
	if how != placed {
		return os.StartProcess(name, argv, &attr)
	}
	dir, err := openBehind(attr.Files, filepath.Dir(name))
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	attr.Dir = "" // the thread's own working directory, which is procfs
	done := make(chan struct{})
	s.offline <- func() {
		p, err = os.StartProcess(fmt.Sprintf("self/fd/%d/%s", dir, filepath.Base(name)), argv, &attr)
		close(done)
	}
	<-done
	switch {
	case errors.Is(err, unix.EACCES):
		return nil, fmt.Errorf("start %s: %w: let other users execute and read it, and execute its directory", name, err)
	case err != nil:
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// openBehind opens a directory as the base for paths in a new process. The descriptor has a high
// number, because a new process first copies its files to higher numbers (syscall.forkExec), and
// these copies must not overwrite the descriptor. The copies need len(files)+1 numbers above the
// highest number in files.
func openBehind(files []*os.File, name string) (int, error) {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", name, err)
	}
	defer unix.Close(fd)
	behind := len(files)
	for _, f := range files {
		behind = max(behind, int(f.Fd()))
	}
	behind += len(files) + 3
	dir, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, behind)
	if err == unix.EINVAL { // EINVAL: the number is above RLIMIT_NOFILE
		err = unix.EMFILE
	}
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", name, err)
	}
	return dir, nil
}

// Try tests whether jails work on this host. It starts the program without a control socket. The
// process enters its jail, notices that there is no control socket, and exits.
func (s *Starter) Try(program string) error {
	said, says, err := os.Pipe()
	if err != nil {
		return err
	}
	defer said.Close()
	attr := os.ProcAttr{Env: []string{"GOMAXPROCS=1"}, Files: []*os.File{nil, nil, says, nil}}
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

// prepareThread moves this thread into an empty network namespace, an empty IPC namespace and an
// empty root directory, with procfs as its working directory. It returns the descriptor of the
// network namespace. A process that the thread starts has no groups and can gain no privileges.
// After such a process has changed its user, it has no capabilities. Its timers are late until it
// calls OnTime.
func prepareThread(network int) (int, error) {
	proc, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open /proc: %w", err)
	}
	defer unix.Close(proc)
	if network < 0 {
		network, err = newNetwork()
	} else {
		err = unix.Setns(network, unix.CLONE_NEWNET)
	}
	if err != nil {
		return -1, fmt.Errorf("enter an empty network namespace: %w", err)
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"make namespaces of mounts and IPC", func() error { return unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWIPC) }},
		{"mount an empty directory", mountEmpty},
		{"empty the root directory", emptyRoot},
		{"go back to /proc", func() error { return unix.Fchdir(proc) }}, // the host's procfs
		{"leave all groups", leaveGroups},
		{"renounce privileges", func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }},
		{"pass on no capabilities", passOnNoCapabilities},
		{"let timers be late", func() error { return unix.Prctl(unix.PR_SET_TIMERSLACK, startSlack, 0, 0, 0) }},
	} {
		if err := step.do(); err != nil {
			return -1, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return network, nil
}

// leaveGroups drops all groups of this thread. unix.Setgroups would do so for all threads.
func leaveGroups() error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// newNetwork moves this thread into a new network namespace and returns the descriptor of this
// namespace.
func newNetwork() (int, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return -1, err
	}
	return unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// passOnNoCapabilities empties the capability sets that a process started by this thread would
// inherit.
func passOnNoCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3} // pid 0: this thread
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return err
	}
	for i := range caps {
		caps[i].Inheritable = 0
	}
	if err := unix.Capset(&header, &caps[0]); err != nil {
		return err
	}
	for c := uintptr(0); ; c++ {
		switch err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); {
		case err == unix.EINVAL && c > 0: // EINVAL: the kernel knows no further capabilities
			return nil
		case err != nil:
			return fmt.Errorf("capability %d: %w", c, err)
		}
	}
}

// ownUsers reports whether this process can start each process with a separate user. For this it
// must be root, and must not be in a container with too few users.
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

// covers reports whether text, the content of a file /proc/PID/uid_map, maps all users that
// processes may get.
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
