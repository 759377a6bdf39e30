package vmfake_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/host/vmpool/suite"
	"github.com/forkd/forkd/internal/proto/vm"
)

// The fake VMs pass the same tests as real VMs (TestProcesses of package vmpool).
func TestVMs(t *testing.T) {
	suite.Run(t, func(t *testing.T) *suite.Host {
		dir := t.TempDir()
		file := filepath.Join(dir, "file")
		h := &suite.Host{VMMs: &vmfake.VMMs{}, Dir: filepath.Join(dir, "run"), RAM: filepath.Join(dir, "ram"),
			Shape: vm.Shape{MemoryBytes: 64 << 20, VCPUs: 1}, Base: file, Kernel: file, Initrd: file}
		for _, d := range []string{h.Dir, h.RAM} {
			if err := os.Mkdir(d, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		return h
	})
}
