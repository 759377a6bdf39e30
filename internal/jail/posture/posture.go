// Package posture reads the confinement of a jailed process from /proc. Tests use this package to
// find out whether a part of the jail has become weaker.
//
// It reports the kernel's information about a process. Its callers say how the process must be
// confined.
package posture

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Want holds the properties in which the jails of the programs differ.
type Want struct {
	Online      bool     // whether the process is in the host's network namespace
	Files       uint64   // required limit on the number of descriptors; 0 means any limit
	Bytes       uint64   // required limit on the size of a file in bytes; 0 means any limit
	Filters     int      // number of seccomp filters on each thread; 0 means 1
	Descriptors []string // regular expressions; every descriptor must match one of them
}

// Check returns the weaknesses in the jail of a process that the caller has started.
func Check(pid int, want Want) []string {
	p := process{dir: fmt.Sprintf("/proc/%d", pid)}
	p.namespaces(want.Online)
	p.user()
	p.threads(max(want.Filters, 1))
	p.root()
	p.limits(want)
	p.descriptors(want.Descriptors)
	return p.loose
}

type process struct {
	dir   string
	loose []string
}

func (p *process) say(format string, args ...any) {
	p.loose = append(p.loose, fmt.Sprintf(format, args...))
}

func (p *process) read(name string) string {
	text, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil {
		p.say("%v", err)
	}
	return string(text)
}

func (p *process) namespaces(online bool) {
	kinds := []string{"mnt", "pid", "ipc", "uts", "cgroup", "net"}
	if os.Geteuid() != 0 { // if the caller is root, a process has its own user instead; see jail.Starter
		kinds = append(kinds, "user")
	}
	for _, kind := range kinds {
		its, err := os.Readlink(filepath.Join(p.dir, "ns", kind))
		if err != nil {
			p.say("%v", err)
			continue
		}
		ours, err := os.Readlink("/proc/thread-self/ns/" + kind)
		if err != nil {
			p.say("%v", err)
			continue
		}
		if shared := its == ours; shared != (kind == "net" && online) {
			p.say("%s namespace shared with who started it: %v", kind, shared)
		}
	}
}

// user checks that the process's user namespace has only one user. Another method, threads, checks
// that the process runs as this user.
func (p *process) user() {
	if os.Geteuid() == 0 {
		return
	}
	for _, name := range []string{"uid_map", "gid_map"} {
		var inside, outside, length int
		text := p.read(name)
		if _, err := fmt.Sscan(text, &inside, &outside, &length); err != nil || strings.Count(text, "\n") != 1 ||
			length != 1 {
			p.say("%s is %q, want one user", name, text)
		}
	}
}

// threads checks the properties of each thread.
func (p *process) threads(filters int) {
	tasks, err := filepath.Glob(filepath.Join(p.dir, "task", "*"))
	if err != nil || len(tasks) == 0 {
		p.say("no threads: %v", err)
	}
	const none = "0000000000000000"
	want := map[string]string{"NoNewPrivs": "1", "Seccomp": "2", "Seccomp_filters": fmt.Sprint(filters),
		"CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none}
	if os.Geteuid() == 0 {
		want["Groups"] = "" // an ordinary user cannot drop its own group
	}
	for _, task := range tasks {
		status, err := os.ReadFile(filepath.Join(task, "status"))
		if err != nil {
			continue // the thread has ended
		}
		have := map[string]string{}
		for line := range strings.Lines(string(status)) {
			name, value, _ := strings.Cut(line, ":")
			have[name] = strings.TrimSpace(value)
		}
		for name, value := range want {
			if have[name] != value {
				p.say("thread %s: %s is %q, want %q", filepath.Base(task), name, have[name], value)
			}
		}
		for _, name := range []string{"Uid", "Gid"} {
			if ids := strings.Fields(have[name]); len(ids) != 4 || len(slices.Compact(ids)) != 1 || ids[0] == "0" {
				p.say("thread %s: %s is %q, want one that is not root", filepath.Base(task), name, have[name])
			}
		}
	}
}

// root checks that the process sees only one mount, and that this mount is empty.
func (p *process) root() {
	entries, err := os.ReadDir(filepath.Join(p.dir, "root"))
	if err != nil || len(entries) != 0 {
		p.say("root directory: %d entries, %v", len(entries), err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Join(p.dir, "root"), &fs); err != nil {
		p.say("root directory: %v", err)
	}
	const safe = unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC
	if fs.Type != unix.TMPFS_MAGIC || fs.Flags&safe != safe {
		p.say("root directory: file system %#x, flags %#x", fs.Type, fs.Flags)
	}
	for _, name := range []string{"root", "cwd"} {
		if at, err := os.Readlink(filepath.Join(p.dir, name)); err != nil || at != "/" {
			p.say("%s is %q, %v", name, at, err)
		}
	}
}

func (p *process) limits(w Want) {
	want := map[string]string{"Max core file size": "0", "Max locked memory": "0", "Max msgqueue size": "0",
		"Max processes": "1024"}
	if w.Files > 0 {
		want["Max open files"] = fmt.Sprint(w.Files)
	}
	if w.Bytes > 0 {
		want["Max file size"] = fmt.Sprint(w.Bytes)
	}
	text := p.read("limits")
	for name, value := range want {
		if !regexp.MustCompile(`(?m)^` + name + ` +` + value + ` +` + value + ` `).MatchString(text) {
			p.say("%s is not %s", name, value)
		}
	}
}

func (p *process) descriptors(classes []string) {
	fds, err := filepath.Glob(filepath.Join(p.dir, "fd", "*"))
	if err != nil || len(fds) == 0 {
		p.say("no descriptors can be seen: %v", err)
	}
	like := regexp.MustCompile(`^(` + strings.Join(classes, "|") + `)$`)
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && !like.MatchString(to) {
			p.say("descriptor %s is %s", filepath.Base(fd), to)
		}
	}
}
