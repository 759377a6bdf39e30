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

// Config holds the properties in which the jails of the programs differ.
type Config struct {
	Filter []unix.SockFilter // made by package filter
	Files  uint64            // maximum number of open descriptors; 0 means that the inherited limit stays
	Data   uint64            // maximum size of private writable memory in bytes (RLIMIT_DATA); 0 means no limit
	Online bool              // whether the program makes network connections
}

// ExitCode is the exit code of a program that cannot enter its jail.
const ExitCode = 3

// threads bounds the number of threads of a process. A process has a thread for each vCPU, more
// threads that KVM adds for the vCPUs, and a thread for each blocking call of the Go runtime.
const threads = 1024

// Enter puts this process with all of its threads into its jail. It must be called before the
// process reads any data that is not trusted. After an error the process must exit. The order of
// the steps is fixed: a step may need a right that a later step drops.
func Enter(c Config) error {
	how := os.Getenv(environment)
	if how == "" || how != noNamespaces && os.Getpid() != 1 {
		return errors.New("this program is started by forkd daemon")
	}
	if how == placed && os.Getuid() == 0 {
		return errors.New("it was started as root")
	}
	there := how == noNamespaces || how == placed // whether the root directory needs no change; see prepareThread
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
		{"limit resources", func() error { return limit(c, how != noNamespaces) }, false},
		// Without namespaces, the process stays dumpable. If it did not, a daemon that is not root
		// could neither inspect the process nor set its OOM score.
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

// Unprivileged calls a function in a thread without effective capabilities. It is for use before
// Enter. For some files, Linux checks the rights of the process that has opened the file, and not
// of the process that reads it. Without Unprivileged, a descriptor that the function opens could
// permit more than the jail does.
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

// capabilities returns the capability sets of this thread, which are the same in all threads. The
// result h is the header for capset(2).
func capabilities() (h unix.CapUserHeader, c capabilitySets, err error) {
	h.Version = unix.LINUX_CAPABILITY_VERSION_3
	if err := unix.Capget(&h, &c[0]); err != nil {
		return h, c, fmt.Errorf("read capabilities: %w", err)
	}
	return h, c, nil
}

// becomeUser changes to a user, and drops all groups except the user's own group. The given text is
// ownUser followed by the user's number.
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

// emptyPlace is the directory on which mountEmpty mounts the empty file system. The directory
// exists on every host, and no jailed program needs its content.
const emptyPlace = "/proc/driver"

// mountEmpty creates a mount namespace and mounts an empty, read-only file system in it.
func mountEmpty() error {
	// With MS_SLAVE, the host does not see the mounts that are made here. Unmounts on the host
	// still take effect here.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return err
	}
	// The size permits one page and one file, which is the root directory itself.
	return unix.Mount("jail", emptyPlace, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
		"size=4k,nr_inodes=1,mode=0555")
}

// emptyRoot makes the empty file system the root directory, and detaches all other file systems.
func emptyRoot() error {
	if err := unix.Chdir(emptyPlace); err != nil {
		return err
	}
	return swapRoot()
}

