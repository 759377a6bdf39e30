// Package doctor checks whether this host can run forkd, and says what to do if it cannot.
//
// A check is a row of a table: its name, a probe, and a fix. The package prints nothing and parses
// no command line; internal/cli prints its findings.
package doctor

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/emu/tcghost"
)

// Verdict is the result of one check.
type Verdict string

// Verdicts. After a warning, forkd runs, but with less speed, space or security.
const (
	Pass Verdict = "pass"
	Warn Verdict = "warn"
	Fail Verdict = "fail"
	Skip Verdict = "skip"
)

// Finding is the result of one check.
type Finding struct {
	Check   string  `json:"check"`
	Verdict Verdict `json:"verdict"` // empty, only inside this package, if the check does not apply
	Detail  string  `json:"detail"`
	Fix     *Fix    `json:"fix,omitempty"`
}

func pass(detail string, args ...any) Finding { return found(Pass, detail, args) }
func warn(detail string, args ...any) Finding { return found(Warn, detail, args) }
func fail(detail string, args ...any) Finding { return found(Fail, detail, args) }
func skip(detail string, args ...any) Finding { return found(Skip, detail, args) }

func found(v Verdict, detail string, args []any) Finding {
	if len(args) > 0 {
		detail = fmt.Sprintf(detail, args...)
	}
	return Finding{Verdict: v, Detail: detail}
}

// by returns f with the given fix instead of the fix in the table of checks.
func (f Finding) by(fix Fix) Finding {
	f.Fix = &fix
	return f
}

// Host holds the inputs of the checks. All functions must be set.
type Host struct {
	Version   string // version of this program
	Named     bool   // the user has named a daemon, so no emulated host is used
	TokenFile func() (path string, err error)
	Machine   func() (m tcghost.Machine, ready bool, err error)
	Connect   func(context.Context) (c *client.Client, where string, err error)

	ctx  context.Context
	root bool
	// read returns the content of a small file of /proc or /sys; empty if the file does not exist.
	read      func(name string) string
	inMachine bool // the daemon is in an emulated host
	machine   tcghost.Machine
	emulated  Finding
	kvm       Finding
	room      map[string]Finding // findings about the emulated host's free space, by directory
	daemon    answer
}

// check is a row of the table of checks.
type check struct {
	name  string
	probe func(*Host) Finding
	fix   *Fix // fix for a warning or failure; the probe may name another fix
}

// checks returns the table in three parts. The second part is about this host's kernel, which does
// not matter if VMs run in an emulated host.
func checks() (first, kernel, last []check) {
	row := func(name string, probe func(*Host) Finding) check { return check{name: name, probe: probe} }
	mend := func(name string, probe func(*Host) Finding, fix Fix) check { return check{name, probe, &fix} }
	return []check{
			row("platform", (*Host).platform),
			row(checkMachine, func(h *Host) Finding { return h.emulated }),
			mend("program", (*Host).program, byHand("scripts/build")),
			row(checkNetwork, (*Host).network),
		}, []check{
			mend("hardware virtualization", (*Host).virtualization, byHand(emulateHost)),
			row(checkKVM, func(h *Host) Finding { return h.kvm }),
			row("cgroup v2", (*Host).cgroup),
			row("memfd", (*Host).memfd),
			row("userfaultfd", (*Host).uffd),
			row("/dev/fuse", (*Host).fuse),
			mend("kernel", (*Host).kernel, byHand("apt install linux-image-amd64 # of trixie or bookworm-backports; then reboot")),
			mend("kvm.nx_huge_pages", (*Host).nxHugePages,
				byHand("echo options kvm nx_huge_pages=never > /etc/modprobe.d/forkd.conf # then reboot")),
			row("cgroup favordynmods", (*Host).cgroupMount),
			row("threads", (*Host).threads),
			row("vm.overcommit_memory", (*Host).overcommit),
			mend("vm.max_map_count", (*Host).maps, asRoot("sysctl -w vm.max_map_count=65530")),
			mend("memory", (*Host).memory, byHand("forkd top --once # then 'forkd suspend ID' for sandboxes that can wait")),
			row("swap", (*Host).swap),
			mend("huge pages", (*Host).hugePages, asRoot("sysctl -w vm.nr_hugepages=0")),
			mend("jail", (*Host).jail, byHand("forkd daemon --no-namespaces")),
			mend("seccomp", (*Host).seccomp, byHand("apt install linux-image-amd64 # then reboot")),
			mend("landlock", (*Host).landlock, bootWith("lsm=landlock,lockdown,yama,integrity,apparmor,bpf")),
			mend("cores", (*Host).cores, byHand("echo off > /sys/devices/system/cpu/smt/control")),
			mend("ksm", (*Host).ksm, asRoot("echo 2 > /sys/kernel/mm/ksm/run")),
			row("flaws of the CPU", (*Host).cpuFlaws),
		}, []check{
			row("tmpfs for hot memory", (*Host).hotSpace),
			row(checkDisk, (*Host).diskSpace),
			row("disk space of the host", (*Host).machineFile),
			row("directories", (*Host).directories),
			row("token file", (*Host).tokenFile),
			row("cache", (*Host).cache),
			row(CheckDaemon, (*Host).answers),
			row("version of the daemon", of((*Host).daemonVersion)),
			mend(checkLimits, of((*Host).limits),
				byHand("systemd-run --user --scope -p Delegate=yes forkd daemon # or as root")),
			row("sandboxes of an earlier daemon", of((*Host).leftAlone)),
			row("snapshots", of((*Host).snapshots)),
		}
}

