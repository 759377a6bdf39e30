// Package lab has the common parts of the benchmarks: flags, the description of the host, the files
// that the benchmarks run, the parts of the daemon that they measure, and the CPU time of
// processes.
//
// It does not contain the benchmarks themselves or their tables. No program of the product contains
// it.
package lab

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmm/kvm"
	"github.com/forkd/forkd/internal/vmtest"
)

// Kinds of hosts, for report.Host.Accel.
const (
	AccelKVM = "kvm"
	AccelTCG = "tcg" // forkd's own emulated host: an emulated CPU with nested virtualization
	AccelPVM = "pvm" // a KVM without hardware virtualization; it runs the stub guest, but no ordinary kernel

	AccelNone = "none" // no KVM
)

// Host describes this host. If the host has no KVM at all, Host returns the description together
// with ErrUnfit.
func Host() (report.Host, error) {
	h := report.Host{CPUs: runtime.NumCPU()}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return h, fmt.Errorf("read kernel version: %w", err)
	}
	h.Kernel = unix.ByteSliceToString(name.Release[:])
	mem, err := meminfo("MemTotal")
	if err != nil {
		return h, err
	}
	h.RAMMiB = mem >> 10
	var unfit *kvm.UnfitError
	switch err := kvm.Probe(); {
	case errors.As(err, &unfit):
		h.Accel = AccelPVM
	case err != nil:
		h.Accel = AccelNone
		return h, errors.Join(ErrUnfit, err)
	case vmtest.Emulated():
		h.Accel = AccelTCG
	default:
		h.Accel = AccelKVM
	}
	return h, nil
}

// assets returns the guest kernels, images and binaries that internal/vmtest/prepare made.
func assets() (*vmtest.Assets, error) {
	dir, err := cachedir.Dir()
	if err != nil {
		return nil, err
	}
	p, err := os.ReadFile(filepath.Join(dir, vmtest.AssetsFile))
	if err != nil {
		return nil, fmt.Errorf("no guests to run: run scripts/bench, which makes them: %w", err)
	}
	a := &vmtest.Assets{}
	if err := json.Unmarshal(p, a); err != nil {
		return nil, fmt.Errorf("parse %s: %w", vmtest.AssetsFile, err)
	}
	return a, nil
}

// CopyBinary copies a program into dir and returns the path of the copy. In the emulated host,
// built programs are in a slow shared directory. A daemon has its VMM on a disk, so a benchmark
// should also have the VMM on a disk.
func CopyBinary(dir, path string) (string, error) {
	p, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("copy %s: %w", path, err)
	}
	to := filepath.Join(dir, filepath.Base(path))
	// Jail.Starter needs these permissions.
	return to, errors.Join(os.WriteFile(to, p, 0o700), os.Chmod(to, 0o755), os.Chmod(dir, 0o711))
}

// Template returns the CPU template of guests. An emulated host needs a template without XSAVE,
// because it does not preserve the register XCR0 of its guests.
func Template(h report.Host) string {
	if h.Accel == AccelTCG {
		return vm.TemplateV2
	}
	return vm.TemplateHost
}

// DropCaches empties the page cache of the whole host. It needs root.
func DropCaches() error {
	unix.Sync() // only clean pages can be dropped, so write dirty ones first
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3\n"), 0); err != nil {
		return fmt.Errorf("empty the page cache: %w", err)
	}
	return nil
}

// HostMemory is the memory of the whole host, in KiB (proc_meminfo(5)). Every process on the host
// changes it.
type HostMemory struct {
	Available uint64 // MemAvailable
	Slab      uint64 // small objects of the kernel
}

// ReadHostMemory reads the host's memory.
func ReadHostMemory() (h HostMemory, err error) {
	if h.Available, err = meminfo("MemAvailable"); err != nil {
		return h, err
	}
	h.Slab, err = meminfo("Slab")
	return h, err
}

// PssKiB returns the proportional set size of a process: its private memory and its share of shared
// memory (proc_pid_smaps_rollup).
func PssKiB(pid int) (uint64, error) {
	p, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	return statusField(string(p), "Pss")
}

// PrivateKiB returns the private memory of a process (proc_pid_smaps(5)). It does not count the
// mappings of the file with the given name. For a VMM, this is the private memory without guest
// RAM.
func PrivateKiB(pid int, without string) (float64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return privateKiB(f, without)
}

func privateKiB(smaps io.Reader, without string) (total float64, err error) {
	counts := false // whether the present mapping counts
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		key, rest, _ := strings.Cut(lines.Text(), " ")
		switch {
		case !strings.HasSuffix(key, ":"): // a line with address, mode, offset, device, inode and path
			counts = !strings.HasSuffix(rest, " "+without)
		case counts && strings.HasPrefix(key, "Private_"):
			number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			kib, err := strconv.ParseUint(number, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("parse smaps: %s is %q", key, rest)
			}
			total += float64(kib)
		}
	}
	return total, lines.Err()
}

func meminfo(key string) (uint64, error) {
	p, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	return statusField(string(p), key)
}

// statusField returns the number in a line of the form "Key:  123 kB".
func statusField(text, key string) (uint64, error) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, key+":"); ok {
			fields := strings.Fields(rest)
			if len(fields) == 0 {
				break
			}
			return strconv.ParseUint(fields[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("no field %s in /proc", key)
}

// Now returns CLOCK_MONOTONIC in nanoseconds. This clock is the same in all processes.
func Now() (int64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return t.Nano(), nil
}
