package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/internal/jail"
)

// checkJails looks at what keeps a guest in that has found a flaw in its VMM.
func checkJails() []finding {
	return []finding{
		checkJail(tryJail(), os.Getuid() == 0),
		checkLandlock(landlockVersion()),
		checkCores(hostFile("/sys/devices/system/cpu/smt/active"), hasCoreScheduling()),
		checkKSM(hostFile("/sys/kernel/mm/ksm/run")),
	}
}

// tryJail lets a VMM enter its jail.
func tryJail() error {
	program, err := embedded.Open(embedded.VMM)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "forkd-doctor")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, embedded.VMM)
	if err := os.WriteFile(path, program, 0o700); err != nil {
		return err
	}
	jails, err := jail.New(jail.Options{})
	if err != nil {
		return err
	}
	return jails.Try(path)
}

func checkJail(err error, root bool) finding {
	const check = "jail"
	switch {
	case errors.Is(err, embedded.ErrNotBuiltIn):
		return finding{check, skip, err.Error()}
	case err != nil && root:
		return finding{check, warn, "this host lets root make no namespaces, perhaps because it is a container: " + err.Error() +
			"; forkd daemon --no-namespaces does without, and a guest that takes over its VMM is kept in by less"}
	case err != nil:
		return finding{check, warn, "this host gives users no namespaces (kernel.unprivileged_userns_clone, user.max_user_namespaces, " +
			"kernel.apparmor_restrict_unprivileged_userns): " + err.Error() + "; forkd daemon --no-namespaces does without, and a " +
			"guest that takes over its VMM is kept in by less"}
	case !root:
		return finding{check, pass, "complete; all VMMs are your user, and a VMM that is not from the pool takes some 5 ms longer " +
			"to start than with a daemon that is root"}
	}
	return finding{check, pass, "complete; every VMM has a user of its own"}
}

// landlockVersion returns that of the kernel's interface, 0 if it has none.
func landlockVersion() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

func checkLandlock(version int) finding {
	const check = "landlock"
	if version == 0 {
		return finding{check, warn, "not in this kernel, or not among its lsm=: a VMM's empty root directory and the filter of its " +
			"system calls have no third line behind them"}
	}
	return finding{check, pass, "there"}
}

// hasCoreScheduling asks for the cookie of this process, which changes nothing.
func hasCoreScheduling() bool {
	err := unix.Prctl(unix.PR_SCHED_CORE, unix.PR_SCHED_CORE_GET, 0, unix.PR_SCHED_CORE_SCOPE_THREAD, 0)
	return err != unix.EINVAL // no cookie for want of a place to put it is EFAULT, or ENODEV without SMT
}

func checkCores(smt string, scheduling bool) finding {
	const check = "cores"
	switch {
	case smt != "1":
		return finding{check, pass, "no sandbox shares a core with another one at the same time"}
	case scheduling:
		return finding{check, pass, "siblings of a core run the same sandbox or wait (core scheduling)"}
	}
	return finding{check, warn, "SMT is on and the kernel has no core scheduling: sandboxes can spy on each other through what the " +
		"siblings of a core share; boot with nosmt, or use a kernel with CONFIG_SCHED_CORE"}
}

func checkKSM(run string) finding {
	const check = "ksm"
	if strings.TrimSpace(run) == "1" {
		return finding{check, warn, "on: sandboxes can learn by timing which pages others have; echo 2 > /sys/kernel/mm/ksm/run"}
	}
	return finding{check, pass, "off"}
}
