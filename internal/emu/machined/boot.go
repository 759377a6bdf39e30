package machined

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/emu/machineapi"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	stateDisk  = "/dev/vda"
	// deviceWait bounds the wait for a device after its driver was loaded, because the kernel
	// probes devices asynchronously.
	deviceWait  = 20 * time.Second
	devicePause = 5 * time.Millisecond
	// openFiles is the limit of open files for each process in the emulated host. It is high
	// because the daemon has several open files for each sandbox.
	openFiles = 1 << 20
)

// network sets the emulated host's fixed address in QEMU's user-mode network (QEMU manual, "Network
// emulation": guest 10.0.2.15, gateway 10.0.2.2).
const network = `ip link set lo up && ip link set eth0 up && ip addr add 10.0.2.15/24 dev eth0 &&
ip route add default via 10.0.2.2`

// mount is a file system that is mounted at boot.
type mount struct {
	source, target, fstype string
	flags                  uintptr
	options                string
}

// kernelMounts returns the file systems that need no driver.
func kernelMounts() []mount {
	const safe = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	return []mount{
		{"proc", "/proc", "proc", safe, ""},
		{"sysfs", "/sys", "sysfs", safe, ""},
		{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
		{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=0620,ptmxmode=0666"},
		{"tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
		{"tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"cgroup2", cgroupRoot, "cgroup2", safe, ""},
	}
}

// boot sets up the emulated host, which at first has only the files of its initramfs. It sets up,
// in this order:
//  1. kernel file systems, before any step that reads them;
//  2. modules, in the order of their file names;
//  3. state disk and shared directories, whose drivers are modules;
//  4. cgroups, limits, network.
func boot() (machineapi.Config, error) {
	config, err := readConfig()
	if err != nil {
		return config, err
	}
	for _, m := range kernelMounts() {
		if err := m.do(); err != nil {
			return config, err
		}
	}
	if err := loadModules(machineapi.ModulesDir); err != nil {
		return config, err
	}
	if err := waitFor(stateDisk); err != nil {
		return config, err
	}
	mounts := []mount{{stateDisk, machineapi.StateDir, "ext4", unix.MS_NOATIME, "discard"}}
	for _, s := range config.Shares {
		// With cache=mmap, files can be mapped and executed, and changes by the host are visible.
		m := mount{s.Tag, s.Dir, "9p", unix.MS_RDONLY, "trans=virtio,version=9p2000.L,msize=1048576,cache=mmap"}
		if s.Writable {
			m.flags = 0
		}
		mounts = append(mounts, m)
	}
	for _, m := range mounts {
		if err := m.do(); err != nil {
			return config, err
		}
	}
	if err := os.Chmod(machineapi.StateDir, 0o700); err != nil { // only the daemon may see its state
		return config, fmt.Errorf("state directory: %w", err)
	}
	if err := setUpCgroups(); err != nil {
		return config, err
	}
	return config, configure()
}

func readConfig() (machineapi.Config, error) {
	var config machineapi.Config
	b, err := os.ReadFile(machineapi.ConfigPath)
	if err != nil {
		return config, fmt.Errorf("read configuration: %w", err)
	}
	if err := json.Unmarshal(b, &config); err != nil {
		return config, fmt.Errorf("read configuration: %w", err)
	}
	relative := func(s machineapi.Share) bool { return !filepath.IsAbs(s.Dir) }
	if config.Token == "" || config.BootID == "" || slices.ContainsFunc(config.Shares, relative) {
		return config, errors.New("read configuration: token, boot_id and shares with absolute directories are needed")
	}
	return config, nil
}

func (m mount) do() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return fmt.Errorf("mount %s: %w", m.target, err)
	}
	if err := unix.Mount(m.source, m.target, m.fstype, m.flags, m.options); err != nil {
		return fmt.Errorf("mount %s (%s): %w", m.target, m.fstype, err)
	}
	return nil
}

func loadModules(dir string) error {
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		return fmt.Errorf("load modules: %w", err)
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		f, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("load modules: %w", err)
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load module %s: %w", entry.Name(), err)
		}
		if err := os.Remove(path); err != nil { // frees the memory that the initramfs takes for the file
			return fmt.Errorf("load modules: %w", err)
		}
	}
	return nil
}

func waitFor(path string) error {
	for deadline := time.Now().Add(deviceWait); ; time.Sleep(devicePause) {
		_, err := os.Stat(path)
		if err == nil {
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) || time.Now().After(deadline) {
			return fmt.Errorf("wait for device: %w", err)
		}
	}
}

// setUpCgroups creates one cgroup for the init, one for exec and one for the daemon, and enables
// the controllers for these cgroups. The init gets nearly all of the CPU weight, because it must
// answer even when the CPU is busy.
func setUpCgroups() error {
	available, err := os.ReadFile(cgroupRoot + "/cgroup.controllers")
	if err != nil {
		return fmt.Errorf("set up cgroups: %w", err)
	}
	var enable strings.Builder
	for name := range strings.FieldsSeq(string(available)) {
		enable.WriteString("+" + name + " ")
	}
	for _, name := range []string{"init", "exec", "daemon"} {
		if err := os.Mkdir(filepath.Join(cgroupRoot, name), 0o755); err != nil {
			return fmt.Errorf("set up cgroups: %w", err)
		}
	}
	for _, w := range []struct{ file, value string }{
		{"cgroup.subtree_control", enable.String()},
		{"exec/cgroup.subtree_control", enable.String()},
		{"init/cpu.weight", "10000"},
		{"init/cgroup.procs", "0"},
	} {
		if err := os.WriteFile(filepath.Join(cgroupRoot, w.file), []byte(w.value), 0); err != nil {
			return fmt.Errorf("set up cgroups: write %q: %w", w.value, err)
		}
	}
	return nil
}

// configure changes kernel settings whose defaults are unsuitable for an emulated host.
func configure() error {
	limit := unix.Rlimit{Cur: openFiles, Max: openFiles}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("set limit of open files: %w", err)
	}
	if err := unix.Sethostname([]byte("forkd-machine")); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	// With huge pages, QEMU's translated code causes soft lockups of tens of seconds.
	if err := os.WriteFile("/sys/kernel/mm/transparent_hugepage/enabled", []byte("never"), 0); err != nil {
		return fmt.Errorf("disable transparent huge pages: %w", err)
	}
	if out, err := exec.Command("/bin/sh", "-c", network).CombinedOutput(); err != nil {
		return fmt.Errorf("set up network: %w: %s", err, out)
	}
	return nil
}
