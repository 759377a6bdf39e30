package blk

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio"
	"github.com/forkd/forkd/internal/vmm/virtio/mmio"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
)

// inNamespace runs the test again in a child process that may mount file systems. It returns true
// in that child.
func inNamespace(t *testing.T) bool {
	const mark = "FORKD_TEST_NAMESPACE"
	if os.Getenv(mark) != "" {
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), mark+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
	return false
}

// A write that finds no space on the host gets no response until there is space. The requests after
// it also wait. No data is lost, and the guest sees no error.
func TestWritesWaitForRoom(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	dir := t.TempDir()
	if err := unix.Mount("none", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	const size = 8 << 20
	top, err := os.Create(filepath.Join(dir, "top"))
	if err != nil {
		t.Fatal(err)
	}
	if err := disklayer.Format(top, size); err != nil {
		t.Fatal(err)
	}
	base, err := os.CreateTemp(t.TempDir(), "base")
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := NewOverlay([]*os.File{base, top}, size)
	if err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(dir, "ballast") // a file that takes all the space
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); err == nil {
		t.Fatal("the file system is not full")
	}
	full := make(chan struct{}, 100)
	g := &guest{t: t, irq: &virtiotest.IRQ{}}
	if g.mem, err = guestmem.New(4 << 20); err != nil {
		t.Fatal(err)
	}
	defer g.mem.Close()
	g.tr, err = mmio.New(g.mem, New(overlay, "disk0", func() { full <- struct{}{} }), g.irq)
	if err != nil {
		t.Fatal(err)
	}
	defer g.tr.Close()
	g.ring = virtiotest.Start(t, g.mem, g.tr, virtio.FVersion1|FFlush, ringBase, 64)[0]

	payload := bytes.Repeat([]byte{0xa5}, 64<<10)
	g.submit(typeOut, 0, payload, 0)
	g.ring.Kick()
	<-full
	g.tr.Quiesce() // as a machine does when its disk is full; there are no responses yet
	if n := g.irq.Count(); n != 0 {
		t.Errorf("%d interrupts for a write that found no room", n)
	}
	if err := g.tr.Unquiesce(); err != nil { // simulates a machine that is resumed too early
		t.Fatal(err)
	}
	<-full
	g.tr.Quiesce()
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := g.tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
	if s, _ := g.complete(payload, 0); s != statusOK {
		t.Fatalf("the write that waited: status %d", s)
	}
	if s, data := g.request(typeIn, 0, nil, uint32(len(payload))); s != statusOK || !bytes.Equal(data, payload) {
		t.Fatalf("what it wrote: status %d", s)
	}
}

// A disk quota that is exhausted is handled like a full disk: the guest sees no error.
func TestQuotaIsNoRoom(t *testing.T) {
	for _, full := range []error{unix.ENOSPC, unix.EDQUOT} {
		if _, pending := result(&os.PathError{Op: "write", Path: "top", Err: full}); !errors.Is(pending, full) {
			t.Errorf("%v: the driver was answered", full)
		}
		if code := vm.CodeOf(full); code != vm.ErrNoSpace {
			t.Errorf("%v: code %v", full, code)
		}
	}
	if _, pending := result(unix.EIO); pending != nil {
		t.Error("an I/O error was not answered")
	}
}
