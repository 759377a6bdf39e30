// Package guesttest simulates the guest at the other end of a frame socket, for tests. The guest is
// a gVisor stack with the addresses of a VM. Like a Linux guest, it leaves checksums and
// segmentation to the device, and uses ARP.
//
// Tests also use Send for messages that a Linux guest would not send. The package starts no VM, and
// does not depend on forkd-net.
package guesttest

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/frame/frametest"
)

const nic = 1

// Guest is a simulated guest.
type Guest struct {
	t     testing.TB
	file  *os.File
	stack *stack.Stack

	reader     sync.WaitGroup
	validated  atomic.Bool
	dispatcher stack.NetworkDispatcher

	mu       sync.Mutex
	watchers []func(message []byte)
}

// New returns a guest and the other end of its frame socket. The guest is stopped when the test
// ends.
func New(t testing.TB) (*Guest, *os.File) {
	t.Helper()
	mine, theirs := Pair(t)
	return On(t, mine), theirs
}

// Pair returns both ends of a frame socket, for use in this process.
func Pair(t testing.TB) (mine, theirs *os.File) {
	t.Helper()
	mine, theirs, err := frametest.Pair()
	if err != nil {
		t.Fatal(err)
	}
	return polled(t, mine), polled(t, theirs)
}

// polled returns a file for a copy of f's descriptor, and closes f. The new file uses Go's poller,
// like a file for a descriptor that a process has received over a socket.
func polled(t testing.TB, f *os.File) *os.File {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	return os.NewFile(uintptr(fd), f.Name())
}

// On returns a guest whose network device uses the given end of a frame socket. The guest owns the
// file.
func On(t testing.TB, file *os.File) *Guest {
	t.Helper()
	g := &Guest{t: t, file: file}
	g.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	sack := tcpip.TCPSACKEnabled(true)
	addr := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddressWithPrefix{
		Address: address(frame.Guest), PrefixLen: frame.PrefixBits}}
	for _, err := range []tcpip.Error{
		g.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &sack),
		g.stack.CreateNIC(nic, g),
		g.stack.AddProtocolAddress(nic, addr, stack.AddressProperties{}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	g.stack.SetRouteTable([]tcpip.Route{
		{Destination: addr.AddressWithPrefix.Subnet(), NIC: nic},
		{Destination: header.IPv4EmptySubnet, Gateway: address(frame.Gateway), NIC: nic},
	})
	g.reader.Go(g.read)
	t.Cleanup(g.Stop)
	return g
}

func address(s string) tcpip.Address { return tcpip.AddrFrom4(netip.MustParseAddr(s).As4()) }

func full(to netip.AddrPort) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFrom4(to.Addr().As4()), Port: to.Port()}
}

// DialTCP connects to an address as a program in the guest does.
func (g *Guest) DialTCP(ctx context.Context, to netip.AddrPort) (*gonet.TCPConn, error) {
	return gonet.DialContextTCP(ctx, g.stack, full(to), ipv4.ProtocolNumber)
}

// DialUDP returns a socket that is connected to an address.
func (g *Guest) DialUDP(to netip.AddrPort) (*gonet.UDPConn, error) {
	remote := full(to)
	return gonet.DialUDP(g.stack, nil, &remote, ipv4.ProtocolNumber)
}

