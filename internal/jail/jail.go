// Package jail starts and confines the processes that handle data from guests: forkd-vmm and
// forkd-net.
//
// The daemon starts such a process with a Starter: in its own namespaces and, if the daemon is
// root, as its own user. The process calls Enter before it reads anything from a guest or the
// daemon. From then on it has an empty, read-only root, no capability, and only the system calls of
// its Filter. The kernel never carries out other calls. If a process tries one, its own runtime
// ends it (SIGSYS) and prints the call, where package violation finds it.
//
// The packages that make the calls declare them, as Call. Package filter makes the filter from them
// during code generation, because assembling it in each process would cost more memory than the
// rest of the jail.
//
// The package sets no limits on CPU and memory; cgroups do that.
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

// Options weaken the jail on hosts that lack a feature. The zero value is the complete jail.
type Options struct {
	// NoNamespaces starts processes in the daemon's namespaces, as the daemon's user and with its
	// root directory. Then only Landlock and the filter deny access to files.
	NoNamespaces bool
}

// How a process was started, in a variable of its environment. Without that variable the process
// refuses to enter a jail, because it would unmount the root directory of the host.
const (
	environment  = "FORKD_JAIL"
	noNamespaces = "no-namespaces" // in the daemon's namespaces
	ownMapped    = "mapped"        // in a user namespace whose only user is the daemon's
	ownUser      = "user="         // followed by the user that the process changes to
	placed       = "placed"        // already its own user, without capabilities, in an empty root directory
)

// Proc is the path of procfs in a process that a Starter has started. It is the working directory
// until Enter.
const Proc = "."

// Users of the processes, if the daemon is root. They are 2^27 numbers that no distribution assigns
// to users, subordinate users or containers (systemd's UIDS-GIDS.md lists the assignments). Each
// VMM gets a random one. Among a thousand VMMs, two have the same user with a probability of 1 in
// 270, and gain nothing from it.
const (
	firstUser = 0x7000_0000
	users     = 1 << 27
)

// namespaces are the namespaces that every process gets. They cost about 0.1 ms.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// Starter starts processes that will enter their jails.
//
// If the daemon is root, a process gets its own user instead of a user namespace. It is as
// powerless as in a user namespace, because it has no capability and can get none. But Go starts a
// process in a new user namespace by a full fork, which takes 3 ms longer for a daemon of 40 MiB.
//
// Such a process also gets no network namespace of its own, because making and removing one costs
// 0.7 ms each. All VMMs share an empty network namespace, in which they can make no socket.
// Likewise it gets the IPC namespace of the starting thread, which would cost 0.1 ms per process.
// That namespace is empty, and the filter permits no call that could add to it.
//
// The threads that start processes set up once what a process inherits. They are in an empty root
// directory, an empty network and an empty IPC namespace, have no groups, and pass on no
// capability. In a running Go program, each of these steps would stop all threads in turn. There is
// one side effect. Once a process has started another process as a different user, and shares its
// memory while doing so as Go does, Linux marks it as not dumpable. For a root daemon this has no
// other consequence.
type Starter struct {
	options Options
	null    *os.File    // replaces missing descriptors
	offline chan func() // reaches the threads in the empty network; nil if the daemon is not root
}

// New returns a Starter that lives as long as the process.
func New(o Options) (*Starter, error) {
	// New processes must not inherit descriptors that this process has inherited. Those that it
	// opens itself are close-on-exec.
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

// starters bounds the threads that start processes. One start occupies its thread for most of a
// millisecond, and a fork of many children needs as many starts.
const starters = 4

// started reports a thread that is ready to start processes.
type started struct {
	network int // the empty network
	err     error
}

// serve makes its thread start processes in the given empty network. If network is -1, it first
// makes one.
func (s *Starter) serve(network int, ready chan<- started) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The first thread represents the process in /proc/self, so another thread must serve.
		other := make(chan started)
		go s.serve(network, other)
		ready <- <-other
		runtime.UnlockOSThread()
		return
	}
	network, err := prepareThread(network)
	ready <- started{network, err}
	if err != nil {
		return // the thread ends, because it is still locked
	}
	for start := range s.offline {
		start()
	}
}

// Start starts a process as os.StartProcess does, but in the directory Proc. Unless it is online,
// the process has no access to any network. If the daemon is root, other users must be able to read
// and execute the program and to search its directory, but not the directories above.
func (s *Starter) Start(name string, argv []string, attr os.ProcAttr, online bool) (p *os.Process, err error) {
	sys := syscall.SysProcAttr{}
	if attr.Sys != nil {
		sys = *attr.Sys
	}
	attr.Sys, attr.Dir = &sys, "/proc"
	attr.Files = slices.Clone(attr.Files)
	for i, f := range attr.Files {
		if f == nil {
			attr.Files[i] = s.null // Go's runtime opens /dev/null in place of nil, and there may be no /dev
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
	attr.Dir = "" // the thread's own directory, which is procfs
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

// openBehind opens a directory as the base for paths. The number of its descriptor is high, because
// the descriptor must still be open when a new process has moved its files into place. For that the
// process may use as many numbers above the highest file as there are files, and one for itself
// (syscall.forkExec).
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
	if err == unix.EINVAL { // EINVAL: the number exceeds RLIMIT_NOFILE
		err = unix.EMFILE
	}
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", name, err)
	}
	return dir, nil
}

// Try tests whether this host permits jails. It starts a program that enters its jail, finds no
// socket there, and exits.
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

// prepareThread moves this thread into an empty network, an empty IPC namespace and an empty root
// directory, with procfs as its working directory. It returns the network. Processes that the
// thread starts have no groups and can gain no privileges. Once they have changed their user, they
// have no capabilities. Their timers are late until they call OnTime.
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
		{"go back to /proc", func() error { return unix.Fchdir(proc) }}, // the procfs of the host
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

// leaveGroups leaves all groups in this thread only. unix.Setgroups would affect all threads.
func leaveGroups() error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// newNetwork moves this thread into a new network namespace and returns it.
func newNetwork() (int, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return -1, err
	}
	return unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// passOnNoCapabilities empties the sets from which processes of this thread could inherit
// capabilities.
func passOnNoCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3} // 0: this thread
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
		case err == unix.EINVAL && c > 0: // EINVAL: past the last capability that the kernel knows
			return nil
		case err != nil:
			return fmt.Errorf("capability %d: %w", c, err)
		}
	}
}

// ownUsers reports whether this process can give each process it starts a user of its own. It must
// be root, and not root of a container that has too few users.
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

// covers reports whether a /proc/PID/uid_map contains all of our users.
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
