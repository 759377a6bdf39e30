package machine_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/frame/frametest"
	"github.com/forkd/forkd/internal/proto/vm"
	vnet "github.com/forkd/forkd/internal/vmm/virtio/net"
)

const (
	guestNIC = "eth0"

	// etherType is reserved for experiments (IEEE Std 802), so that no kernel sends or answers such
	// frames.
	etherType = 0x88b5
)

// netUp brings the interface up and sends every received frame back.
func (g *guest) netUp() error {
	ctl, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(ctl)
	ifr, err := unix.NewIfreq(guestNIC)
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(ctl, unix.SIOCSIFFLAGS, ifr); err != nil {
		return fmt.Errorf("set %s up: %w", guestNIC, err)
	}
	if err := unix.IoctlIfreq(ctl, unix.SIOCGIFINDEX, ifr); err != nil {
		return err
	}
	proto := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, etherType))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(proto))
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: int(ifr.Uint32())})
	}
	if err != nil {
		return fmt.Errorf("packet socket: %w", err)
	}
	g.packets = fd
	go g.echoFrames()
	return nil
}

func (g *guest) echoFrames() {
	p := make([]byte, frame.MTU+14)
	for {
		n, err := unix.Read(g.packets, p)
		if err != nil {
			g.fail(fmt.Sprintf("read a frame: %v", err))
			return
		}
		if _, err := unix.Write(g.packets, etherFrame(frame.GatewayMAC, frame.GuestMAC, p[14:n])); err != nil {
			g.fail(fmt.Sprintf("send a frame: %v", err))
			return
		}
	}
}

// sendFrames sends frames whose content depends on seed.
func (g *guest) sendFrames(seed, count uint64) error {
	for i := range count {
		p := etherFrame(frame.GatewayMAC, frame.GuestMAC, pattern(seed+i, frame.MTU))
		if _, err := unix.Write(g.packets, p); err != nil {
			return err
		}
	}
	return nil
}

func etherFrame(to, from [6]byte, payload []byte) []byte {
	p := append(append([]byte(nil), to[:]...), from[:]...)
	return append(binary.BigEndian.AppendUint16(p, etherType), payload...)
}

// wire is the host's end of a frame socket.
type wire struct {
	t *testing.T
	*os.File
}

// newWire makes a frame socket, and returns the test's end and the machine's end.
func newWire(t *testing.T) (*wire, *vnet.Peer) {
	t.Helper()
	theirs, ours, err := frametest.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	defer ours.Close()
	peer, err := unix.FcntlInt(theirs.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(ours.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	// A read deadline needs the runtime's poller. os.NewFile adds this descriptor to the poller;
	// the files that Pair returned are not in it.
	polled := os.NewFile(uintptr(fd), "frame socket")
	t.Cleanup(func() { polled.Close() })
	_ = polled.SetReadDeadline(time.Now().Add(10 * patience)) // one deadline for the whole test
	return &wire{t, polled}, vnet.NewPeer(peer)
}

// next returns the payload of the next frame of the test. It skips frames that the guest's kernel
// sends.
func (w *wire) next() []byte {
	w.t.Helper()
	p := make([]byte, frame.MaxMessage)
	for {
		n, err := w.Read(p)
		if err != nil {
			w.t.Fatalf("read a frame of the guest: %v", err)
		}
		if f := p[frame.HeaderBytes:n]; binary.BigEndian.Uint16(f[12:]) == etherType {
			return bytes.Clone(f[14:])
		}
	}
}

func (w *wire) want(payload []byte) {
	w.t.Helper()
	if got := w.next(); !bytes.Equal(got, payload) {
		w.t.Fatalf("a frame of %d bytes with checksum %s, want %s", len(got), checksum(got), checksum(payload))
	}
}

// echo sends a frame to the guest and checks that it comes back.
func (w *wire) echo(payload []byte) {
	w.t.Helper()
	p := append(make([]byte, frame.HeaderBytes), etherFrame(frame.GuestMAC, frame.GatewayMAC, payload)...)
	if _, err := w.Write(p); err != nil {
		w.t.Fatal(err)
	}
	w.want(payload)
}

// check sends frames between w and the guest of v, in both directions.
func (w *wire) check(v *testVM, seed int) {
	w.t.Helper()
	const count = 40
	v.call(w.t, "frames %d %d", seed, count)
	for i := range uint64(count) {
		w.want(pattern(uint64(seed)+i, frame.MTU))
	}
	for _, n := range []int{46, 1000, frame.MTU} {
		w.echo(pattern(uint64(seed), n))
	}
}

// wantEnd waits until the machine has closed its end of the frame socket. It skips frames that the
// guest's kernel has sent before.
func (w *wire) wantEnd(what string) {
	w.t.Helper()
	p := make([]byte, frame.MaxMessage)
	for {
		n, err := w.Read(p)
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
			return
		}
		if err != nil || binary.BigEndian.Uint16(p[frame.HeaderBytes+12:]) == etherType {
			w.t.Errorf("%s: a message of %d bytes, %v, want the end", what, n, err)
			return
		}
	}
}

// Each copy of a machine has its own network, and the guest's interface continues to work on that
// network. The test checks children, a source after a branch, a machine after a rollback, and a
// machine whose peer was replaced.
func TestNetworkGoesOnInEveryCopy(t *testing.T) {
	h := newHost(t, 2)
	parent := h.boot(t)
	atBoot, peer := newWire(t)
	if err := parent.SetNet(peer); err != nil {
		t.Fatal(err)
	}
	parent.call(t, "net")
	atBoot.check(parent, 1)
	base := parent.save(t)

	ofSource, peer := newWire(t)
	source := h.newVM(t)
	source.restoreWith(t, base, peer)
	ofSource.check(source, 2)
	branched := source.branch(t, base, vm.BranchLive)
	ofSource.check(source, 3)

	ofChild, peer := newWire(t)
	child := h.newVM(t)
	child.restoreWith(t, branched, peer)
	ofChild.check(child, 4)
	ofSource.check(source, 5)
	if err := child.Pause(); err != nil { // a running child would take CPU time from the source
		t.Fatal(err)
	}

	replaced, peer := newWire(t)
	if err := source.SetNet(peer); err != nil {
		t.Fatal(err)
	}
	ofSource.wantEnd("a peer that was replaced")
	replaced.check(source, 6)
	if err := source.SetNet(nil); err != nil {
		t.Fatal(err)
	}
	replaced.wantEnd("a peer that was taken away")
	source.call(t, "frames 7 1000") // more frames than fit in the queue
	rolledBack, peer := newWire(t)
	source.restoreWith(t, branched, peer)
	rolledBack.check(source, 8)
	source.restore(t, base)
	rolledBack.wantEnd("a peer before a rollback")
	source.call(t, "frames 9 1000")
	source.ticks(t) // fails if the guest has found a wrong result
}
