package vmpool_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/host/vmpool/suite"
	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmtest"
)

// Real VMs pass the same suite as fake VMs.
func TestProcesses(t *testing.T) {
	a := vmtest.Load(t)
	jails, err := jail.New(jail.Options{})
	if err != nil {
		t.Fatal(err)
	}
	suite.Run(t, func(t *testing.T) *suite.Host {
		ram, err := os.MkdirTemp("/dev/shm", "fkt")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(ram) })
		return &suite.Host{VMMs: vmpool.Processes{Bin: a.VMM, Jail: jails}, Dir: vmtest.ShortDir(t), RAM: ram,
			Shape:  vm.Shape{MemoryBytes: 128 << 20, VCPUs: 1, Template: vmtest.Template()},
			Kernel: a.Minimal.VMLinux, Initrd: a.Minimal.Initrd, Cmdline: vmtest.Cmdline(),
			Base: filepath.Join(a.Images["base"], "rootfs.ext4")}
	})
}
