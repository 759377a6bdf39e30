package jail

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Config is what differs between the jails of two programs.
type Config struct {
	Filter []unix.SockFilter // made by package filter
	Files  uint64            // descriptors that it may have open; 0: as many as it was started with
	Online bool              // it makes connections
}

// ExitCode is that of a program that could not enter its jail.
const ExitCode = 3

// threads bounds the threads of one process. The most that it needs are those of the vCPUs, of KVM
// for them, and of the Go runtime for calls that wait.
const threads = 1024

// Enter locks this process up, all of its threads. It is called before anything is read that comes
// from elsewhere; after an error the process has to end. The order is fixed: each step needs what
// the next one takes away.
func Enter(c Config) error {
	how := os.Getenv(environment)
	if how == "" || how != noNamespaces && os.Getpid() != 1 {
		return errors.New("this program is started by forkd daemon")
	}
	if how == placed && os.Getuid() == 0 {
		return errors.New("it was started as root")
	}
	there := how == noNamespaces || how == placed // see prepareThread
	for _, step := range []struct {
		name string
		do   func() error
		skip bool
	}{
		{"leave the directory of its start", func() error { return unix.Chdir("/") }, false},
		{"make an empty directory", mountEmpty, there},
		{"empty the root directory", emptyRoot, there},
		{"shrink the bounding set", shrinkBoundingSet, there},
		{"become another user", func() error { return becomeUser(how) }, !strings.HasPrefix(how, ownUser)},
		{"drop capabilities", dropCapabilities, false},
		{"limit resources", func() error { return limit(c.Files, how != noNamespaces) }, false},
		// A daemon that is not root could neither look at it then, nor say how soon it is to end.
		{"hide memory from other processes", func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) },
			how == noNamespaces},
		{"share no core with others", shareNoCore, false},
		{"renounce paths", func() error { return renouncePaths(c.Online) }, false},
		{"filter system calls", func() error { return filter(c.Filter) }, false},
	} {
		if step.skip {
			continue
		}
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// Unprivileged does something before Enter with no capability in force. What it opens is no more
// use than what the process could open once it is in its jail: of some files Linux asks what their
// opener was allowed, not their reader.
func Unprivileged(do func() error) (err error) {
	header, had, err := capabilities()
	if err != nil {
		return err
	}
	if had == (capabilitySets{}) {
		return do()
	}
	runtime.LockOSThread() // capabilities are a thread's
	defer runtime.UnlockOSThread()
	idle := had
	for i := range idle {
		idle[i].Effective = 0
	}
	if err := unix.Capset(&header, &idle[0]); err != nil {
		return fmt.Errorf("put capabilities aside: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Capset(&header, &had[0])) }()
	return do()
}

// capabilitySets are the effective, permitted and inheritable ones of a thread.
type capabilitySets [2]unix.CapUserData

// capabilities returns those of this thread, which are those of all, and what capset(2) wants.
func capabilities() (h unix.CapUserHeader, c capabilitySets, err error) {
	h.Version = unix.LINUX_CAPABILITY_VERSION_3
	if err := unix.Capget(&h, &c[0]); err != nil {
		return h, c, fmt.Errorf("read capabilities: %w", err)
	}
	return h, c, nil
}

// becomeUser becomes the one that is named, and a member of no group but its own.
func becomeUser(how string) error {
	id, err := strconv.Atoi(strings.TrimPrefix(how, ownUser))
	if err != nil {
		return err
	}
	if groups, err := unix.Getgroups(); err != nil || len(groups) > 0 {
		if err := errors.Join(err, syscall.Setgroups(nil)); err != nil {
			return err
		}
	}
	if err := syscall.Setresgid(id, id, id); err != nil {
		return err
	}
	return syscall.Setresuid(id, id, id)
}

// emptyPlace is where the empty directory is: a place that every host has and no program needs.
const emptyPlace = "/proc/driver"

// mountEmpty mounts an empty, read-only file system, in a mount namespace of its own.
func mountEmpty() error {
	// Without this the host would see what is mounted here. It can still take away what it mounted
	// itself.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return err
	}
	// At most one page and one file, the root directory itself.
	return unix.Mount("jail", emptyPlace, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
		"size=4k,nr_inodes=1,mode=0555")
}

// emptyRoot makes the empty file system the root and leaves all others.
func emptyRoot() error {
	if err := unix.Chdir(emptyPlace); err != nil {
		return err
	}
	return swapRoot()
}

// swapRoot makes the working directory the root.
func swapRoot() error {
	switch err := unix.PivotRoot(".", "."); err {
	case nil:
		return unix.Unmount(".", unix.MNT_DETACH) // the old root, which now lies over the new one
	case unix.EINVAL, unix.EPERM:
		// The host runs from its initramfs, which nothing can replace; or this is a container,
		// where the seccomp profile of containerd and Docker forbids the call, whatever
		// capabilities it has, and not the next ones. The root is covered: who has no capability
		// does not get below it.
		if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
			return err
		}
		if err := unix.Chroot("."); err != nil {
			return err
		}
		return unix.Chdir("/")
	default:
		return err
	}
}

// limit sets what is not counted by cgroups. A process that is not alone as its user, or in its
// user namespace, gets no bound on threads: the kernel would count those of all the others.
func limit(files uint64, alone bool) error {
	limits := map[int]uint64{unix.RLIMIT_CORE: 0, unix.RLIMIT_MEMLOCK: 0, unix.RLIMIT_MSGQUEUE: 0}
	if alone {
		limits[unix.RLIMIT_NPROC] = threads
	}
	if files > 0 {
		limits[unix.RLIMIT_NOFILE] = files
	}
	for resource, most := range limits {
		if err := lower(resource, most); err != nil {
			return err
		}
	}
	return nil
}

// lower sets a limit of this process for good, unless it is lower already.
func lower(resource int, most uint64) error {
	var had unix.Rlimit
	if err := unix.Prlimit(0, resource, nil, &had); err != nil {
		return err
	}
	most = min(most, had.Max)
	return unix.Prlimit(0, resource, &unix.Rlimit{Cur: most, Max: most}, nil)
}

// LimitFiles bounds the size of all files that this process writes, in bytes, once it is known what
// they may be: a write beyond fails. It can be called again and then only lowers the bound. It
// works in the jail of a program whose filter has LimitFilesCall.
func LimitFiles(most uint64) error {
	if err := lower(unix.RLIMIT_FSIZE, most); err != nil {
		return fmt.Errorf("bound the size of files: %w", err)
	}
	return nil
}

// LimitFilesCall is the system call of LimitFiles.
func LimitFilesCall() Call { return With(unix.SYS_PRLIMIT64, Is(0, 0), Is(1, unix.RLIMIT_FSIZE)) }

// shareNoCore keeps processes of other cookies from the siblings of a core that this one runs on,
// where Linux can and there are siblings (core-scheduling.rst).
func shareNoCore() error {
	err := unix.Prctl(unix.PR_SCHED_CORE, unix.PR_SCHED_CORE_CREATE, 0, unix.PR_SCHED_CORE_SCOPE_THREAD_GROUP, 0)
	if err == unix.EINVAL || err == unix.ENODEV {
		return nil
	}
	return err
}

// shrinkBoundingSet leaves nothing in the sets of all threads. A process that a Starter's thread
// has started has nothing there.
func shrinkBoundingSet() error {
	for c := uintptr(0); ; c++ {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if err == unix.EINVAL && c > 0 {
			return nil // behind the last that the kernel knows
		}
		if err != nil {
			return err
		}
		if has == 0 {
			continue
		}
		if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0); errno != 0 {
			return errno
		}
	}
}