// Names of the checks that decide whether VMs can run.
const (
	checkVMs     = "VMs can run"
	checkMachine = "emulated host"
	checkKVM     = "/dev/kvm"
	checkNetwork = "network of sandboxes"
	checkDisk    = "disk space"
	CheckDaemon  = "daemon" // whether a daemon answers
	checkLimits  = "limits of sandboxes"
)

// Diagnose runs all checks.
func (h Host) Diagnose(ctx context.Context) []Finding {
	h.ctx, h.root, h.read = ctx, os.Getuid() == 0, hostFile
	h.machine, h.emulated = h.lookForMachine()
	h.inMachine = h.emulated.Verdict == Pass && !h.Named
	h.kvm = probeKVM(kvmModule(h.read("/proc/cpuinfo")), h.emulated.Verdict == Pass)
	h.room = h.askMachine()
	h.daemon = h.askDaemon()
	first, kernel, last := checks()
	here := h.do(kernel)
	if h.inMachine {
		here = needless(here)
	}
	return slices.Concat(h.do(first), here, h.do(last))
}

// do runs the given checks, except those that do not apply.
func (h *Host) do(rows []check) (findings []Finding) {
	for _, c := range rows {
		f := c.probe(h)
		if f.Verdict == "" {
			continue
		}
		f.Check = c.name
		if f.Fix == nil && c.fix != nil && (f.Verdict == Warn || f.Verdict == Fail) {
			f = f.by(*c.fix)
		}
		findings = append(findings, f)
	}
	return findings
}

// needless replaces findings about this host's kernel with the verdict that they do not matter. It
// is used if VMs run in an emulated host, which has its own kernel.
func needless(findings []Finding) []Finding {
	for i, f := range findings {
		if f.Verdict == Warn || f.Verdict == Fail {
			findings[i] = Finding{Check: f.Check, Verdict: Skip,
				Detail: f.Detail + " (no matter: VMs run in the emulated host)"}
		}
	}
	return findings
}

// vmsRun combines the findings about KVM and about the emulated host. It suffices that either KVM
// or the emulated host works.
func vmsRun(findings []Finding) Finding {
	summary := fail("neither here nor in an emulated host").by(byHand(emulateHost))
	for _, f := range findings {
		switch {
		case f.Check == checkMachine && f.Verdict == Pass:
			summary = pass("in the emulated host %s", f.Detail)
		case f.Check == checkKVM && f.Verdict == Pass:
			summary = pass("on this host: %s", f.Detail)
		case f.Check == checkKVM && (f.Verdict == Fail || f.Verdict == Warn):
			return f
		default:
			continue
		}
		break
	}
	summary.Check = checkVMs
	return summary
}

// Foremost returns the findings that decide whether forkd can be used, and all failures.
func Foremost(findings []Finding) []Finding {
	list := []Finding{vmsRun(findings)}
	add := func(want func(Finding) bool) {
		for _, f := range findings {
			if want(f) && !slices.ContainsFunc(list, func(l Finding) bool { return l.Check == f.Check }) {
				list = append(list, f)
			}
		}
	}
	for _, name := range []string{CheckDaemon, checkDisk, checkLimits, checkNetwork} {
		add(func(f Finding) bool { return f.Check == name })
	}
	add(func(f Finding) bool { return f.Verdict == Fail })
	return list
}

// Merge returns the findings of a second run, together with the fixes that were tried after the
// first run.
func Merge(before, after []Finding) []Finding {
	for i := range after {
		for _, b := range before {
			if b.Check == after[i].Check && b.Fix != nil && b.Fix.Result != "" {
				after[i].Fix = b.Fix
			}
		}
	}
	return after
}

// hostFile returns the content of a small file of /proc or /sys; empty if the file does not exist.
func hostFile(name string) string {
	p, _ := os.ReadFile(name)
	return strings.TrimSpace(string(p))
}

// quoted returns text as one word for a shell.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