// Ping sends an echo request. It returns the type and code of the first ICMP message that arrives.
func (g *Guest) Ping(ctx context.Context, to netip.Addr) (kind, code byte, err error) {
	answers := make(chan [2]byte, 1)
	g.Watch(func(m []byte) {
		ip := header.IPv4(m[frame.HeaderBytes+header.EthernetMinimumSize:])
		if len(ip) > header.IPv4MinimumSize+1 && ip.TransportProtocol() == header.ICMPv4ProtocolNumber {
			p := ip.Payload()
			select {
			case answers <- [2]byte{p[0], p[1]}:
			default:
			}
		}
	})
	message := header.ICMPv4([]byte{byte(header.ICMPv4Echo), 0, 0, 0, 0, 1, 0, 1, 'f', 'o', 'r', 'k'})
	message.SetChecksum(header.ICMPv4Checksum(message, 0))
	g.Send(Frame(IPv4(frame.Guest, to.String(), uint8(header.ICMPv4ProtocolNumber), message)))
	select {
	case a := <-answers:
		return a[0], a[1], nil
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
}

// Watch calls f with every arriving message, before the guest sees it.
func (g *Guest) Watch(f func(message []byte)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.watchers = append(g.watchers, f)
}

// Die closes the socket as a killed VMM does.
func (g *Guest) Die() { _ = g.file.Close() }

// Stop stops the guest and frees its stack. It may be called more than once.
func (g *Guest) Stop() {
	g.Die()
	g.reader.Wait()
	g.stack.Destroy()
}

// Send writes one message, including the virtio header. It waits while the socket has no room.
func (g *Guest) Send(message []byte) {
	if _, err := g.file.Write(message); err != nil {
		g.t.Logf("guest: %v", err)
	}
}

// Frame returns the message that carries an IPv4 packet from the guest to the gateway.
func Frame(packet []byte) []byte {
	m := make([]byte, frame.HeaderBytes, frame.HeaderBytes+header.EthernetMinimumSize+len(packet))
	m = append(m, frame.GatewayMAC[:]...)
	m = append(m, frame.GuestMAC[:]...)
	m = binary.BigEndian.AppendUint16(m, uint16(header.IPv4ProtocolNumber))
	return append(m, packet...)
}

// IPv4 returns a packet with the right checksum in its IP header.
func IPv4(from, to string, protocol uint8, payload []byte) []byte {
	p := make([]byte, header.IPv4MinimumSize, header.IPv4MinimumSize+len(payload))
	h := header.IPv4(p)
	h.Encode(&header.IPv4Fields{TotalLength: uint16(cap(p)), TTL: 64, Protocol: protocol, SrcAddr: address(from),
		DstAddr: address(to)})
	h.SetChecksum(^h.CalculateChecksum())
	return append(p, payload...)
}

// UDP returns a packet without a checksum, which is optional for UDP (RFC 768).
func UDP(from, to string, fromPort, toPort uint16, payload []byte) []byte {
	p := make(header.UDP, header.UDPMinimumSize, header.UDPMinimumSize+len(payload))
	p.Encode(&header.UDPFields{SrcPort: fromPort, DstPort: toPort, Length: uint16(cap(p))})
	return IPv4(from, to, uint8(header.UDPProtocolNumber), append(p, payload...))
}

// SYN returns a TCP segment that opens a connection.
func SYN(from, to string, fromPort, toPort uint16) []byte {
	p := make(header.TCP, header.TCPMinimumSize)
	p.Encode(&header.TCPFields{SrcPort: fromPort, DstPort: toPort, SeqNum: uint32(fromPort),
		DataOffset: header.TCPMinimumSize,
		Flags:      header.TCPFlagSyn, WindowSize: 65535})
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, address(from), address(to), header.TCPMinimumSize)
	p.SetChecksum(^p.CalculateChecksum(sum))
	return IPv4(from, to, uint8(header.TCPProtocolNumber), p)
}

func (g *Guest) read() {
	buf := make([]byte, frame.MaxMessage+1)
	for {
		n, err := g.file.Read(buf)
		if err != nil || n == 0 {
			return
		}
		if err := g.check(buf[:n]); err != nil {
			g.t.Errorf("guest: %v", err)
			continue
		}
		g.mu.Lock()
		watchers := g.watchers
		g.mu.Unlock()
		for _, f := range watchers {
			f(buf[:n])
		}
		g.validated.Store(buf[0] != 0)
		p := buf[frame.HeaderBytes:n]
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(p)})
		pkt.LinkHeader().Consume(header.EthernetMinimumSize)
		g.dispatcher.DeliverNetworkPacket(header.Ethernet(p).Type(), pkt)
		pkt.DecRef()
	}
}

