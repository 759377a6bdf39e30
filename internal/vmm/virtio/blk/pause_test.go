package blk

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

// A pause can stop a request after any of its pieces. After the pause, the machine continues the
// request. A branch that is made during the pause executes the request again from its start.
// Machine and branch end with the same disk, the same data in guest memory, and one response.
func TestPauseInsideARequest(t *testing.T) {
	for i, r := range hostile {
		if r.kind == typeFlush {
			continue // the request has only one piece
		}
		t.Run(r.name, func(t *testing.T) {
			want := runPaused(t, i, -1)
			pieces := want.looks - 2 // the checks before the first piece and after the last piece do not count
			if pieces < 2 {
				t.Fatalf("the request was done in %d pieces: it cannot be paused", pieces)
			}
			for _, at := range []int{1, pieces} {
				got := runPaused(t, i, at)
				if got.parent != want.parent {
					t.Errorf("paused after %d pieces: the machine ended with another disk, memory or answer", at)
				}
				if got.child != want.parent {
					t.Errorf("branched after %d pieces: the branch ended with another disk, memory or answer", at)
				}
			}
		})
	}
}

// ending describes how a request ends, in a machine or in its branch.
type ending struct {
	looks         int // how often the device checked for a pause, by calling Wanted
	parent, child string
}

// runPaused serves the request hostile[i]. After the given number of pieces (at), it pauses the
// device and makes a branch. If at is -1, it does neither.
func runPaused(t *testing.T, i, at int) (e ending) {
	mem := newHoldMemory(t)
	o := fragmentedDisk(t, t.TempDir())
	q := submitHostile(t, mem, i)
	tr := &virtiotest.Direct{}
	tr.Looked = func() {
		e.looks++
		tr.Paused = e.looks == at+1
	}
	d := New(o, "disk0", func() { t.Error("the host is full") })
	if err := d.Activate(tr, []*virtq.Queue{q}, 0); err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		var err error
		if more, err = d.Notify(); err != nil {
			t.Fatal(err)
		}
		if tr.Paused {
			tr.Paused = false
			if left, err := q.Pending(); err != nil || left != 1 || !more {
				t.Fatalf("paused inside the request: more %v, %d requests in the queue, %v", more, left, err)
			}
			e.child = branchAndFinish(t, d, q, mem, i)
		}
	}
	e.parent = contents(t, o, q, mem, i)
	return e
}

func newHoldMemory(t *testing.T) *guestmem.Memory {
	t.Helper()
	mem, err := guestmem.New(holdMemory)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mem.Close() })
	if err := mem.WriteAt(bytes.Repeat([]byte("data"), maxRequest/4), dataAt); err != nil {
		t.Fatal(err)
	}
	return mem
}

// branchAndFinish makes a branch of d, and serves the branch's queue until the request is complete.
// The device d gets a new top.
func branchAndFinish(t *testing.T, d *Device, q *virtq.Queue, mem *guestmem.Memory, i int) string {
	t.Helper()
	var w codec.Writer
	q.Save(&w)
	d.Save(&w)
	dir := t.TempDir()
	if err := d.SwapTop(newTop(t, dir, holdDisk), forReading(t, d.disk.top)); err != nil {
		t.Fatal(err)
	}
	var files []*os.File
	for _, f := range append([]*os.File{d.disk.base}, layerFiles(d.disk)...) {
		g, err := os.Open(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, g)
	}
	files[len(files)-1].Close() // the new top belongs to the parent, and the branch has another top
	files[len(files)-1] = newTop(t, dir, holdDisk)
	o, err := NewOverlay(files, holdDisk)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	all := make([]byte, holdMemory)
	child := newHoldMemory(t)
	if err := mem.ReadAt(all, 0); err != nil {
		t.Fatal(err)
	}
	if err := child.WriteAt(all, 0); err != nil {
		t.Fatal(err)
	}
	ring := virtiotest.NewRing(t, child, ringBase, 64, func() {})
	restored, err := virtq.New(child, virtq.Config{Size: 64, Desc: ring.Desc, Driver: ring.Avail, Device: ring.Used})
	if err != nil {
		t.Fatal(err)
	}
	r := codec.NewReader(w.Bytes())
	if err := restored.Restore(codec.NewReader(r.Raw(virtq.StateSize))); err != nil {
		t.Fatal(err)
	}
	branch := New(o, "disk0", func() { t.Error("the host is full") })
	if err := branch.Restore(r); err != nil {
		t.Fatal(err)
	}
	if err := branch.Activate(&virtiotest.Direct{}, []*virtq.Queue{restored}, 0); err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		if more, err = branch.Notify(); err != nil {
			t.Fatal(err)
		}
	}
	return contents(t, o, restored, child, i)
}

func layerFiles(o *Overlay) (files []*os.File) {
	for _, l := range o.layers {
		files = append(files, l.File())
	}
	return files
}

// contents returns the content of the disk and of the guest's memory. It fails the test if the
// request has failed or is still in the queue.
func contents(t *testing.T, o *Overlay, q *virtq.Queue, mem *guestmem.Memory, i int) string {
	t.Helper()
	disk, memory := make([]byte, holdDisk), make([]byte, holdMemory)
	if err := o.ReadV([][]byte{disk}, 0); err != nil {
		t.Fatal(err)
	}
	if err := mem.ReadAt(memory, 0); err != nil {
		t.Fatal(err)
	}
	if s := hostileStatus(t, mem, i); s != statusOK {
		t.Errorf("%s: status %d", hostile[i].name, s)
	}
	if left, err := q.Pending(); err != nil || left != 0 {
		t.Errorf("%s: %d requests left, %v", hostile[i].name, left, err)
	}
	return string(disk) + string(memory)
}

// The device announces small limits. It accepts requests up to the larger limits that earlier
// releases announced, and refuses larger requests.
func TestLimitsOfZeroing(t *testing.T) {
	g := start(t, newDisk(t, 4*cluster, nil))
	le := binary.LittleEndian
	config := make([]byte, configSize)
	g.tr.Read(0x100, config)
	for off, want := range map[int]uint32{36: announcedZero, 40: announcedSegments, 48: announcedZero,
		52: announcedSegments} {
		if have := le.Uint32(config[off:]); have != want {
			t.Errorf("the configuration has %d at %d, want %d", have, off, want)
		}
	}
	for _, kind := range []uint32{typeDiscard, typeWriteZeroes} {
		segment := make([]byte, segmentSize)
		le.PutUint32(segment[8:], 1)
		if s, _ := g.request(kind, 0, bytes.Repeat(segment, acceptedSegments), 0); s != statusOK {
			t.Errorf("type %d, %d segments: status %d", kind, acceptedSegments, s)
		}
		if s, _ := g.request(kind, 0, bytes.Repeat(segment, acceptedSegments+1), 0); s != statusIOErr {
			t.Errorf("type %d, %d segments: status %d, want an error", kind, acceptedSegments+1, s)
		}
		le.PutUint32(segment[8:], acceptedZero+1)
		if s, _ := g.request(kind, 0, segment, 0); s != statusIOErr {
			t.Errorf("type %d, %d sectors: status %d, want an error", kind, acceptedZero+1, s)
		}
	}
}
