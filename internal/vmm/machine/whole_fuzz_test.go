package machine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmm/bareguest"
	"github.com/forkd/forkd/internal/vmm/boot"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/virtio"
	vnet "github.com/forkd/forkd/internal/vmm/virtio/net"
)

// FuzzMachine runs a machine with all devices but without KVM, and simulates the machine's vCPU and
// the host. The fuzzer chooses the guest's accesses to memory, registers and ports. Between these
// accesses, it chooses actions of the host: pauses, restores, client connections, frames, and
// changes of the network peer. Nothing may panic or hang. A saved state that is restored and saved
// again must be the same. No descriptor may stay open.
func FuzzMachine(f *testing.F) {
	pages := bareguest.FreePages()
	var around []byte // actions of the host between two accesses of the guest
	for k := range hostKinds {
		around = append(around, bareguest.Program{{Kind: bareguest.Kinds + k, Value: 1000}}.Encode()...)
	}
	connected := bareguest.Program{{Kind: bareguest.Kinds + hostPeer, Value: 1},
		{Kind: bareguest.Kinds + hostFrame, Value: 100},
		{Kind: bareguest.Kinds + hostDial, Addr: 1024}}.Encode()
	for _, target := range bareguest.Targets() {
		seeds := bareguest.Seeds(target, pages)
		for _, p := range seeds {
			f.Add(slices.Concat(connected, p.Encode(), connected))
		}
		right := seeds[0].Encode()
		f.Add(slices.Concat(right, around, right))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		const most = 1000 // longer programs find nothing more
		program := bareguest.Decode(input)
		before := descriptors(t)
		w := newFuzzed(t, newDiskOf(t, fuzzDisk, false, 0), Disk{Volume: true})
		for _, op := range program[:min(len(program), most)] {
			if w.do(op) != nil {
				break // the guest has ended the machine
			}
		}
		w.pause()
		w.checkSaved()
		w.close()
		if after := descriptors(t); after > before { // the garbage collector may close files of earlier tests
			t.Fatalf("%d descriptors are open, %d were", after, before)
		}
	})
}

// Kinds of actions of the host.
const (
	hostPause   bareguest.Kind = iota // pause and resume
	hostRestore                       // save and restore
	hostDial                          // connect to the guest's port Addr
	hostSend                          // send Value bytes on the newest stream
	hostReceive                       // receive up to Value bytes on the newest stream
	hostHangUp                        // close the newest stream
	hostFrame                         // send a frame of Value bytes to the guest
	hostPeer                          // give the network another peer, or none if Value is 0
	hostKinds
)

// fuzzed is a machine without KVM, and the host's ends of its sockets.
type fuzzed struct {
	*Machine
	t       *testing.T
	address unix.Sockaddr // address of the vsock listener
	peer    int           // the host's end of the frame socket; -1 if none

	mu      sync.Mutex
	streams []int // open streams between host and guest
}

const (
	fuzzMemory = 16 << 20 // size of guest memory, in bytes
	fuzzDisk   = 1 << 20
)

// noKVM replaces KVM's ioeventfds and interrupt controllers. Without ioeventfds, the guest notifies
// devices by writes to registers. Interrupts are ignored.
type noKVM struct{}

func (noKVM) Line(uint32) virtio.Interrupt         { return unheard{} }
func (noKVM) AddIOEventFD(int, uint64, bool) error { return nil }

type unheard struct{}

func (unheard) Raise() error { return nil }

type discard struct{}

func (discard) WriteByte(byte) error { return nil }

func newFuzzed(t *testing.T, disks ...Disk) *fuzzed {
	w := &fuzzed{t: t, peer: -1}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	w.must(err)
	w.must(unix.Bind(fd, &unix.SockaddrUnix{})) // the kernel chooses an abstract name
	w.must(unix.Listen(fd, 16))
	w.address, err = unix.Getsockname(fd)
	w.must(err)
	mem, err := guestmem.New(fuzzMemory)
	w.must(err)
	w.Machine = &Machine{mem: mem, wires: noKVM{}, slots: make([]*slot, boot.MaxVirtioDevices),
		cfg: Config{Shape: vm.Shape{MemoryBytes: fuzzMemory, VCPUs: 1}, Console: discard{},
			VsockListener: os.NewFile(uintptr(fd), "listener"), GuestConn: w.guestConn}}
	w.must(w.addFixedDevices())
	w.must(w.setDisks(disks))
	w.must(w.unquiesce())
	return w
}

func memfd(t *testing.T) *os.File {
	fd, err := unix.MemfdCreate("disk", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "disk")
}

func (w *fuzzed) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *fuzzed) guestConn(uint32) (int, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	w.must(err)
	w.keep(fds[0])
	return fds[1], nil
}

