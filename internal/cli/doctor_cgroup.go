package cli

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

func checkCgroup() finding {
	const check = "cgroup v2"
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		bad := found(check, warn, "not mounted at /sys/fs/cgroup: sandboxes have no limits")
		if err == nil && st.Type == unix.TMPFS_MAGIC { // cgroup v1 is
			return bad.byHand(bootWith("systemd.unified_cgroup_hierarchy=1"))
		}
		return bad.asRoot("mount -t cgroup2 none /sys/fs/cgroup")
	}
	return judgeCgroup(os.Getuid() == 0, ownCgroup(hostFile("/proc/self/cgroup")), hostFile)
}

// ownCgroup returns the directory of the cgroup v2 in /proc/self/cgroup.
func ownCgroup(self string) string {
	_, at, _ := strings.Cut("\n"+self, "\n0::")
	at, _, _ = strings.Cut(at, "\n")
	return path.Join("/sys/fs/cgroup", at)
}

// delegateToUsers has systemd give users all controllers that limits need.
const delegateToUsers = "mkdir -p /etc/systemd/system/user@.service.d && printf '[Service]\\nDelegate=cpu cpuset io memory pids\\n' > " +
	"/etc/systemd/system/user@.service.d/forkd.conf && systemctl daemon-reload"

// judgeCgroup looks for the controllers that limits of sandboxes need. Root's daemon has those of
// the whole hierarchy, a user's those that systemd has delegated.
func judgeCgroup(root bool, own string, read func(string) string) finding {
	const check = "cgroup v2"
	dir := "/sys/fs/cgroup"
	if !root {
		dir = own
	}
	have := strings.Fields(read(path.Join(dir, "cgroup.controllers")))
	var missing []string
	for _, c := range []string{"cpu", "io", "memory", "pids"} {
		if !slices.Contains(have, c) {
			missing = append(missing, c)
		}
	}
	switch {
	case len(missing) == 0:
		return found(check, pass, dir+": "+strings.Join(have, " "))
	case root:
		return found(check, warn,
			fmt.Sprintf("no controller %s: the kernel lacks it, or cgroup v1 has it; such limits are refused",
				strings.Join(missing, ", "))).
			byHand(bootWith("systemd.unified_cgroup_hierarchy=1"))
	}
	return found(check, warn,
		fmt.Sprintf("your user has no controller %s in %s: such limits are refused; log in again afterwards",
			strings.Join(missing, ", "), dir)).asRoot(delegateToUsers)
}
