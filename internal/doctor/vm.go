package doctor

import (
	"errors"
	"net"
	"os"
	"os/user"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/internal/emu/tcghost"
	"github.com/forkd/forkd/internal/vmm/kvm"
)

// Checks of features that every VM needs.

const emulateHost = "forkd machine start"

func (h *Host) platform() Finding {
	detail := runtime.GOOS + "/" + runtime.GOARCH + ", kernel " + h.read("/proc/sys/kernel/osrelease")
	if runtime.GOARCH != "amd64" {
		return fail(detail + ": linux/amd64 is needed")
	}
	return pass(detail)
}

// kvmModule returns the KVM module for a CPU, according to the flags in /proc/cpuinfo. It returns
// "" if the CPU has no virtualization.
func kvmModule(cpuinfo string) string {
	switch {
	case strings.Contains(cpuinfo, " vmx "):
		return "kvm_intel"
	case strings.Contains(cpuinfo, " svm "):
		return "kvm_amd"
	}
	return ""
}

// isVM reports whether /proc/cpuinfo says that this host is a VM.
func isVM(cpuinfo string) bool { return strings.Contains(cpuinfo, " hypervisor") }

func (h *Host) virtualization() Finding {
	cpuinfo := h.read("/proc/cpuinfo")
	module, inVM := kvmModule(cpuinfo), isVM(cpuinfo)
	switch {
	case cpuinfo == "":
		return skip("/proc/cpuinfo is not readable")
	case module == "" && inVM:
		return warn("this host is a virtual machine whose CPU shows neither vmx nor svm: let the host around it nest (for " +
			"KVM the parameter nested of its module, and the CPU type host), or emulate one here")
	case module == "":
		return warn("the CPU shows neither vmx nor svm, perhaps because the firmware switches it off; an emulated host " +
			"has it")
	case inVM:
		return pass(module + ", nested: this host is a virtual machine itself, so that each exit of a guest costs " +
			"several times more")
	}
	return pass(module)
}

// probeKVM runs a few instructions in a VM. The parameter module is the KVM module for the CPU.
func probeKVM(module string, machineRuns bool) Finding {
	err := kvm.Probe()
	var unfit *kvm.UnfitError
	switch {
	case err == nil:
		return pass("runs guest instructions as it should")
	case machineRuns:
		return warn(err.Error() + ": the emulated host is used instead")
	case errors.Is(err, os.ErrNotExist) && module != "":
		return fail(err.Error() + ": the module is not loaded").by(asRoot("modprobe " + module))
	case errors.As(err, &unfit), errors.Is(err, os.ErrNotExist):
		return fail(err.Error()).by(byHand(emulateHost))
	case errors.Is(err, os.ErrPermission):
		return fail(err.Error() + ": you are not in its group; log in again afterwards").
			by(asRoot("usermod -aG kvm " + userName()))
	}
	return fail(err.Error())
}

// userName returns the name of the calling user, for use in a shell command.
func userName() string {
	if u, err := user.Current(); err == nil {
		return quoted(u.Username)
	}
	return quoted(os.Getenv("USER"))
}

// lookForMachine returns the emulated host, and a finding that says whether it is running.
func (h *Host) lookForMachine() (tcghost.Machine, Finding) {
	m, ready, err := h.Machine()
	switch {
	case err != nil:
		return m, warn(err.Error())
	case ready:
		return m, pass(m.Name + " runs")
	}
	return m, skip("none is running")
}

func (h *Host) memfd() Finding {
	fd, err := unix.MemfdCreate("forkd-doctor", unix.MFD_CLOEXEC)
	if err != nil {
		return fail(err.Error())
	}
	unix.Close(fd)
	return pass("")
}

// uffd checks that a userfaultfd can handle page faults of the kernel, which live branches need.
func (h *Host) uffd() Finding {
	const device = "/dev/userfaultfd"
	f, openErr := os.OpenFile(device, os.O_RDWR, 0)
	if openErr == nil {
		f.Close()
		return pass(device)
	}
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno == 0 {
		unix.Close(int(fd))
		return pass("system call")
	}
	bad := warn(errno.Error() + ": branches copy memory while the sandbox is stopped")
	if errors.Is(openErr, os.ErrPermission) {
		return bad.by(asRoot("chgrp kvm " + device + " && chmod 660 " + device))
	}
	return bad.by(byHand("apt install linux-image-amd64 # 6.1 or later; then reboot"))
}

func (h *Host) program() Finding {
	for _, name := range []string{embedded.VMM, embedded.Agent, embedded.Net} {
		if _, err := embedded.Open(name); err != nil {
			return fail(err.Error())
		}
	}
	return pass("forkd " + h.Version + ", complete")
}

// enoughDescriptors is the number of file descriptors that a hundred sandboxes need, if each has
// forty connections.
const enoughDescriptors = 4096

// network checks that forkd-net can connect sandboxes. forkd-net needs sockets of an ordinary user,
// a name server in /etc/resolv.conf, and file descriptors.
func (h *Host) network() Finding {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return fail(err.Error())
	}
	return judgeNetwork(canConnect(), h.read("/etc/resolv.conf"), files.Max)
}

// canConnect makes a socket for an address on the internet, but sends nothing.
func canConnect() error {
	conn, err := net.Dial("udp4", "192.88.99.1:9") // the address is not in use (RFC 7526)
	if err != nil {
		return err
	}
	return conn.Close()
}

func judgeNetwork(unreachable error, resolvConf string, descriptors uint64) Finding {
	switch {
	case errors.Is(unreachable, unix.EPERM), errors.Is(unreachable, unix.EACCES):
		return warn("this host allows its users no outgoing connections: " + unreachable.Error())
	case unreachable != nil:
		return warn("this host has no route to the internet, so sandboxes have none either: " + unreachable.Error())
	case !strings.Contains(resolvConf, "nameserver"):
		return warn("/etc/resolv.conf names no DNS server: sandboxes cannot look up names").
			by(byHand("forkd daemon --resolver ADDRESS"))
	case descriptors < enoughDescriptors:
		return warn("%d file descriptors: each connection of a sandbox takes one", descriptors).
			by(byHand("ulimit -n 1048576 # systemd: LimitNOFILE="))
	}
	return pass("outgoing sockets, which is all that is needed: no nftables, iptables, ip_forward, tap devices or "+
		"namespaces; up to %d connections at a time", descriptors/4*3)
}
