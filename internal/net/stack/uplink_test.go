package stack

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/forkd/forkd/internal/net/guesttest"
	"github.com/forkd/forkd/internal/net/policy"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// fullSocket returns a datagram socket that accepts no packet, because its peer does not read. It
// behaves like a UDP socket when the host's network is blocked.
func fullSocket(t testing.TB) *net.UnixConn {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fds[1]) })
	file := os.NewFile(uintptr(fds[0]), "full socket")
	defer file.Close()
	for err == nil {
		_, err = unix.Write(fds[0], []byte{0})
	}
	c, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.UnixConn)
}

// TestAttackFullSocket checks that a flow whose socket accepts nothing stores no packets, and that
// packets for it do not delay the guest's other packets.
func TestAttackFullSocket(t *testing.T) {
	guest, file := guesttest.New(t)
	s, err := New(NewHost(10), file, &netproto.Attach{ID: "sb-test", Policy: makePolicy(t, "public")}, &Counters{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	to := netip.MustParseAddrPort(web + ":123")
	f, refusal := s.begin(policy.UDP, to)
	if f == nil {
		t.Fatal(refusal)
	}
	defer s.end(f)
	raw, err := fullSocket(t).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	id := ports{LocalPort: to.Port(), LocalAddress: tcpip.AddrFrom4(to.Addr().As4()), RemotePort: 1024,
		RemoteAddress: tcpip.AddrFrom4(netip.MustParseAddr(frame.Guest).As4())}
	s.mu.Lock()
	s.udp[id] = &udpFlow{flow: f, id: id, raw: raw}
	s.mu.Unlock()

	before := heap()
	for range 30_000 {
		guest.Send(guesttest.Frame(guesttest.UDP(frame.Guest, web, 1024, to.Port(), []byte{0})))
	}
	if kind, _, err := guest.Ping(t.Context(), netip.MustParseAddr(frame.Gateway)); kind != byte(header.ICMPv4EchoReply) ||
		err != nil {
		t.Fatalf("the gateway does not answer behind them: type %d, %v", kind, err)
	}
	if grown := int64(heap()) - int64(before); grown > 4<<20 {
		t.Errorf("the flow holds %d KiB", grown>>10)
	}
	if n := f.up.Load(); n != 0 {
		t.Errorf("%d bytes got through a full socket", n)
	}
}

// TestAttackSmallPackets checks that packets take a bounded amount of memory while they wait for a
// guest that does not read. Small packets take more memory than their length.
func TestAttackSmallPackets(t *testing.T) {
	silent, file := guesttest.Pair(t) // a guest that never reads
	defer silent.Close()
	s, err := New(NewHost(10), file, &netproto.Attach{ID: "sb-test", Policy: makePolicy(t, "public")}, &Counters{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	id := ports{LocalPort: 123, LocalAddress: tcpip.AddrFrom4(netip.MustParseAddr(web).As4()), RemotePort: 1024,
		RemoteAddress: tcpip.AddrFrom4(netip.MustParseAddr(frame.Guest).As4())}
	before := heap()
	for range 100_000 {
		s.sendUDP(id, []byte{0})
	}
	if s.counters.Dropped.Load() == 0 {
		t.Error("all packets wait")
	}
	if grown := int64(heap()) - int64(before); grown > 4*queueBytes {
		t.Errorf("%d KiB wait for the guest", grown>>10)
	}
}