// swapRoot makes the working directory the root directory.
func swapRoot() error {
	switch err := unix.PivotRoot(".", "."); err {
	case nil:
		return unix.Unmount(".", unix.MNT_DETACH) // the old root directory is mounted over the new one now
	case unix.EINVAL, unix.EPERM:
		// pivot_root fails on a host that runs from its initramfs. It also fails in a container,
		// because the seccomp profile of containerd and Docker forbids it, whatever capabilities
		// the container has. The following calls are permitted on such a host and in such a
		// container. They mount the new root directory over the old one, and without capabilities a
		// process cannot get below a mount.
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

// limit sets limits that cgroups cannot set, or cannot set for a single process. If alone is true,
// no other process has the same user or the same user namespace, and the number of threads is
// limited too. If alone is false, this number is not limited, because the kernel counts the threads
// of all processes of a user, or of a user namespace, together.
func limit(c Config, alone bool) error {
	limits := map[int]uint64{unix.RLIMIT_CORE: 0, unix.RLIMIT_MEMLOCK: 0, unix.RLIMIT_MSGQUEUE: 0}
	if alone {
		limits[unix.RLIMIT_NPROC] = threads
	}
	if c.Files > 0 {
		limits[unix.RLIMIT_NOFILE] = c.Files
	}
	if c.Data > 0 {
		limits[unix.RLIMIT_DATA] = c.Data
	}
	for resource, most := range limits {
		if err := lower(resource, most); err != nil {
			return err
		}
	}
	return nil
}

// lower lowers a limit of this process for good. If the limit is already lower, it is unchanged.
func lower(resource int, most uint64) error {
	var had unix.Rlimit
	if err := unix.Prlimit(0, resource, nil, &had); err != nil {
		return err
	}
	most = min(most, had.Max)
	return unix.Prlimit(0, resource, &unix.Rlimit{Cur: most, Max: most}, nil)
}

// LimitFiles bounds the size of files that this process writes, in bytes. A write beyond the bound
// fails. Later calls can only lower the bound. In a jail, the filter must permit LimitFilesCall.
func LimitFiles(most uint64) error {
	if err := lower(unix.RLIMIT_FSIZE, most); err != nil {
		return fmt.Errorf("bound the size of files: %w", err)
	}
	return nil
}

// FileLimit returns the bound of LimitFiles. The process that started this process may have raised it.
func FileLimit() (most uint64, err error) {
	var has unix.Rlimit
	err = unix.Prlimit(0, unix.RLIMIT_FSIZE, nil, &has)
	return has.Cur, err
}

// LimitFilesCall is the system call that LimitFiles and FileLimit make.
func LimitFilesCall() Call { return With(unix.SYS_PRLIMIT64, Is(0, 0), Is(1, unix.RLIMIT_FSIZE)) }

// shareNoCore makes sure that, while this process runs on a core, no process with another
// core-scheduling cookie runs on the core's other hardware threads. It does nothing if Linux does
// not support core scheduling, or if the cores have only one hardware thread (core-scheduling.rst).
func shareNoCore() error {
	err := unix.Prctl(unix.PR_SCHED_CORE, unix.PR_SCHED_CORE_CREATE, 0, unix.PR_SCHED_CORE_SCOPE_THREAD_GROUP, 0)
	if err == unix.EINVAL || err == unix.ENODEV {
		return nil
	}
	return err
}

// shrinkBoundingSet empties the bounding sets of all threads. They are already empty if a thread of
// a Starter has started the process.
func shrinkBoundingSet() error {
	for c := uintptr(0); ; c++ {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if err == unix.EINVAL && c > 0 {
			return nil // the kernel knows no further capabilities
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

// dropCapabilities empties all capability sets of all threads, except the bounding sets.
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

// renouncePaths sets no_new_privs, and uses Landlock to deny access to all files. Unless online is
// true, it also denies all TCP connections. On a kernel without Landlock, only the empty root
// directory and the filter protect files.
func renouncePaths(online bool) error {
	if err := noNewPrivileges(); err != nil {
		return err
	}
	if online {
		return landlock.V9.BestEffort().RestrictPaths()
	}
	version, err := ll.LandlockGetABIVersion()
	if err != nil || version < 1 {
		return nil // the kernel lacks Landlock, or the container's seccomp profile forbids it
	}
	// V6 is not used, because on some kernels it blocks signals from other threads of the process.
	known := []landlock.Config{landlock.V1, landlock.V2, landlock.V3, landlock.V4, landlock.V5}
	most := known[min(version, len(known))-1]
	// Landlock's own method Restrict would stop all threads once more to set no_new_privs.
	rules, err := ll.LandlockCreateRuleset(&ll.RulesetAttr{
		HandledAccessFS: uint64(most.HandledAccessFS), HandledAccessNet: uint64(most.HandledAccessNet)}, 0)
	if err != nil {
		return err
	}
	defer unix.Close(rules)
	return ll.AllThreadsLandlockRestrictSelf(rules, 0)
}

// noNewPrivileges sets no_new_privs for all threads, unless a Starter has set it.
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

// Narrow forbids more calls in all threads of this process, for good. It is for calls that a
// process needs only at its start. The given seccomp program comes from filter.Denial. The filter
// of Enter stays in force, and must permit NarrowCall.
func Narrow(denied []unix.SockFilter) error {
	if err := filter(denied); err != nil {
		return fmt.Errorf("narrow the filter: %w", err)
	}
	return nil
}

// NarrowCall is the system call that Narrow makes. It can only forbid more calls, because an
// additional filter cannot permit calls that another filter forbids.
func NarrowCall() Call {
	return With(unix.SYS_SECCOMP, Is(0, unix.SECCOMP_SET_MODE_FILTER), Is(1, unix.SECCOMP_FILTER_FLAG_TSYNC))
}

// filter installs a seccomp program in all threads at the same time.
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
