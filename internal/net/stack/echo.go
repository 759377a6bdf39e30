package stack

import (
	"encoding/binary"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/forkd/forkd/internal/net/inspect"
	"github.com/forkd/forkd/internal/net/policy"
)

// takeEcho forwards an echo request (ping). If the policy or the host does not permit the request,
// takeEcho sends the guest the ICMP message "destination unreachable".
func (s *Stack) takeEcho(packet inspect.Packet) {
	to := netip.AddrPortFrom(packet.To, 0)
	select {
	case s.echoes <- struct{}{}:
	default:
		s.counters.Dropped.Add(1)
		return
	}
	f, refusal := s.begin(policy.ICMP, to)
	if f == nil {
		<-s.echoes
		s.refused(record{protocol: "icmp", address: to}, refusal)
		return
	}
	request := append([]byte(nil), packet.IP...)
	s.tasks.Go(func() {
		defer func() { <-s.echoes }()
		defer s.end(f)
		if s.decide(f, nil) != policy.Pass {
			s.link.writeMessage(unreachable(request, header.ICMPv4AdminProhibited))
			return
		}
		if err := s.echo(f, request); err != nil {
			f.fail(err)
			s.link.writeMessage(unreachable(request, header.ICMPv4HostUnreachable))
		}
	})
}

// echo sends a request through a ping socket (IPPROTO_ICMP of type SOCK_DGRAM, see icmp(7)) and
// passes the answer to the guest. net.ipv4.ping_group_range must permit such sockets. A missing
// answer is no error.
func (s *Stack) echo(f *flow, request []byte) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMP)
	if err != nil {
		return os.NewSyscallError("ping socket", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: f.To.Addr().As4()}); err != nil {
		_ = unix.Close(fd)
		return os.NewSyscallError("ping", err)
	}
	socket := os.NewFile(uintptr(fd), "ping socket")
	defer socket.Close()
	message := request[header.IPv4MinimumSize:]
	if _, err := socket.Write(message); err != nil {
		return err
	}
	f.up.Add(uint64(len(message)))
	_ = socket.SetReadDeadline(time.Now().Add(echoTime))
	answer := make([]byte, len(request))
	n, err := socket.Read(answer)
	if err != nil || n < header.ICMPv4MinimumSize || answer[0] != byte(header.ICMPv4EchoReply) {
		return nil
	}
	f.down.Add(uint64(n))
	copy(answer[4:6], message[4:6]) // restore the identifier, which the socket has replaced
	s.link.writeMessage(icmpMessage(f.To.Addr(), answer[:n]))
	return nil
}

// unreachable returns the gateway's answer that the destination of a packet is unreachable (RFC
// 792, RFC 1812 §5.2.7.1).
func unreachable(packet []byte, code header.ICMPv4Code) []byte {
	quoted := packet[:min(len(packet), header.IPv4MinimumSize+header.ICMPv4MinimumSize)]
	message := append([]byte{byte(header.ICMPv4DstUnreachable), byte(code), 0, 0, 0, 0, 0, 0}, quoted...)
	return icmpMessage(gatewayDNS.Addr(), message)
}

// icmpMessage sets the checksum of an ICMP message, and puts it into a packet from the given
// address to the guest. It returns the message that carries this packet over the frame socket.
func icmpMessage(from netip.Addr, message []byte) []byte {
	packet := make([]byte, header.IPv4MinimumSize, header.IPv4MinimumSize+len(message))
	h := header.IPv4(packet)
	h.Encode(&header.IPv4Fields{TotalLength: uint16(cap(packet)), TTL: 64, Protocol: uint8(header.ICMPv4ProtocolNumber),
		SrcAddr: tcpip.AddrFrom4(from.As4()), DstAddr: tcpip.AddrFrom4(guest.As4())})
	h.SetChecksum(^h.CalculateChecksum())
	binary.BigEndian.PutUint16(message[2:4], 0)
	binary.BigEndian.PutUint16(message[2:4], ^checksum.Checksum(message, 0))
	return inspect.IPMessage(append(packet, message...))
}
