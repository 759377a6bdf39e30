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

// Config holds the differences between the jails of two programs.
type Config struct {
	Filter []unix.SockFilter // the result of package filter
	Files  uint64            // maximum number of open descriptors; 0: as many as at the start of the program
	Online bool              // the program makes connections
}

// ExitCode is the exit code of a program that could not enter its jail.
const ExitCode = 3

// threads bounds the threads of one process. There is one for each vCPU, more that KVM adds for the
// vCPUs, and one for each waiting call of the Go runtime.
const threads = 1024

// Enter puts this process, with all of its threads, into its jail. It must be called before the
// process reads any foreign data. After an error the process must exit. The order of the steps is
// fixed, because each step needs a right that a later step drops.
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
		// Otherwise a daemon that is not root could neither inspect the process nor set its OOM
		// score.
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

// Unprivileged calls do before Enter, without any effective capability. For some files Linux checks
// the rights of the process that opens the file, not those of the reader. So the descriptors that
// do opens grant no more than those that the process could open in its jail.
func Unprivileged(do func() error) (err error) {
	header, had, err := capabilities()
	if err != nil {
		return err
	}
	if had == (capabilitySets{}) {
		return do()
	}
	runtime.LockOSThread() // capabilities belong to a thread
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

// capabilitySets holds the effective, permitted and inheritable capabilities of a thread.
type capabilitySets [2]unix.CapUserData

// capabilities returns the sets of this thread, which all threads share, and the header for
// capset(2).
func capabilities() (h unix.CapUserHeader, c capabilitySets, err error) {
	h.Version = unix.LINUX_CAPABILITY_VERSION_3
	if err := unix.Capget(&h, &c[0]); err != nil {
		return h, c, fmt.Errorf("read capabilities: %w", err)
	}
	return h, c, nil
}

// becomeUser changes to the user in how, and leaves every group except the user's own.
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

// emptyPlace is the mount point of the empty directory. Every host has this path, and no program
// needs it.
const emptyPlace = "/proc/driver"

// mountEmpty mounts an empty, read-only file system, in its own mount namespace.
func mountEmpty() error {
	// Otherwise the host would see the mounts made here. Unmounts on the host still take effect
	// here.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return err
	}
	// The file system holds at most one page and one file, the root directory itself.
	return unix.Mount("jail", emptyPlace, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
		"size=4k,nr_inodes=1,mode=0555")
}

// emptyRoot makes the empty file system the root and detaches all others.
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
		return unix.Unmount(".", unix.MNT_DETACH) // the old root, which is mounted over the new root now
	case unix.EINVAL, unix.EPERM:
		// Either the host runs from its initramfs, which cannot be replaced. Or this is a
		// container: the seccomp profile of containerd and Docker forbids pivot_root, whatever
		// capabilities the container has, but permits the following calls. They cover the old root.
		// Without capabilities a process cannot get below the cover.
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

// limit sets limits that cgroups do not cover. Unless the process is alone in its user or user
// namespace, it gets no limit on threads, because the kernel would count the threads of all
// processes there.
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

// lower permanently lowers a limit of this process. It does nothing if the limit is already lower.
func lower(resource int, most uint64) error {
	var had unix.Rlimit
	if err := unix.Prlimit(0, resource, nil, &had); err != nil {
		return err
	}
	most = min(most, had.Max)
	return unix.Prlimit(0, resource, &unix.Rlimit{Cur: most, Max: most}, nil)
}

// LimitFiles bounds the size of the files that this process writes, in bytes. A write beyond it
// fails. A further call can only lower the bound. It works in the jail of a program whose filter
// permits LimitFilesCall.
func LimitFiles(most uint64) error {
	if err := lower(unix.RLIMIT_FSIZE, most); err != nil {
		return fmt.Errorf("bound the size of files: %w", err)
	}
	return nil
}

// LimitFilesCall is the system call that LimitFiles makes.
func LimitFilesCall() Call { return With(unix.SYS_PRLIMIT64, Is(0, 0), Is(1, unix.RLIMIT_FSIZE)) }

// shareNoCore keeps processes with other cookies off the core that this process runs on, for all of
// the core's hardware threads. It does nothing if Linux does not support that, or if cores have
// only one thread (core-scheduling.rst).
func shareNoCore() error {
	err := unix.Prctl(unix.PR_SCHED_CORE, unix.PR_SCHED_CORE_CREATE, 0, unix.PR_SCHED_CORE_SCOPE_THREAD_GROUP, 0)
	if err == unix.EINVAL || err == unix.ENODEV {
		return nil
	}
	return err
}

// shrinkBoundingSet empties the bounding sets of all threads. If a Starter's thread has started the
// process, they are already empty.
func shrinkBoundingSet() error {
	for c := uintptr(0); ; c++ {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if err == unix.EINVAL && c > 0 {
			return nil // past the last capability that the kernel knows
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

// dropCapabilities empties the capability sets of all threads, except the bounding sets.
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

// renouncePaths sets no_new_privs and uses Landlock to deny access to all files. Unless the process
// is online, it also denies all TCP. On a kernel without Landlock the empty root and the filter
// must suffice.
func renouncePaths(online bool) error {
	if err := noNewPrivileges(); err != nil {
		return err
	}
	if online {
		return landlock.V9.BestEffort().RestrictPaths()
	}
	version, err := ll.LandlockGetABIVersion()
	if err != nil || version < 1 {
		return nil // the kernel lacks Landlock, or the surrounding container forbids the call
	}
	// V6 is not used: on some kernels it blocks signals from other threads.
	known := []landlock.Config{landlock.V1, landlock.V2, landlock.V3, landlock.V4, landlock.V5}
	most := known[min(version, len(known))-1]
	// most.Restrict would stop all threads once more to set no_new_privs.
	rules, err := ll.LandlockCreateRuleset(&ll.RulesetAttr{
		HandledAccessFS: uint64(most.HandledAccessFS), HandledAccessNet: uint64(most.HandledAccessNet)}, 0)
	if err != nil {
		return err
	}
	defer unix.Close(rules)
	return ll.AllThreadsLandlockRestrictSelf(rules, 0)
}

// noNewPrivileges sets no_new_privs for all threads. It does nothing if a Starter has set it.
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

// Narrow permanently forbids further calls in all threads of this process. They are the calls that
// denied, a program from package filter, traps. It is for calls that are needed only at first.
// Enter's filter stays in force, and must permit NarrowCall.
func Narrow(denied []unix.SockFilter) error {
	if err := filter(denied); err != nil {
		return fmt.Errorf("narrow the filter: %w", err)
	}
	return nil
}

// NarrowCall is the system call that Narrow makes. An additional filter cannot loosen another one.
func NarrowCall() Call {
	return With(unix.SYS_SECCOMP, Is(0, unix.SECCOMP_SET_MODE_FILTER), Is(1, unix.SECCOMP_FILTER_FLAG_TSYNC))
}

// filter applies seccomp(2) to all threads at once.
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
