// Package pid1 turns a freshly booted kernel with forkd's initramfs into a running system on the
// root disk. It mounts the kernel's file systems, loads the modules, waits for the disk, changes
// the root to it, and disables periodic work of the kernel.
//
// It starts no services and no processes: the process that calls Boot stays PID 1. It configures
// only the loopback interface. Package nic configures the Ethernet interface. Package pid1 reads
// these options of the kernel command line:
//
//	forkd.ro            mount the root disk read-only
//	forkd.hostname=NAME host name until the first fork sets another (default "forkd")
package pid1

import (
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guest/kmsg"
	"github.com/forkd/forkd/internal/guest/userenv"
)

// RootDevice is the guest's disk.
const RootDevice = "/dev/vda"

// Paths in the initramfs and the guest.
const (
	modulesDir = "/modules" // *.ko, and the text file "order" with one file name on each line
	newRoot    = "/newroot"
)

// defaultHostname is the host name until a fork sets another host name.
const defaultHostname = "forkd"

// Options are the "forkd." options of the kernel command line.
type Options struct {
	ReadOnly bool
	Hostname string
}

// ParseCmdline reads a kernel command line. An unknown "forkd." option is an error that names it.
func ParseCmdline(cmdline string) (Options, error) {
	o := Options{Hostname: defaultHostname}
	for word := range strings.FieldsSeq(cmdline) {
		name, ok := strings.CutPrefix(word, "forkd.")
		if !ok {
			continue
		}
		name, value, _ := strings.Cut(name, "=")
		switch name {
		case "ro":
			o.ReadOnly = true
		case "hostname":
			if value == "" {
				return o, fmt.Errorf("kernel command line: forkd.hostname is empty")
			}
			o.Hostname = value
		default:
			return o, fmt.Errorf("kernel command line: unknown option %q", word)
		}
	}
	return o, nil
}

// EarlyLog mounts /dev and opens the kernel's log. If it fails, the caller can only report the
// error on stderr.
func EarlyLog() (*kmsg.Log, error) {
	if err := mount(mountPoint{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"}); err != nil {
		return kmsg.NewPlain(os.Stderr), err
	}
	// os.OpenFile would add the file to the runtime's poller. Then each message of the kernel would
	// wake the agent, and the kernel writes a message in every fork.
	fd, err := unix.Open("/dev/kmsg", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return kmsg.NewPlain(os.Stderr), &os.PathError{Op: "open", Path: "/dev/kmsg", Err: err}
	}
	return kmsg.New(os.NewFile(uintptr(fd), "/dev/kmsg")), nil
}

// Devices mounts the kernel's file systems, loads the modules of the initramfs and waits for the
// disk. It is the part of Boot that comes before the disk is mounted.
func Devices(log *kmsg.Log) error {
	for _, m := range kernelMounts("") {
		if err := mount(m); err != nil {
			return err
		}
	}
	// The socket is open before the first module can find a device, so that no event is missed.
	events, err := openUevents()
	if err != nil {
		return err
	}
	defer events.close()
	if err := loadModules(modulesDir, log); err != nil {
		return err
	}
	return events.waitForDevice(RootDevice)
}

// Boot carries out all steps between EarlyLog and the start of the agent's services.
func Boot(log *kmsg.Log) error {
	if err := Devices(log); err != nil {
		return err
	}
	cmdline, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	opts, err := ParseCmdline(string(cmdline))
	if err != nil {
		return err
	}
	if err := mountRoot(opts); err != nil {
		return err
	}
	// The initramfs stays in memory, so remove the modules, which are no longer needed.
	if err := os.RemoveAll(modulesDir); err != nil {
		log.Warnf("free the initramfs: %v", err)
	}
	if err := switchRoot(); err != nil {
		return err
	}
	applySettings(quiet, log)
	return identify(opts)
}

// identify sets the host name, brings up the loopback interface, and sets the environment variables
// that libraries expect.
func identify(opts Options) error {
	if err := unix.Sethostname([]byte(opts.Hostname)); err != nil {
		return fmt.Errorf("set hostname %q: %w", opts.Hostname, err)
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	os.Setenv("PATH", userenv.DefaultPath)
	os.Setenv("HOME", "/root")
	return nil
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("loopback: socket: %w", err)
	}
	defer unix.Close(s)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("loopback: bring up: %w", err)
	}
	return nil
}

// PowerOff logs the reason and powers the machine off. If the machine cannot power off, the kernel
// panics when this process exits, and the host notices the panic too. PowerOff returns only if the
// kernel refuses.
func PowerOff(log *kmsg.Log, reason error) {
	log.Errorf("fatal: %v; powering off", reason)
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		log.Errorf("power off: %v", err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil || !os.IsNotExist(err)
}

const dirMode fs.FileMode = 0o755
