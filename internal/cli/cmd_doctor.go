package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/internal/emu/tcghost"
	"github.com/forkd/forkd/internal/vmm/kvm"
)

// verdict of one check.
type verdict string

const (
	pass verdict = "pass"
	warn verdict = "warn"
	fail verdict = "fail"
	skip verdict = "skip"
)

// finding is one line of doctor's report.
type finding struct {
	Check   string  `json:"check"`
	Verdict verdict `json:"verdict"`
	Detail  string  `json:"detail"`
}

func newDoctorCmd() *cobra.Command {
	var output, url string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this host can run forkd, and say what to do if not",
		Long:  "Exits with 1 if a check fails.",
		Args:  usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			findings := diagnose(cmd.Context(), url)
			failed := false
			for _, f := range findings {
				failed = failed || f.Verdict == fail
			}
			var err error
			if output == "json" {
				err = writeJSON(cmd.OutOrStdout(), findings)
			} else {
				err = table(cmd, "CHECK\tRESULT\tDETAIL", func(row func(...any)) {
					for _, f := range findings {
						row(f.Check, f.Verdict, f.Detail)
					}
				})
			}
			if err == nil && failed {
				return exitCode(exitError)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&url, "daemon-url", "", "daemon to look for; default as in the other commands")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func diagnose(ctx context.Context, url string) []finding {
	m, machine := checkMachine()
	inMachine := machine.Verdict == pass && url == "" && os.Getenv(urlEnv) == "" // as connect chooses
	findings := []finding{checkPlatform(), checkHWVirt(), checkKVM(machine.Verdict == pass), machine, checkCgroup(),
		checkMemfd(), checkUffd(), checkEmbedded()}
	findings = append(append(findings, checkHost()...), checkNetwork())
	findings = append(findings, checkJails()...)
	if inMachine {
		findings = append(findings, checkMachineSpace(ctx, m)...)
	} else {
		findings = append(findings, checkOwnSpace()...)
	}
	return append(append(findings, checkCache()), checkDaemon(ctx, url)...)
}

func checkPlatform() finding {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return finding{"platform", fail, err.Error()}
	}
	detail := fmt.Sprintf("%s/%s, kernel %s", runtime.GOOS, runtime.GOARCH, unix.ByteSliceToString(u.Release[:]))
	if runtime.GOARCH != "amd64" {
		return finding{"platform", fail, detail + ": linux/amd64 is needed"}
	}
	return finding{"platform", pass, detail}
}

func checkHWVirt() finding {
	p, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return finding{"hardware virtualization", skip, err.Error()}
	}
	for _, flag := range []string{"vmx", "svm"} {
		if strings.Contains(string(p), " "+flag+" ") {
			return finding{"hardware virtualization", pass, flag}
		}
	}
	return finding{"hardware virtualization", warn, "the CPU shows neither vmx nor svm: 'forkd machine start' emulates a host that has it"}
}

func checkKVM(machineRuns bool) finding {
	err := kvm.Probe()
	var unfit *kvm.UnfitError
	switch {
	case err == nil:
		return finding{"/dev/kvm", pass, "runs guest instructions as it should"}
	case machineRuns:
		return finding{"/dev/kvm", warn, err.Error() + ": the emulated host is used instead"}
	case errors.As(err, &unfit), errors.Is(err, os.ErrNotExist):
		return finding{"/dev/kvm", fail, err.Error() + ": run 'forkd machine start'"}
	case errors.Is(err, os.ErrPermission):
		return finding{"/dev/kvm", fail, err.Error() + ": add the user to the group of /dev/kvm"}
	}
	return finding{"/dev/kvm", fail, err.Error()}
}

func checkMachine() (tcghost.Machine, finding) {
	m, ready, err := runningMachine()
	switch {
	case err != nil:
		return m, finding{"emulated host", warn, err.Error()}
	case ready:
		return m, finding{"emulated host", pass, m.Name + " runs"}
	}
	return m, finding{"emulated host", skip, "none is running"}
}

