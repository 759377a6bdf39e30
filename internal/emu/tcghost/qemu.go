package tcghost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/emu/debqemu"
	"github.com/forkd/forkd/internal/emu/machineapi"
)

// qemuDir is the directory for a QEMU that was fetched because the host's QEMU is too old. All
// emulated hosts share it.
func (m Machine) qemuDir() string { return filepath.Join(m.cache, "machine-qemu") }

// cmdline is the command line of the emulated host's kernel. Huge pages and address randomisation
// are off, because with either of them QEMU 7.2 accumulates translated code until clearing a page
// takes tens of seconds. Because of panic=-1, and -no-reboot in qemuArgs, QEMU exits when the
// kernel panics.
const cmdline = "console=ttyS0 quiet panic=-1 mitigations=off norandmaps transparent_hugepage=never"

// qemuArgs returns QEMU's arguments. There are only one emulated CPU and one translation thread,
// because with several of them about one nested VM in 200 exits or hangs. Paths are relative to the
// emulated host's directory, which is QEMU's working directory.
func (m Machine) qemuArgs(o Options, vmlinux, initAddr, daemonAddr string) []string {
	args := []string{
		"-name", "forkd-machine-" + m.Name,
		"-no-user-config", "-nodefaults", "-display", "none", "-no-reboot",
		"-M", "q35", "-accel", "tcg,thread=single", "-cpu", "EPYC,svm=on,npt=on", "-smp", "1",
		"-m", fmt.Sprint(o.MemoryMiB),
		"-kernel", vmlinux, "-initrd", fileInitrd, "-append", cmdline,
		"-serial", "file:" + fileConsole,
		"-netdev", fmt.Sprintf("user,id=n0,hostfwd=tcp:%s-:%d,hostfwd=tcp:%s-:%d",
			initAddr, machineapi.InitPort, daemonAddr, machineapi.DaemonPort),
		"-device", "virtio-net-pci,netdev=n0,romfile=",
		"-drive", "if=none,id=d0,format=raw,discard=unmap,detect-zeroes=unmap,file=" + fileDisk,
		"-device", "virtio-blk-pci,drive=d0",
	}
	for _, s := range m.shares() {
		// With security_model=mapped-file, a symbolic link made by the emulated host is a regular
		// file on the host.
		mode := "security_model=none,readonly=on"
		if s.Writable {
			mode = "security_model=mapped-file"
		}
		args = append(args, "-fsdev", fmt.Sprintf("local,id=%s,%s,multidevs=remap,path=%s", s.Tag, mode, escape(s.Dir)),
			"-device", fmt.Sprintf("virtio-9p-pci,fsdev=%s,mount_tag=%s", s.Tag, s.Tag))
	}
	return args
}

// shares returns the directories of this host that the emulated host sees. No directory contains
// programs that this host will run, or options or tokens of emulated hosts. Only the last
// directory, for results, is writable.
func (m Machine) shares() []machineapi.Share {
	var shares []machineapi.Share
	for _, dir := range []string{filepath.Join(m.cache, "images"), filepath.Join(m.cache, "kernel"),
		filepath.Join(m.cache, "vmtest"), filepath.Join(m.cache, "bench"), m.path(dirRun), m.DaemonDir()} {
		shares = append(shares, machineapi.Share{Tag: filepath.Base(dir), Dir: dir})
	}
	return append(shares, machineapi.Share{Tag: dirOut, Dir: m.path(dirOut), Writable: true})
}

// makeShares creates the missing shared directories.
func (m Machine) makeShares() error {
	for _, s := range m.shares() {
		perm := fs.FileMode(0o755)
		if strings.HasPrefix(s.Dir, m.dir) {
			perm = 0o700
		}
		if err := os.MkdirAll(s.Dir, perm); err != nil {
			return fmt.Errorf("make a directory for emulated host %s: %w", m.Name, err)
		}
	}
	return nil
}

// escape doubles the commas of a value in QEMU's option syntax.
func escape(s string) string { return strings.ReplaceAll(s, ",", ",,") }

// startQEMU starts the emulator. The kernel kills QEMU when the OS thread that has started it ends.
// So the caller must lock its goroutine to a thread that exists as long as the supervisor.
func (m Machine) startQEMU(o Options, vmlinux, initAddr, daemonAddr string) (*exec.Cmd, error) {
	if err := m.rotate(fileConsole, filePrevious); err != nil {
		return nil, err
	}
	if err := m.makeShares(); err != nil {
		return nil, err
	}
	log, err := os.Create(m.path(fileQEMULog))
	if err != nil {
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(o.QEMU, m.qemuArgs(o, vmlinux, initAddr, daemonAddr)...)
	cmd.Dir = m.dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start QEMU (Debian package %s): %w", debqemu.Package, err)
	}
	return cmd, nil
}

// ensureDisk creates the state disk if it does not exist: an ext4 file system in a sparse file.
func (m Machine) ensureDisk(ctx context.Context, gib int) error {
	path := m.path(fileDisk)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	tool, err := exec.LookPath("mke2fs")
	if err != nil {
		tool = "/usr/sbin/mke2fs" // /usr/sbin is not in the PATH of ordinary users
	}
	return atomicfile.Fill(path, func(tmp string) error {
		out, err := exec.CommandContext(ctx, tool, "-q", "-t", "ext4", "-m", "0", "-L", "forkd-machine", tmp,
			fmt.Sprintf("%dG", gib)).CombinedOutput()
		if err != nil {
			return fmt.Errorf("run mke2fs (Debian package e2fsprogs): %w: %s", err, out)
		}
		return nil
	})
}

// logTail returns the last lines of a log of the emulated host, at most n bytes.
func (m Machine) logTail(name string, n int64) string {
	f, err := os.Open(m.path(name))
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > n {
		f.Seek(-n, io.SeekEnd)
	}
	b, err := io.ReadAll(io.LimitReader(f, n))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
