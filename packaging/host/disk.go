package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/forkd/forkd/internal/build/debpkg"
	"github.com/forkd/forkd/internal/build/image"
	"github.com/forkd/forkd/internal/build/initramfs"
	"github.com/forkd/forkd/internal/emu/debkernel"
)

//go:embed init.sh
var initScript []byte

//go:embed try
var tryScript []byte

// tryUnit is the systemd unit that runs the steps at each boot.
const tryUnit = `[Unit]
Description=forkd: try the package

[Service]
Type=exec
Environment=HOME=/root VERSION=%s
ExecStart=/try/try
TimeoutStopSec=20

[Install]
WantedBy=multi-user.target
`

// modules are the host's disk driver, and the modules that Debian on hardware loads by itself. ext4
// needs crc32c_generic for its journal, but its dependencies do not name crc32c_generic.
var modules = []string{"virtio_pci", "virtio_blk", "crc32c_generic", "ext4", "kvm-amd", "tun", "overlay", "loop"}

// diskSize is enough for the system, snapshots and suspended sandboxes. The file is sparse.
const diskSize = "12G"

// parts are the inputs for the disk.
type parts struct {
	root, earlier, earlierAgent, deb, version string // from the flags with these names

	earlierInitrd string
	kernel        *image.KernelFiles
	image         *image.Image
}

// makeDisk writes the file system of the emulated host below dir.
func (p *parts) makeDisk(ctx context.Context, dir string) error {
	tree := filepath.Join(dir, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return err
	}
	defer asRoot(context.WithoutCancel(ctx), "rm", "-rf", tree)
	// /dev is excluded: devtmpfs has the devices, which cannot be created in a user namespace.
	if err := asRoot(ctx, "tar", "-C", tree, "--numeric-owner", "--exclude=./dev/*", "-xf", p.root); err != nil {
		return fmt.Errorf("unpack %s: %w", p.root, err)
	}
	in := func(name ...string) string { return filepath.Join(append([]string{tree}, name...)...) }
	cache := in("root/.cache/forkd")
	err := errors.Join(
		os.MkdirAll(in("try"), 0o755),
		os.MkdirAll(filepath.Join(cache, "images"), 0o755),
		os.MkdirAll(filepath.Join(cache, "kernel"), 0o755),
		os.MkdirAll(in("etc/systemd/system/multi-user.target.wants"), 0o755),
		os.WriteFile(in("try/try"), tryScript, 0o755),
		os.WriteFile(in("etc/systemd/system/try.service"), fmt.Appendf(nil, tryUnit, p.version), 0o644),
		os.Symlink("../try.service", in("etc/systemd/system/multi-user.target.wants/try.service")),
		os.WriteFile(in("etc/fstab"), []byte("/dev/vda / ext4 defaults 0 1\n"), 0o644),
		os.WriteFile(in("etc/hostname"), []byte("forkd-package\n"), 0o644),
	)
	if err != nil {
		return err
	}
	for from, to := range map[string]string{
		p.earlierInitrd: in("try/earlier-initrd"),
		p.earlier:       in("try/earlier.deb"),
		p.deb:           in("try/package.deb"),
		p.image.Dir:     filepath.Join(cache, "images"),
		p.kernel.Dir:    filepath.Join(cache, "kernel"),
	} {
		if _, err := debpkg.Run(ctx, "", "cp", "-a", "--sparse=always", from, to); err != nil {
			return err
		}
	}
	err = asRoot(ctx, "/usr/sbin/mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-E", "lazy_itable_init=1",
		"-d", tree, filepath.Join(dir, fileDisk), diskSize)
	if err != nil {
		return fmt.Errorf("make the disk: %w", err)
	}
	return nil
}

// asRoot runs a program as root. Without root, it runs the program as root of a user namespace, in
// which root's files belong to the user.
func asRoot(ctx context.Context, program string, args ...string) error {
	if os.Geteuid() != 0 {
		program, args = "unshare", append([]string{"--map-root-user", "--map-auto", "--", program}, args...)
	}
	_, err := debpkg.Run(ctx, "", program, args...)
	return err
}

func writeInitrd(path string, k debkernel.Kernel, busybox string) error {
	var buf bytes.Buffer
	w := initramfs.NewWriter(&buf)
	err := errors.Join(
		w.File("/init", 0o755, initScript),
		w.CharDevice("/dev/console", 0o600, 5, 1),
		debkernel.AddBusybox(w, busybox),
		k.AddModules(w, "/lib/forkd-modules", modules),
		w.Close(),
	)
	return errors.Join(err, os.WriteFile(path, buf.Bytes(), 0o644))
}
