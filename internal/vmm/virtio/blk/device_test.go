package blk

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio"
	"github.com/forkd/forkd/internal/vmm/virtio/mmio"
	"github.com/forkd/forkd/internal/vmm/virtio/virtiotest"
	"github.com/forkd/forkd/internal/vmm/virtio/virtq"
)

// guest is a started block device with its driver.
type guest struct {
	t    testing.TB
	mem  *guestmem.Memory
	tr   *mmio.Transport
	irq  *virtiotest.IRQ
	ring *virtiotest.Ring
}

const (
	ringBase = 0x10000
	bufBase  = 0x20000
)

func start(t testing.TB, o *Overlay) *guest {
	t.Helper()
	mem, err := guestmem.New(4 << 20)
	if err != nil {
		t.Fatal(err)
	}
	g := &guest{t: t, mem: mem, irq: &virtiotest.IRQ{}}
	g.tr, err = mmio.New(mem, New(o, "disk0", func() {}), g.irq)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.tr.Close(); mem.Close() })
	g.ring = virtiotest.Start(t, mem, g.tr, virtio.FVersion1|FFlush, ringBase, 64)[0]
	return g
}

// request executes a request. The device receives the data in out, and has to return the given
// number of bytes (in). The results are the request's status and these bytes.
func (g *guest) request(kind uint32, sector uint64, out []byte, in uint32) (status byte, data []byte) {
	g.t.Helper()
	g.submit(kind, sector, out, in)
	g.ring.Kick()
	return g.complete(out, in)
}

func (g *guest) submit(kind uint32, sector uint64, out []byte, in uint32) {
	g.t.Helper()
	var header [headerSize]byte
	binary.LittleEndian.PutUint32(header[0:], kind)
	binary.LittleEndian.PutUint64(header[8:], sector)
	if err := g.mem.WriteAt(append(header[:], out...), bufBase); err != nil {
		g.t.Fatal(err)
	}
	dataAt := guestmem.GPA(bufBase + headerSize + len(out))
	g.ring.Add(virtiotest.Buf{GPA: bufBase, Len: 7}, // a driver may split a header at any position
		virtiotest.Buf{GPA: bufBase + 7, Len: headerSize - 7 + uint32(len(out))},
		virtiotest.Buf{GPA: dataAt, Len: in, Write: true}, virtiotest.Buf{GPA: dataAt + guestmem.GPA(in), Len: 1,
			Write: true})
}

func (g *guest) complete(out []byte, in uint32) (status byte, data []byte) {
	g.t.Helper()
	_, written := g.ring.Wait()
	data = make([]byte, in+1)
	if err := g.mem.ReadAt(data, guestmem.GPA(bufBase+headerSize+len(out))); err != nil {
		g.t.Fatal(err)
	}
	if data[in] == statusOK && in > 0 && written < in {
		data = data[:written-1]
		return statusOK, data
	}
	return data[in], data[:in]
}

func TestRequests(t *testing.T) {
	base := bytes.Repeat([]byte("base"), 3*1024)
	g := start(t, newDisk(t, 64*cluster, base))
	if s, data := g.request(typeIn, 1, nil, 1024); s != statusOK || !bytes.Equal(data, base[512:512+1024]) {
		t.Fatalf("read: status %d", s)
	}
	payload := bytes.Repeat([]byte{0xa5}, 3*512)
	if s, _ := g.request(typeOut, 7, payload, 0); s != statusOK {
		t.Fatalf("write: status %d", s)
	}
	if s, data := g.request(typeIn, 6, nil, 5*512); s != statusOK || !bytes.Equal(data[512:4*512], payload) ||
		!bytes.Equal(data[:512], base[6*512:7*512]) || !bytes.Equal(data[4*512:], base[10*512:11*512]) {
		t.Fatalf("read back: status %d", s)
	}
	if s, _ := g.request(typeFlush, 0, nil, 0); s != statusOK {
		t.Fatalf("flush: status %d", s)
	}
	if s, data := g.request(typeGetID, 0, nil, 20); s != statusOK || string(bytes.TrimRight(data, "\x00")) != "disk0" {
		t.Fatalf("get id: status %d, %q", s, data)
	}
	segment := make([]byte, 16)
	binary.LittleEndian.PutUint32(segment[8:], 16)
	if s, _ := g.request(typeWriteZeroes, 0, segment, 0); s != statusOK {
		t.Fatalf("write zeroes: status %d", s)
	}
	if _, data := g.request(typeIn, 0, nil, 8192); !bytes.Equal(data, make([]byte, 8192)) {
		t.Fatal("zeroed sectors are not zero")
	}
	if g.irq.Count() == 0 {
		t.Fatal("no interrupt")
	}
}

