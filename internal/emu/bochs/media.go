package bochs

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/forkd/forkd/internal/build/debpkg"
	"github.com/forkd/forkd/internal/build/initramfs"
	"github.com/forkd/forkd/internal/emu/debkernel"
)

//go:embed init.sh
var initScript []byte

// modules are the modules that the host needs for its disk, for KVM, and for the daemon. ext4 needs
// crc32c_generic for the checksums of its journal, but does not list it as a dependency.
var modules = []string{"ata_piix", "sd_mod", "crc32c_generic", "ext4", "kvm-intel", "tun", "overlay", "loop"}

// Files of a run, in its directory.
const (
	fileDisk    = "disk.img"
	fileCD      = "boot.iso"
	fileConsole = "console.log"
	fileLog     = "bochs.log"
	fileConfig  = "bochsrc"
)

const bootMenu = `DEFAULT forkd
PROMPT 0
LABEL forkd
  KERNEL vmlinuz
  INITRD initrd
  APPEND %s
`

// makeCD writes the CD that the firmware boots.
func (e Emulator) makeCD(ctx context.Context, h Host, k debkernel.Kernel, busybox, job, dir string) error {
	content := filepath.Join(dir, "cd")
	if err := os.Mkdir(content, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(content)
	initrd, err := h.initrd(k, busybox, job)
	if err != nil {
		return err
	}
	in := func(name string) string { return filepath.Join(content, name) }
	err = errors.Join(
		os.WriteFile(in("initrd"), initrd, 0o644),
		os.WriteFile(in("isolinux.cfg"), fmt.Appendf(nil, bootMenu, cmdline), 0o644),
		os.Symlink(k.BzImage, in("vmlinuz")),
		// This file is copied, because genisoimage changes it.
		copyFile(in("isolinux.bin"), filepath.Join(e.root, "usr/lib/ISOLINUX/isolinux.bin")),
		os.Symlink(filepath.Join(e.root, "usr/lib/syslinux/modules/bios/ldlinux.c32"), in("ldlinux.c32")),
	)
	if err != nil {
		return err
	}
	out, err := e.command(ctx, "genisoimage", "-quiet", "-f", "-o", filepath.Join(dir, fileCD), "-b", "isolinux.bin",
		"-c", "boot.cat", "-no-emul-boot", "-boot-load-size", "4", "-boot-info-table", content).CombinedOutput()
	if err != nil {
		return fmt.Errorf("make the boot CD: %w: %s", err, out)
	}
	return nil
}

func copyFile(to, from string) error {
	p, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, p, 0o644)
}

func (h Host) initrd(k debkernel.Kernel, busybox, job string) ([]byte, error) {
	var buf bytes.Buffer
	w := initramfs.NewWriter(&buf)
	err := errors.Join(
		w.File("/init", 0o755, initScript),
		w.File("/etc/forkd/kvm-intel", 0o644, []byte(h.moduleOptions()+"\n")),
		w.File("/etc/forkd/job", 0o644, []byte(job)),
		w.File("/etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")),
		w.File("/etc/group", 0o644, []byte("root:x:0:\nnogroup:x:65534:\n")),
		w.File("/etc/hosts", 0o644, []byte("127.0.0.1 localhost\n::1 localhost\n")),
		w.CharDevice("/dev/console", 0o600, 5, 1),
		debkernel.AddBusybox(w, busybox),
		k.AddModules(w, "/lib/forkd-modules", modules),
		w.Close(),
	)
	return buf.Bytes(), err
}

// diskSpare is the free space on a new disk, in bytes.
const diskSpare = 2 << 30

// makeDisk writes an ext4 file system with the files below tree.
func makeDisk(ctx context.Context, path, tree string, size int64) error {
	_, err := debpkg.Run(ctx, "", "mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-E", "lazy_itable_init=1,root_owner=0:0",
		"-d", tree, path, fmt.Sprintf("%dK", (size+diskSpare)>>10))
	if err != nil {
		return fmt.Errorf("make the disk: %w", err)
	}
	return nil
}

// Results copies a directory of the run's disk to a directory of the real host. It creates that
// directory if it is missing.
func (r Run) Results(ctx context.Context, name, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	disk := filepath.Join(r.dir, fileDisk)
	// If the host was killed, its file system has a journal that was not replayed, and debugfs
	// would show old files. e2fsck replays the journal. The error of e2fsck is ignored, because
	// e2fsck also returns an error after a successful repair. If the repair has failed, debugfs
	// also fails.
	_, _ = debpkg.Run(ctx, "", "e2fsck", "-fy", disk)
	if _, err := debpkg.Run(ctx, "", "debugfs", "-R", fmt.Sprintf("rdump %q %q", name, to), disk); err != nil {
		return fmt.Errorf("read the disk: %w", err)
	}
	return nil
}