// dropCapabilities empties all other sets, of all threads.
func dropCapabilities() error {
	header, had, err := capabilities()
	var none capabilitySets
	if err != nil || had == none {
		return err
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)),
		uintptr(unsafe.Pointer(&none)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// renouncePaths sets no_new_privs, and with Landlock denies all files and, unless it is online, all
// TCP. A kernel without Landlock denies nothing here: the empty root and the filter do without it.
func renouncePaths(online bool) error {
	if err := noNewPrivileges(); err != nil {
		return err
	}
	if online {
		return landlock.V9.BestEffort().RestrictPaths()
	}
	version, err := ll.LandlockGetABIVersion()
	if err != nil || version < 1 {
		return nil // the kernel has none, or the container that this is in forbids to ask
	}
	// V6 keeps signals from other threads on some kernels.
	known := []landlock.Config{landlock.V1, landlock.V2, landlock.V3, landlock.V4, landlock.V5}
	most := known[min(version, len(known))-1]
	// Not most.Restrict, which would stop all threads once more, to set no_new_privs.
	rules, err := ll.LandlockCreateRuleset(&ll.RulesetAttr{
		HandledAccessFS: uint64(most.HandledAccessFS), HandledAccessNet: uint64(most.HandledAccessNet)}, 0)
	if err != nil {
		return err
	}
	defer unix.Close(rules)
	return ll.AllThreadsLandlockRestrictSelf(rules, 0)
}

// noNewPrivileges is for all threads. It does nothing where a Starter has done it.
func noNewPrivileges() error {
	if set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || set == 1 {
		return err
	}
	_, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// Narrow takes calls away from this process, all of its threads, for good: those that denied traps,
// which package filter has made. It is for calls that are needed only at first. Enter's filter stays
// in force, and has to have NarrowCall.
func Narrow(denied []unix.SockFilter) error {
	if err := filter(denied); err != nil {
		return fmt.Errorf("narrow the filter: %w", err)
	}
	return nil
}

// NarrowCall is the system call of Narrow. No filter makes another one looser.
func NarrowCall() Call {
	return With(unix.SYS_SECCOMP, Is(0, unix.SECCOMP_SET_MODE_FILTER), Is(1, unix.SECCOMP_FILTER_FLAG_TSYNC))
}

// filter is seccomp(2), for all threads at once.
func filter(program []unix.SockFilter) error {
	if len(program) == 0 {
		return errors.New("there is no filter")
	}
	p := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&p)))
	if errno != 0 {
		return errno
	}
	if thread != 0 {
		return fmt.Errorf("thread %d does not take the filter", thread)
	}
	return nil
}
