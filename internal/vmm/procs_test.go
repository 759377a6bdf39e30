package vmm

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/console"
	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmtest"
)

// If a machine has several vCPUs, the process gets two processors of the Go scheduler, whatever
// number it had before.
func TestCreateSetsProcs(t *testing.T) {
	vmtest.NeedKVM(t)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	kvmFD, err := unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(vmtest.ShortDir(t), "v")})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	listener, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	frames, err := os.Open(os.DevNull) // create does not use it
	if err != nil {
		t.Fatal(err)
	}
	defer frames.Close()
	ring, err := os.Create(filepath.Join(t.TempDir(), "ring"))
	if err == nil {
		err = console.Format(ring)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer ring.Close()
	const vcpus = 3
	var req codec.Writer
	(&vmmproto.Create{Version: vmmproto.Version,
		Shape: vm.Shape{MemoryBytes: 64 << 20, VCPUs: vcpus, Template: vmtest.Template()}}).Append(&req)
	s := &server{maxProcs: MaxProcs, narrow: func() error { return nil }}
	files := donate([]int{kvmFD, dup(t, listener), dup(t, ring), dup(t, frames)})
	if err := s.create(codec.NewReader(req.Bytes()), files, &codec.Writer{}); err != nil {
		t.Fatal(err)
	}
	if n := runtime.GOMAXPROCS(0); n != MaxProcs {
		t.Errorf("%d processors for %d vCPUs, want %d", n, vcpus, MaxProcs)
	}
}

// dup returns a copy of a descriptor, for a request.
func dup(t *testing.T, f *os.File) int {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}
