package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/forkd/forkd/internal/build/initramfs"
	"github.com/forkd/forkd/internal/build/kernelimage"
	"github.com/forkd/forkd/internal/build/kmod"
)

// guestModules returns the modules that a guest needs before its root disk is mounted, in load
// order. Modules built into a kernel are skipped. Dependencies are added automatically.
func guestModules() []string {
	return []string{
		"virtio_mmio", "virtio_blk",
		"ext4", "crc32c_generic", // ext4 requests the checksum by name, so ext4's .modinfo does not list the dependency
		"vmw_vsock_virtio_transport",
		"virtio_rng", "virtio_net", "virtio_balloon", "overlay",
		"tcp_diag", // the agent uses it to close a fork's connections
	}
}

// initramfsPrefix is the prefix of the initramfses in a kernel's directory.
const initramfsPrefix = "initramfs-"

// makeInitrd sets k.Initrd to an initramfs with agent as /init and the modules that the agent
// loads:
//
//	/init                            the agent
//	/modules/<name>.ko, .../order    decompressed; "order" has the file names in load order
//	/dev /proc /sys /newroot         mount points
//
// The initramfs is not compressed, because reading it costs less than decompressing it, especially
// on a slow CPU. The kernel's module loader would not benefit either. The file name contains the
// digest of the content.
func (k *KernelFiles) makeInitrd(ctx context.Context, agent []byte) error {
	if !kernelimage.IsELF(agent) {
		return errors.New("the guest agent is not an ELF program")
	}
	h := sha256.New()
	fmt.Fprintf(h, "forkd initramfs 2 %s %q %d:", k.Version, strings.Join(guestModules(), " "), len(agent))
	h.Write(agent)
	dir := initramfsPrefix + hex.EncodeToString(h.Sum(nil)[:8])
	err := publish(ctx, k.Dir, dir, nil, func(staging string) error {
		data, err := k.initrd(agent)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(staging, "initrd"), data, 0o444)
	})
	if err != nil {
		return err
	}
	used(k.Dir)
	used(filepath.Join(k.Dir, dir))
	k.Initrd = filepath.Join(k.Dir, dir, "initrd")
	return nil
}

// Initramfs returns an initramfs that contains the program agent. The initramfs is for the kernel
// file at the path kernel. The initramfs contains the modules in the directory "modules" next to
// the kernel, as in the cache. Without that directory, the kernel must have all drivers built in.
func Initramfs(kernel string, agent []byte) ([]byte, error) {
	k := &KernelFiles{}
	if modules := filepath.Join(filepath.Dir(kernel), modulesName); exists(modules) {
		k.Modules = modules
	}
	data, err := k.initrd(agent)
	if err != nil {
		return nil, fmt.Errorf("make initramfs for kernel %s: %w", kernel, err)
	}
	return data, nil
}

func (k *KernelFiles) initrd(agent []byte) ([]byte, error) {
	var modules []kmod.Module
	if k.Modules != "" {
		var err error
		if modules, err = kmod.Collect(k.Modules, guestModules()); err != nil {
			return nil, err
		}
	}
	var out, order bytes.Buffer
	w := initramfs.NewWriter(&out)
	for _, dir := range []string{"dev", "proc", "sys", "newroot", "modules"} {
		_ = w.Dir(dir, 0o755) // Close returns the error
	}
	_ = w.CharDevice("dev/console", 0o600, 5, 1) // /init's stdin, stdout and stderr
	_ = w.File("init", 0o755, agent)
	for _, m := range modules {
		_ = w.File("modules/"+m.Name+".ko", 0o644, m.Data)
		fmt.Fprintf(&order, "%s.ko\n", m.Name)
	}
	_ = w.File("modules/order", 0o644, order.Bytes())
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