// check checks a message against the rules of package frame.
func (g *Guest) check(m []byte) error {
	if len(m) < frame.HeaderBytes+header.EthernetMinimumSize || len(m) > frame.MaxMessage {
		return fmt.Errorf("a message of %d bytes", len(m))
	}
	ether := m[frame.HeaderBytes:]
	if [6]byte(ether) != frame.GuestMAC || [6]byte(ether[6:]) != frame.GatewayMAC {
		return fmt.Errorf("a frame from %x to %x", ether[6:12], ether[:6])
	}
	if segmented := m[1] != 0; !segmented && len(ether) > frame.MTU+header.EthernetMinimumSize {
		return fmt.Errorf("a frame of %d bytes that nobody segments", len(ether))
	}
	if size := binary.LittleEndian.Uint16(m[4:]); m[1] != 0 && (m[0] != 1 || size == 0 || int(size) > frame.MTU-40) {
		return fmt.Errorf("a frame in segments of %d bytes, flags %d", size, m[0])
	}
	return nil
}

// WritePackets writes packets of the guest's stack to the frame socket.
func (g *Guest) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	for _, pkt := range pkts.AsSlice() {
		m := make([]byte, frame.HeaderBytes, frame.HeaderBytes+pkt.Size())
		if gso := pkt.GSOOptions; gso.NeedsCsum {
			m[0] = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
			binary.LittleEndian.PutUint16(m[6:], header.EthernetMinimumSize+gso.L3HdrLen)
			binary.LittleEndian.PutUint16(m[8:], gso.CsumOffset)
			if pkt.Data().Size() > int(gso.MSS) {
				m[1] = 1 // VIRTIO_NET_HDR_GSO_TCPV4
				binary.LittleEndian.PutUint16(m[2:], uint16(pkt.HeaderSize()))
				binary.LittleEndian.PutUint16(m[4:], gso.MSS)
			}
		}
		for _, p := range pkt.AsSlices() {
			m = append(m, p...)
		}
		_, _ = g.file.Write(m) // a failed write appears as a missing packet in the test
	}
	return pkts.Len(), nil
}

// The following methods complete stack.LinkEndpoint.

func (g *Guest) MTU() uint32                             { return frame.MTU }
func (g *Guest) SetMTU(uint32)                           {}
func (g *Guest) MaxHeaderLength() uint16                 { return header.EthernetMinimumSize }
func (g *Guest) LinkAddress() tcpip.LinkAddress          { return tcpip.LinkAddress(frame.GuestMAC[:]) }
func (g *Guest) SetLinkAddress(tcpip.LinkAddress)        {}
func (g *Guest) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }
func (g *Guest) ParseHeader(*stack.PacketBuffer) bool    { return true }
func (g *Guest) Wait()                                   {}
func (g *Guest) Close()                                  {}
func (g *Guest) SetOnCloseAction(func())                 {}
func (g *Guest) IsAttached() bool                        { return g.dispatcher != nil }
func (g *Guest) Attach(d stack.NetworkDispatcher)        { g.dispatcher = d }
func (g *Guest) GSOMaxSize() uint32                      { return 60 << 10 }
func (g *Guest) SupportedGSO() stack.SupportedGSO        { return stack.HostGSOSupported }

func (g *Guest) AddHeader(pkt *stack.PacketBuffer) {
	header.Ethernet(pkt.LinkHeader().Push(header.EthernetMinimumSize)).Encode(&header.EthernetFields{
		SrcAddr: g.LinkAddress(), DstAddr: pkt.EgressRoute.RemoteLinkAddress, Type: pkt.NetworkProtocolNumber})
}

func (g *Guest) Capabilities() stack.LinkEndpointCapabilities {
	c := stack.LinkEndpointCapabilities(stack.CapabilityResolutionRequired)
	if g.validated.Load() {
		c |= stack.CapabilityRXChecksumOffload
	}
	return c
}
