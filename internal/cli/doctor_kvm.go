package cli

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/internal/emu/tcghost"
	"github.com/forkd/forkd/internal/vmm/kvm"
)

// These checks are of what VMs cannot do without.

const emulateHost = "forkd machine start"

func checkPlatform() finding {
	const check = "platform"
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return found(check, fail, err.Error())
	}
	detail := fmt.Sprintf("%s/%s, kernel %s", runtime.GOOS, runtime.GOARCH, unix.ByteSliceToString(u.Release[:]))
	if runtime.GOARCH != "amd64" {
		return found(check, fail, detail+": linux/amd64 is needed")
	}
	return found(check, pass, detail)
}

// kvmModule returns the module of KVM for a CPU by its flags in /proc/cpuinfo, empty if it has no
// virtualization.
func kvmModule(cpuinfo string) string {
	switch {
	case strings.Contains(cpuinfo, " vmx "):
		return "kvm_intel"
	case strings.Contains(cpuinfo, " svm "):
		return "kvm_amd"
	}
	return ""
}

// isVM reports whether a hypervisor says in /proc/cpuinfo that it is one.
func isVM(cpuinfo string) bool { return strings.Contains(cpuinfo, " hypervisor") }

func checkHWVirt(cpuinfo string) finding {
	const check = "hardware virtualization"
	module, inVM := kvmModule(cpuinfo), isVM(cpuinfo)
	switch {
	case cpuinfo == "":
		return found(check, skip, "/proc/cpuinfo is not readable")
	case module == "" && inVM:
		return found(check, warn,
			"this host is a virtual machine whose CPU shows neither vmx nor svm: let the host around it nest (for KVM "+
				"the parameter nested of its module, and the CPU type host), or emulate one here").byHand(emulateHost)
	case module == "":
		return found(check, warn,
			"the CPU shows neither vmx nor svm, perhaps because the firmware switches it off; an emulated host has it").
			byHand(emulateHost)
	case inVM:
		return found(check, pass,
			module+", nested: this host is a virtual machine itself, so that each exit of a guest costs several times more")
	}
	return found(check, pass, module)
}

func checkKVM(machineRuns bool) finding {
	const check = "/dev/kvm"
	err := kvm.Probe()
	var unfit *kvm.UnfitError
	module := kvmModule(hostFile("/proc/cpuinfo"))
	switch {
	case err == nil:
		return found(check, pass, "runs guest instructions as it should")
	case machineRuns:
		return found(check, warn, err.Error()+": the emulated host is used instead")
	case errors.Is(err, os.ErrNotExist) && module != "":
		return found(check, fail, err.Error()+": the module is not loaded").asRoot("modprobe " + module)
	case errors.As(err, &unfit), errors.Is(err, os.ErrNotExist):
		return found(check, fail, err.Error()).byHand(emulateHost)
	case errors.Is(err, os.ErrPermission):
		return found(check, fail,
			err.Error()+": you are not in its group; log in again afterwards").asRoot("usermod -aG kvm " + userName())
	}
	return found(check, fail, err.Error())
}

// userName is that of the calling user, for a shell.
func userName() string {
	if u, err := user.Current(); err == nil {
		return quoted(u.Username)
	}
	return quoted(os.Getenv("USER"))
}

func checkMachine() (tcghost.Machine, finding) {
	const check = "emulated host"
	m, ready, err := runningMachine()
	switch {
	case err != nil:
		return m, found(check, warn, err.Error())
	case ready:
		return m, found(check, pass, m.Name+" runs")
	}
	return m, found(check, skip, "none is running")
}

func checkMemfd() finding {
	const check = "memfd"
	fd, err := unix.MemfdCreate("forkd-doctor", unix.MFD_CLOEXEC)
	if err != nil {
		return found(check, fail, err.Error())
	}
	unix.Close(fd)
	return found(check, pass, "")
}

// checkUffd asks for a userfaultfd that takes faults of the kernel, which is what live branches
// need.
func checkUffd() finding {
	const check, device = "userfaultfd", "/dev/userfaultfd"
	f, openErr := os.OpenFile(device, os.O_RDWR, 0)
	if openErr == nil {
		f.Close()
		return found(check, pass, device)
	}
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno == 0 {
		unix.Close(int(fd))
		return found(check, pass, "system call")
	}
	bad := found(check, warn, errno.Error()+": branches copy memory while the sandbox is stopped")
	if errors.Is(openErr, os.ErrPermission) {
		return bad.asRoot("chgrp kvm " + device + " && chmod 660 " + device)
	}
	return bad.byHand("apt install linux-image-amd64 # 6.1 or later; then reboot")
}

func checkEmbedded() finding {
	const check = "program"
	for _, name := range []string{embedded.VMM, embedded.Agent, embedded.Net} {
		if _, err := embedded.Open(name); err != nil {
			return found(check, fail, err.Error()).byHand("scripts/build")
		}
	}
	return found(check, pass, "forkd "+version+", complete")
}
