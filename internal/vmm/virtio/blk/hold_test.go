package blk

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

// holdDisk is the size of the disks for hostile requests. It is below announcedZero.
const holdDisk = 32 << 20

// mostBytes and mostCalls limit the work between two calls of Transport.Wanted: 1 MiB, with one
// system call for each cluster. The second summand of each bound is for the bitmap, partial
// clusters, and the measurement itself.
const (
	mostBytes = 1<<20 + 64<<10
	mostCalls = 256 + 32
)

// hostile are the requests that keep a device busy longest, over a fragmented top. Their data has
// maxRequest bytes and begins at dataAt in guest memory.
var hostile = []struct {
	name    string
	kind    uint32
	sector  uint64
	segment uint32 // number of sectors of each segment, for requests with a list of segments
	count   int    // number of segments in the list
	size    uint32 // number of bytes of data, for other requests
}{
	{name: "read", kind: typeIn, size: maxRequest},
	{name: "write", kind: typeOut, sector: 1, size: maxRequest},
	{name: "flush", kind: typeFlush},
	{name: "discard, as announced", kind: typeDiscard, segment: holdDisk / sectorSize, count: announcedSegments},
	{name: "discard, as accepted", kind: typeDiscard, segment: holdDisk / sectorSize, count: acceptedSegments},
	{name: "write zeroes, as announced", kind: typeWriteZeroes, segment: holdDisk / sectorSize, count: announcedSegments},
	{name: "write zeroes, as accepted", kind: typeWriteZeroes, sector: 1, segment: holdDisk/sectorSize - 2, count: 2},
}

const (
	holdMemory = 16 << 20
	dataAt     = 1 << 20
)

// submitHostile makes a new queue with the request hostile[i].
func submitHostile(t testing.TB, mem *guestmem.Memory, i int) *virtq.Queue {
	t.Helper()
	r := hostile[i]
	out := make([]byte, headerSize)
	binary.LittleEndian.PutUint32(out, r.kind)
	binary.LittleEndian.PutUint64(out[8:], r.sector)
	for range r.count {
		segment := make([]byte, segmentSize)
		binary.LittleEndian.PutUint64(segment, r.sector)
		binary.LittleEndian.PutUint32(segment[8:], r.segment)
		out = append(out, segment...)
	}
	if err := mem.WriteAt(out, bufBase); err != nil {
		t.Fatal(err)
	}
	ring := virtiotest.NewRing(t, mem, ringBase, 64, func() {})
	status := guestmem.GPA(bufBase) + guestmem.GPA(len(out))
	ring.Add(virtiotest.Buf{GPA: bufBase, Len: uint32(len(out))},
		virtiotest.Buf{GPA: dataAt, Len: r.size, Write: r.kind == typeIn}, virtiotest.Buf{GPA: status, Len: 1, Write: true})
	q, err := virtq.New(mem, virtq.Config{Size: 64, Desc: ring.Desc, Driver: ring.Avail, Device: ring.Used})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// fragmentedDisk returns a disk in dir. In the files above the base, each cluster is a separate
// extent.
func fragmentedDisk(t testing.TB, dir string) *Overlay {
	t.Helper()
	base, err := os.CreateTemp(dir, "base")
	if err != nil {
		t.Fatal(err)
	}
	o, err := NewOverlay([]*os.File{base, newTop(t, dir, holdDisk)}, holdDisk)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	for layer := range uint64(2) {
		if layer > 0 {
			if err := o.SwapTop(newTop(t, dir, holdDisk), forReading(t, o.top)); err != nil {
				t.Fatal(err)
			}
		}
		data := [][]byte{make([]byte, cluster)}
		data[0][0] = byte(1 + layer)
		for c := layer; c < holdDisk/cluster; c += 2 {
			if err := o.WriteV(data, c*cluster); err != nil {
				t.Fatal(err)
			}
		}
		if err := o.top.File().Sync(); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

// fileSystems are the kinds of file systems that the test makes. ramfs cannot punch holes.
var fileSystems = []struct {
	name string
	make []string // command that makes a file system in a file; empty if it needs no file
}{
	{"tmpfs", nil},
	{"ramfs", nil},
	{"ext4", []string{"mkfs.ext4", "-q", "-F"}},
	{"xfs", []string{"mkfs.xfs", "-q"}},
}

// mountNew mounts a new file system and returns its directory. If it cannot mount the file system,
// it skips the test.
func mountNew(t testing.TB, name string, mkfs []string) string {
	t.Helper()
	dir := t.TempDir()
	if mkfs == nil {
		if err := unix.Mount(name, dir, name, 0, ""); err != nil {
			t.Skipf("mount %s: %v", name, err)
		}
	} else {
		if os.Getuid() != 0 {
			t.Skipf("only root mounts %s", name)
		}
		image := filepath.Join(t.TempDir(), "image")
		if err := os.WriteFile(image, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(image, 512<<20); err != nil {
			t.Fatal(err)
		}
		path := "PATH=/sbin:/usr/sbin:" + os.Getenv("PATH")
		script := append([]string{"-c", `"$@"`, "sh"}, append(mkfs, image)...)
		for _, args := range [][]string{script, {"-c", `mount -o loop "$1" "$2"`, "sh", image, dir}} {
			cmd := exec.Command("/bin/sh", args...)
			cmd.Env = append(os.Environ(), path)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Skipf("make %s: %v: %s", name, err, out)
			}
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// A pause waits for at most one piece of a request, however fragmented the disk is and whatever the
// guest requests. The test logs the longest waits as a table.
func TestHoldIsBounded(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	if err := unix.Mount("none", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, fs := range fileSystems {
		t.Run(fs.name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			dir := mountNew(t, fs.name, fs.make)
			for i, r := range hostile {
				h := holdOf(t, dir, i)
				t.Logf("%-6s %-28s %v", fs.name, r.name, h)
				if h.Bytes > mostBytes || h.Calls > mostCalls {
					t.Errorf("%s: between two looks at a pause the device moved %d bytes in %d calls, want at most %d in %d",
						r.name, h.Bytes, h.Calls, mostBytes, mostCalls)
				}
			}
		})
	}
}

// holdOf serves the request hostile[i] until it is complete, and returns the measurements.
func holdOf(t testing.TB, dir string, i int) *virtiotest.Hold {
	t.Helper()
	mem, err := guestmem.New(holdMemory)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	o := fragmentedDisk(t, dir)
	q := submitHostile(t, mem, i)
	top := o.top.File()
	h := virtiotest.NewHold(t, func() uint64 { return allocated(t, top) })
	d := New(o, "disk0", func() { t.Error("the host is full") })
	if err := d.Activate(&virtiotest.Direct{Looked: h.Look}, []*virtq.Queue{q}, 0); err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		if more, err = d.Notify(); err != nil {
			t.Fatal(err)
		}
		h.Look()
	}
	if s := hostileStatus(t, mem, i); s != statusOK {
		t.Errorf("%s: status %d", hostile[i].name, s)
	}
	for _, l := range o.layers {
		_ = os.Remove(l.File().Name())
	}
	return h
}

func hostileStatus(t testing.TB, mem *guestmem.Memory, i int) byte {
	t.Helper()
	var s [1]byte
	if err := mem.ReadAt(s[:], guestmem.GPA(bufBase+headerSize+hostile[i].count*segmentSize)); err != nil {
		t.Fatal(err)
	}
	return s[0]
}

// allocated returns how many bytes a file takes on its file system.
func allocated(t testing.TB, f *os.File) uint64 {
	t.Helper()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return uint64(info.Sys().(*syscall.Stat_t).Blocks) * 512
}