func TestBadRequestsGetAStatus(t *testing.T) {
	g := start(t, newDisk(t, 4*cluster, nil))
	segment := make([]byte, 16)
	binary.LittleEndian.PutUint64(segment, ^uint64(0))
	binary.LittleEndian.PutUint32(segment[8:], 8)
	flags := make([]byte, 16)
	flags[12] = 2
	cases := []struct {
		kind   uint32
		sector uint64
		out    []byte
		in     uint32
		want   byte
	}{
		{typeIn, 32, nil, 512, statusIOErr},
		{typeIn, 31, nil, 1024, statusIOErr},
		{typeIn, ^uint64(0), nil, 512, statusIOErr},
		{typeIn, 0, nil, 100, statusIOErr},
		{typeOut, 1 << 55, make([]byte, 512), 0, statusIOErr},
		{typeDiscard, 0, segment, 0, statusIOErr},
		{typeDiscard, 0, segment[:15], 0, statusIOErr},
		{typeWriteZeroes, 0, flags, 0, statusUnsupported},
		{77, 0, nil, 0, statusUnsupported},
	}
	for _, c := range cases {
		if s, _ := g.request(c.kind, c.sector, c.out, c.in); s != c.want {
			t.Errorf("type %d sector %d: status %d, want %d", c.kind, c.sector, s, c.want)
		}
	}
	if g.tr.Err() != nil {
		t.Fatal(g.tr.Err())
	}
}

// TestFailedWriteLeavesOldData uses a top that is open for reading only, so that every write fails.
func TestFailedWriteLeavesOldData(t *testing.T) {
	o := newDisk(t, 4*cluster, bytes.Repeat([]byte{7}, 4*cluster))
	g := start(t, o)
	name := o.top.File().Name()
	readOnly, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	l, err := disklayer.Open(readOnly)
	if err != nil {
		t.Fatal(err)
	}
	g.tr.Quiesce()
	o.layers[0], o.top = l, l
	if err := g.tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
	if s, _ := g.request(typeOut, 0, make([]byte, cluster), 0); s != statusIOErr {
		t.Fatalf("write: status %d", s)
	}
	if s, data := g.request(typeIn, 0, nil, cluster); s != statusOK ||
		!bytes.Equal(data, bytes.Repeat([]byte{7}, cluster)) {
		t.Fatalf("read: status %d, first byte %d", s, data[0])
	}
}

