package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Files of a run, in its directory.
const (
	fileDisk    = "disk.img"
	fileInitrd  = "initrd"
	fileConsole = "console.log" // output of kernel and systemd
	fileReport  = "report.log"  // output of the steps
)

// Lines with which the steps end a boot.
const (
	lineReboot = "forkd: reboot"
	lineDone   = "forkd: done"
	lineFailed = "forkd: failed"
)

const (
	// maxBoots bounds the boots of a script that never stops rebooting.
	maxBoots = 4
	// silence is how long a host may be without output. Each step has a separate, shorter limit.
	silence   = 20 * time.Minute
	lookPause = 500 * time.Millisecond
	// tail is the number of console lines in an error.
	tail = 60
)

// cmdline is the kernel's command line. systemd finds cgroup v2 and the console as on any Debian.
// The other options are for QEMU's emulation; see tcghost. no_timer_check is needed because the
// check can fail on a busy host.
const cmdline = "console=ttyS0 quiet panic=-1 mitigations=off norandmaps transparent_hugepage=never " +
	"systemd.show_status=no no_timer_check"

// host is an emulated Debian.
type host struct {
	dir     string
	qemu    string
	vmlinux string
	said    func(line string)
}

// untilDone boots the host repeatedly until its steps are done.
func (h host) untilDone(ctx context.Context) error {
	for range maxBoots {
		end, err := h.boot(ctx)
		if err != nil {
			return fmt.Errorf("%w; the console ended with:\n%s", err, lastLines(h.read(fileConsole), tail))
		}
		switch end {
		case lineReboot:
			continue
		case lineDone:
			return nil
		}
		return errors.New("steps failed: see above")
	}
	return fmt.Errorf("not done after %d boots", maxBoots)
}

// boot runs the host until it powers off or reboots. It returns the line with which the steps
// ended.
func (h host) boot(ctx context.Context) (end string, err error) {
	if err := os.WriteFile(filepath.Join(h.dir, fileReport), nil, 0o644); err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Use one emulated CPU and one translation thread, because with several threads nested SVM
	// loses VMs.
	cmd := exec.CommandContext(ctx, h.qemu, "-no-user-config", "-nodefaults", "-display", "none", "-no-reboot",
		"-M", "q35", "-accel", "tcg,thread=single", "-cpu", "EPYC,svm=on,npt=on", "-smp", "1", "-m", "4096",
		"-kernel", h.vmlinux, "-initrd", fileInitrd, "-append", cmdline+" root=/dev/vda",
		"-serial", "file:"+fileConsole, "-serial", "file:"+fileReport,
		"-drive", "if=none,id=d0,format=raw,discard=unmap,detect-zeroes=unmap,cache=unsafe,file="+fileDisk,
		"-device", "virtio-blk-pci,drive=d0")
	cmd.Dir = h.dir
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("start QEMU: %w", err)
	}
	ended := make(chan struct{})
	var status error
	go func() { status = cmd.Wait(); close(ended) }()
	end, err = h.watch(ctx, ended)
	if err != nil {
		cancel()
		<-ended
		return "", errors.Join(err, qemuError(said.String()))
	}
	if status != nil {
		return "", fmt.Errorf("QEMU: %w", errors.Join(status, qemuError(said.String())))
	}
	return end, nil
}

func qemuError(said string) error {
	if said == "" {
		return nil
	}
	return fmt.Errorf("QEMU says: %s", strings.TrimSpace(said))
}

// watch forwards the output of the steps until QEMU has exited.
func (h host) watch(ctx context.Context, ended <-chan struct{}) (end string, err error) {
	var shown, heard int
	spoke := time.Now()
	for {
		var over bool
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-ended:
			over = true
		case <-time.After(lookPause):
		}
		report, console := h.read(fileReport), h.read(fileConsole)
		for line := range strings.Lines(report[shown:]) {
			if !strings.HasSuffix(line, "\n") {
				break
			}
			shown += len(line)
			line = strings.TrimSpace(line)
			if line == lineReboot || line == lineDone || line == lineFailed {
				end = line
				continue
			}
			h.said(line)
		}
		if n := len(report) + len(console); n != heard {
			heard, spoke = n, time.Now()
		}
		switch {
		case strings.Contains(console, "Kernel panic"):
			return "", errors.New("its kernel panicked")
		case over && end == "":
			return "", errors.New("the emulated host ended before its steps did")
		case over:
			return end, nil
		case time.Since(spoke) > silence:
			return "", fmt.Errorf("the emulated host has said nothing for %v", silence)
		}
	}
}

func (h host) read(name string) string {
	p, err := os.ReadFile(filepath.Join(h.dir, name))
	if err != nil {
		return ""
	}
	return string(p)
}

func lastLines(text string, n int) string {
	lines := strings.SplitAfter(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "")
}