func (w *fuzzed) keep(stream int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.streams = append(w.streams, stream)
}

// do executes op, which is an access of the guest or an action of the host. An error means that the
// guest has ended the machine.
func (w *fuzzed) do(op bareguest.Op) error {
	if op.Kind >= bareguest.Kinds {
		w.host(op)
		return nil
	}
	var value [8]byte
	binary.LittleEndian.PutUint64(value[:], op.Value)
	p, gpa := value[:op.Kind.Width()], guestmem.GPA(op.Addr)
	switch op.Kind {
	case bareguest.Store8, bareguest.Store16, bareguest.Store32, bareguest.Store64:
		if w.mem.WriteAt(p, gpa) != nil { // no RAM at this address
			return w.mmio(gpa, p, true)
		}
	case bareguest.Load8, bareguest.Load16, bareguest.Load32, bareguest.Load64:
		return w.mmio(gpa, p, false)
	case bareguest.Out8, bareguest.Out16, bareguest.Out32, bareguest.In8, bareguest.In16, bareguest.In32:
		return w.io(uint16(op.Addr), len(p), p, op.Kind <= bareguest.Out32)
	case bareguest.Spin:
		time.Sleep(50 * time.Microsecond) // time for the devices to process requests
	case bareguest.Outs:
		return w.io(uint16(op.Addr), 1, make([]byte, op.Value%guestmem.PageSize), true)
	}
	return nil
}

// host executes one action of the host.
func (w *fuzzed) host(op bareguest.Op) {
	switch n := int(op.Value % frame.MaxMessage); (op.Kind - bareguest.Kinds) % hostKinds {
	case hostPause:
		w.pause()
		w.must(w.unquiesce())
	case hostRestore:
		w.pause()
		w.checkSaved()
		w.must(w.unquiesce())
	case hostDial:
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		w.must(err)
		if unix.Connect(fd, w.address) == nil { // fails if too many connections wait
			_, err = fmt.Fprintf(fdWriter(fd), "CONNECT %d\n", op.Addr)
			w.must(err)
		}
		w.keep(fd)
	case hostSend:
		if fd := w.youngest(); fd >= 0 {
			_, _ = fdWriter(fd).Write(make([]byte, n)) // an error means that the socket is full or closed
		}
	case hostReceive:
		if fd := w.youngest(); fd >= 0 {
			_, _, _ = unix.Recvfrom(fd, make([]byte, n), unix.MSG_DONTWAIT)
		}
	case hostHangUp:
		if fd := w.youngest(); fd >= 0 {
			w.mu.Lock()
			w.streams = w.streams[:len(w.streams)-1]
			w.mu.Unlock()
			w.must(unix.Close(fd))
		}
	case hostFrame:
		if w.peer >= 0 {
			_ = unix.Sendto(w.peer, make([]byte, n), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
		}
	case hostPeer:
		w.setPeer(op.Value != 0)
	}
}

// fdWriter writes to a socket only the bytes that the socket accepts without blocking.
type fdWriter int

func (fd fdWriter) Write(p []byte) (int, error) {
	return unix.SendmsgN(int(fd), p, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

func (w *fuzzed) youngest() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.streams) == 0 {
		return -1
	}
	return w.streams[len(w.streams)-1]
}

func (w *fuzzed) setPeer(on bool) {
	if w.peer >= 0 {
		w.must(unix.Close(w.peer))
		w.peer = -1
	}
	var peer *vnet.Peer
	if on {
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		w.must(err)
		w.peer, peer = ends[0], vnet.NewPeer(ends[1])
	}
	w.must(w.SetNet(peer))
}

// pause is Machine.pause without vCPUs.
func (w *fuzzed) pause() { w.quiesce() }

// checkSaved saves all devices, restores them, and saves them again. Both saves must be equal.
// Preconditions: the machine is paused.
func (w *fuzzed) checkSaved() {
	w.t.Helper()
	save := func() []byte {
		s := newStateWriter()
		w.saveDevices(s)
		return s.finish()
	}
	first := save()
	r, err := newStateReader(first)
	w.must(err)
	w.must(w.restoreDevices(r))
	w.must(r.r.Done())
	if !bytes.Equal(first, save()) {
		w.t.Fatal("saving what was restored gives other bytes")
	}
}

// close frees all resources. Preconditions: the machine is paused.
func (w *fuzzed) close() {
	w.must(w.closeDevices())
	for _, fd := range w.streams {
		w.must(unix.Close(fd))
	}
	if w.peer >= 0 {
		w.must(unix.Close(w.peer))
	}
	w.must(w.mem.Close())
}

// descriptors returns the number of open descriptors.
func descriptors(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