// TestRestoreServesLostKicks saves a device with a queued request, loses the notification of that
// request, and restores another device over the same memory.
func TestRestoreServesLostKicks(t *testing.T) {
	o := newDisk(t, 16*cluster, bytes.Repeat([]byte{9}, 16*cluster))
	g := start(t, o)
	if s, _ := g.request(typeIn, 0, nil, 512); s != statusOK {
		t.Fatal(s)
	}
	g.tr.Quiesce()
	g.submit(typeIn, 8, nil, 512)
	var w codec.Writer
	g.tr.Save(&w)

	irq := &virtiotest.IRQ{}
	tr, err := mmio.New(g.mem, New(newDisk(t, 16*cluster, bytes.Repeat([]byte{4}, 16*cluster)), "disk0", func() {}), irq)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	tr.Quiesce()
	if err := tr.Restore(codec.NewReader(w.Bytes())); err != nil {
		t.Fatal(err)
	}
	var again codec.Writer
	tr.Save(&again)
	if !bytes.Equal(w.Bytes(), again.Bytes()) {
		t.Fatal("saving the restored device gives other bytes")
	}
	if err := tr.Unquiesce(); err != nil {
		t.Fatal(err)
	}
	if s, data := g.complete(nil, 512); s != statusOK || data[0] != 4 {
		t.Fatalf("status %d, data %d", s, data[0])
	}
	for n := range w.Bytes() {
		tr.Quiesce()
		if tr.Restore(codec.NewReader(w.Bytes()[:n])) == nil {
			t.Fatalf("%d of %d bytes were accepted", n, len(w.Bytes()))
		}
		if err := tr.Unquiesce(); err != nil {
			t.Fatal(err)
		}
	}
}

// A pause waits for at most one request, and not for all requests that the guest has queued.
func TestRequestsStopForAPause(t *testing.T) {
	g := start(t, newDisk(t, 64*cluster, nil))
	g.tr.Quiesce() // from now on, only the test calls the device
	defer func() {
		if err := g.tr.Unquiesce(); err != nil {
			t.Error(err)
		}
	}()
	const requests = 8
	for range requests {
		g.submit(typeIn, 0, nil, 512)
	}
	q, err := virtq.New(g.mem, virtq.Config{Size: 64, Desc: g.ring.Desc, Driver: g.ring.Avail, Device: g.ring.Used})
	if err != nil {
		t.Fatal(err)
	}
	tr := &virtiotest.Direct{Paused: true}
	d := New(newDisk(t, 64*cluster, nil), "disk0", func() {})
	if err := d.Activate(tr, []*virtq.Queue{q}, 0); err != nil {
		t.Fatal(err)
	}
	more, err := d.Notify()
	if left, _ := q.Pending(); !more || err != nil || left != requests {
		t.Errorf("while a pause waits: more %v, %v, %d of %d requests left", more, err, left, requests)
	}
	tr.Paused = false
	more, err = d.Notify()
	if left, _ := q.Pending(); more || err != nil || left != 0 {
		t.Errorf("afterwards: more %v, %v, %d requests left", more, err, left)
	}
	d.Reset()
}

// The device releases the run lock after a few requests, however large the guest's requests are.
func TestBytesInOneTurnAreBounded(t *testing.T) {
	const large = 1 << 20
	mem, err := guestmem.New(8 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	ring := virtiotest.NewRing(t, mem, ringBase, 64, func() {})
	if err := mem.WriteAt(make([]byte, headerSize), bufBase); err != nil { // header of a request that reads sector 0
		t.Fatal(err)
	}
	const requests = 20
	for range requests {
		ring.Add(virtiotest.Buf{GPA: bufBase, Len: headerSize}, virtiotest.Buf{GPA: 1 << 20, Len: large, Write: true},
			virtiotest.Buf{GPA: bufBase + headerSize, Len: 1, Write: true})
	}
	q, err := virtq.New(mem, virtq.Config{Size: 64, Desc: ring.Desc, Driver: ring.Avail, Device: ring.Used})
	if err != nil {
		t.Fatal(err)
	}
	d := New(newDisk(t, 2*large, nil), "disk0", func() {})
	if err := d.Activate(&virtiotest.Direct{}, []*virtq.Queue{q}, 0); err != nil {
		t.Fatal(err)
	}
	turns := 0
	for more := true; more; turns++ {
		before, _ := q.Pending()
		if more, err = d.Notify(); err != nil {
			t.Fatal(err)
		}
		if left, _ := q.Pending(); (before-left)*large > maxHold+maxRequest {
			t.Errorf("%d requests of %d bytes in one turn", before-left, large)
		}
	}
	if turns < requests*large/(maxHold+maxRequest) {
		t.Errorf("%d requests took %d turns", requests, turns)
	}
	d.Reset()
}
