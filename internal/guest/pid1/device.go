package pid1

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/guest/kmsg"
)

// loadModules loads the modules that are listed in the file "order" in dir, in the order of the
// list. It is no error if a module finds no device. It is an error if a module is missing or the
// kernel refuses it. If there is no list, all drivers are built into the kernel.
func loadModules(dir string, log *kmsg.Log) error {
	order, err := os.ReadFile(filepath.Join(dir, "order"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("load modules: %w", err)
	}
	for name := range strings.FieldsSeq(string(order)) {
		err := loadModule(filepath.Join(dir, filepath.Base(name)))
		switch {
		case errors.Is(err, unix.EEXIST): // already loaded, or built in
		case errors.Is(err, unix.ENODEV):
			log.Infof("module %s: no such device", name)
		case err != nil:
			return fmt.Errorf("load module %s: %w", name, err)
		}
	}
	return nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

// deviceTimeout bounds the wait for the root disk. The kernel finds a virtio disk within
// milliseconds after its driver is loaded, but takes longer if the whole machine is emulated in
// software.
const deviceTimeout = 20 * time.Second

// uevents is a netlink socket on which the kernel announces devices.
type uevents struct{ fd int }

// kernelGroup is the multicast group in which the kernel itself sends events.
const kernelGroup = 1

func openUevents() (uevents, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return uevents{}, fmt.Errorf("device events: socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup}); err != nil {
		unix.Close(fd)
		return uevents{}, fmt.Errorf("device events: bind: %w", err)
	}
	return uevents{fd}, nil
}

func (u uevents) close() { unix.Close(u.fd) }

// waitForDevice waits until path exists. It checks path after each event, whatever the event
// contains.
func (u uevents) waitForDevice(path string) error {
	deadline := time.Now().Add(deviceTimeout)
	for buf := make([]byte, 4096); ; {
		if exists(path) {
			return nil
		}
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("root disk %s did not appear within %v; is a disk attached, and is its driver in the initramfs?",
				path, deviceTimeout)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(u.fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("wait for %s: %w", path, err)
		}
		if n > 0 {
			// ENOBUFS means that events were lost. This does no harm, because path is checked next.
			if _, _, err := unix.Recvfrom(u.fd, buf, unix.MSG_DONTWAIT); err != nil &&
				err != unix.ENOBUFS && err != unix.EAGAIN && err != unix.EINTR {
				return fmt.Errorf("wait for %s: %w", path, err)
			}
		}
	}
}
