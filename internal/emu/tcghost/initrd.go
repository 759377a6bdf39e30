package tcghost

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/forkd/forkd/internal/build/initramfs"
	"github.com/forkd/forkd/internal/emu/debkernel"
	"github.com/forkd/forkd/internal/emu/machineapi"
)

// modules are the modules that the emulated host needs: for KVM, for its disk, shares and network,
// and for the daemon (tun, overlay, fuse). ext4 needs crc32c_generic for the checksums of its journal,
// but does not list it as a dependency.
var modules = []string{
	"virtio_pci", "virtio_blk", "crc32c_generic", "ext4",
	"9p", "9pnet_virtio", "virtio_net",
	"kvm-amd", "tun", "overlay", "loop", "fuse",
}

// kernelDir is the directory for the kernel and busybox, which all emulated hosts share.
func (m Machine) kernelDir() string { return filepath.Join(m.cache, debkernel.CacheDir) }

// kernel returns the emulated host's kernel. It fetches the kernel if it is not in the cache.
func (m Machine) kernel(ctx context.Context, progress func(string)) (debkernel.Kernel, error) {
	dir := m.kernelDir()
	k, err := debkernel.Find(dir)
	if errors.Is(err, fs.ErrNotExist) {
		progress("downloading the emulated host's kernel (about 100 MB, once)")
		return debkernel.Fetch(ctx, dir)
	}
	return k, err
}

// writeInitrd writes the emulated host's initramfs: init, modules, busybox, a minimal /etc, and the
// configuration. Only the owner may read the file, because the configuration contains the token.
func (m Machine) writeInitrd(k debkernel.Kernel, busybox string, init []byte, config machineapi.Config) error {
	var buf bytes.Buffer
	w := initramfs.NewWriter(&buf)
	configJSON, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("build initramfs: %w", err)
	}
	for _, f := range []struct {
		name string
		perm uint32
		data []byte
	}{
		{"/init", 0o755, init},
		{machineapi.ConfigPath, 0o600, configJSON},
		{"/etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")},
		{"/etc/group", 0o644, []byte("root:x:0:\nnogroup:x:65534:\n")},
		{"/etc/hosts", 0o644, []byte("127.0.0.1 localhost forkd-machine\n::1 localhost\n")},
		{"/etc/resolv.conf", 0o644, []byte("nameserver 10.0.2.3\n")}, // the DNS server of QEMU's user-mode network
	} {
		if err := w.File(f.name, f.perm, f.data); err != nil {
			return err
		}
	}
	if err := errors.Join(w.CharDevice("/dev/console", 0o600, 5, 1), w.Dir("/root", 0o700)); err != nil {
		return err
	}
	if err := debkernel.AddBusybox(w, busybox); err != nil {
		return err
	}
	if err := k.AddModules(w, machineapi.ModulesDir, modules); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return m.replace(fileInitrd, buf.Bytes())
}