func checkCgroup() finding {
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		return finding{"cgroup v2", warn, "not mounted at /sys/fs/cgroup: sandboxes have no limits"}
	}
	p, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	if err != nil {
		return finding{"cgroup v2", warn, err.Error()}
	}
	return finding{"cgroup v2", pass, strings.TrimSpace(string(p))}
}

func checkMemfd() finding {
	fd, err := unix.MemfdCreate("forkd-doctor", unix.MFD_CLOEXEC)
	if err != nil {
		return finding{"memfd", fail, err.Error()}
	}
	unix.Close(fd)
	return finding{"memfd", pass, ""}
}

// checkUffd asks for a userfaultfd that takes faults of the kernel, which is what live branches
// need.
func checkUffd() finding {
	if f, err := os.OpenFile("/dev/userfaultfd", os.O_RDWR, 0); err == nil {
		f.Close()
		return finding{"userfaultfd", pass, "/dev/userfaultfd"}
	}
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		return finding{"userfaultfd", warn, errno.Error() + ": branches copy memory while the sandbox is stopped"}
	}
	unix.Close(int(fd))
	return finding{"userfaultfd", pass, "system call"}
}

func checkEmbedded() finding {
	for _, name := range []string{embedded.VMM, embedded.Agent, embedded.Net} {
		if _, err := embedded.Open(name); err != nil {
			return finding{"program", fail, err.Error()}
		}
	}
	return finding{"program", pass, "forkd " + version + ", complete"}
}

func checkCache() finding {
	dir, err := cachedir.Dir()
	if err != nil {
		return finding{"cache", fail, err.Error()}
	}
	var have []string
	for _, sub := range []string{"kernel", "images"} {
		entries, err := os.ReadDir(filepath.Join(dir, sub))
		n := 0
		for _, e := range entries {
			n += btoi(!strings.HasPrefix(e.Name(), "."))
		}
		if err == nil && n > 0 {
			have = append(have, fmt.Sprintf("%d %s", n, sub))
		}
	}
	if len(have) < 2 {
		return finding{"cache", warn, dir + ": no kernel or no image yet: 'forkd build' makes them"}
	}
	return finding{"cache", pass, dir + ": " + strings.Join(have, ", ")}
}

// checkDaemon asks the daemon, also about what it can bound sandboxes by.
func checkDaemon(ctx context.Context, url string) []finding {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, where, err := connect(ctx, url, nil)
	if err != nil {
		return []finding{{"daemon", warn, err.Error()}}
	}
	defer c.Close()
	v, err := c.Version(ctx)
	if err != nil {
		return []finding{{"daemon", warn, fmt.Sprintf("%s: %v (start it with 'forkd daemon')", where, err)}}
	}
	return []finding{
		{"daemon", pass, fmt.Sprintf("%s: forkd %s, %s; %s", where, v.Version, v.Accel, describeAdmission(v.Admission))},
		judgeLimits(v.LimitsMissing),
	}
}

// judgeLimits says what a daemon lacks for limits of sandboxes.
func judgeLimits(missing string) finding {
	const check = "limits of sandboxes"
	if missing != "" {
		return finding{check, warn, missing + ": forks that ask for such limits are refused, others run without"}
	}
	return finding{check, pass, "memory, processors, threads and disk"}
}

func describeAdmission(a client.Admission) string {
	or := func(n float64) string {
		if n == 0 {
			return "any number of"
		}
		return fmt.Sprintf("at most %g", n)
	}
	return fmt.Sprintf("takes %s sandboxes and %s vCPUs per CPU, keeps %d MiB of memory and %d MiB of disk free",
		or(float64(a.MaxSandboxes)), or(a.VCPUOvercommit), a.MemoryReserveMiB, a.DiskReserveMiB)
}
