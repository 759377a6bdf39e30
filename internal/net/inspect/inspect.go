// Package inspect checks messages from a frame socket before a network stack sees them. A guest
// writes these bytes, so they are hostile. Only IPv4 packets from the guest's own address reach the
// stack. Of ARP messages, only requests for the gateway's address are answered.
//
// It looks at one message at a time and keeps no state. Package policy decides where a guest may
// connect to, and package stack reassembles fragments.
package inspect

import (
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"github.com/forkd/forkd/internal/proto/frame"
)

// Class is the class of a message.
type Class uint8

// Classes of messages.
const (
	Dropped Class = iota
	ARP           // a request for the gateway's address; answer it with ARPReply
	IP            // a packet for the stack
	Echo          // an ICMP echo request to a host other than the gateway
)

// Reason is the reason why a message is dropped.
type Reason string

// Reasons for dropping messages. A working driver never sends a malformed message.
const (
	Malformed Reason = "malformed"
	Spoofed   Reason = "spoofed-source" // the source is not the guest's own hardware and IP address
	Ethertype Reason = "ethertype"      // neither IPv4 nor ARP; a Linux guest sends a little IPv6 by itself
	NotToUs   Reason = "not-to-gateway" // a frame for another station, or an ARP request for another address
	Options   Reason = "ip-options"     // source routes and other unneeded options
	Checksum  Reason = "bad-checksum"
	Fragment  Reason = "fragment" // a fragment of a TCP or ICMP packet; these packets always fit into the MTU
	Protocol  Reason = "protocol" // not TCP, UDP or an ICMP echo request
)

// Packet is the content of a message. IP aliases the message.
type Packet struct {
	Class Class
	IP    []byte     // the whole packet; for ARP: the bytes after the Ethernet header
	To    netip.Addr // destination of an IP packet
	// Partial reports that the guest left the checksum of TCP or UDP to the device. The packet then
	// has no checksum to verify.
	Partial bool
	Opens   bool // whether the packet is the first segment of a TCP connection
	Piece   bool // whether the packet is a fragment of a larger packet
}

// Lengths and numbers of the headers: IEEE 802.3, RFC 791, RFC 792, RFC 826, RFC 9293 and RFC 768.
const (
	etherBytes = 14
	ipBytes    = 20
	arpBytes   = 28
	icmpBytes  = 8
	tcpBytes   = 20
	udpBytes   = 8

	typeIPv4 = 0x0800
	typeARP  = 0x0806

	protoICMP = 1
	protoTCP  = 6
	protoUDP  = 17

	flagMore   = 0x2000 // more fragments follow
	maskOffset = 0x1fff
)

// Fields of struct virtio_net_hdr_v1 (virtio 1.2 §5.1.6).
const (
	needsCsum = 1    // flags: VIRTIO_NET_HDR_F_NEEDS_CSUM
	gsoNone   = 0    // gso_type
	gsoTCPv4  = 1    // gso_type: VIRTIO_NET_HDR_GSO_TCPV4
	gsoECN    = 0x80 // gso_type: VIRTIO_NET_HDR_GSO_ECN
)

var (
	guest   = netip.MustParseAddr(frame.Guest)
	gateway = netip.MustParseAddr(frame.Gateway)
)

// Message checks one message of a frame socket. It returns a reason only for a Packet of the class
// Dropped.
func Message(p []byte) (Packet, Reason) {
	if len(p) < frame.HeaderBytes+etherBytes || len(p) > frame.MaxMessage {
		return Packet{}, Malformed
	}
	h, ether := p[:frame.HeaderBytes], p[frame.HeaderBytes:]
	if [6]byte(ether[6:12]) != frame.GuestMAC {
		return Packet{}, Spoofed
	}
	switch binary.BigEndian.Uint16(ether[12:14]) {
	case typeARP:
		return arp(ether)
	case typeIPv4:
		if [6]byte(ether[0:6]) != frame.GatewayMAC {
			return Packet{}, NotToUs
		}
		return ip(h, ether)
	}
	return Packet{}, Ethertype
}

// Wakes reports whether a message needs a network stack. The parameter p has the first WakeBytes
// bytes of the message. A Linux guest that does not use its network still sends a little IPv6, for
// which no stack is needed.
func Wakes(p []byte) bool {
	if len(p) < WakeBytes {
		return false
	}
	ethertype := binary.BigEndian.Uint16(p[WakeBytes-2:])
	return ethertype == typeIPv4 || ethertype == typeARP
}

// WakeBytes is the length of the headers that precede the packet in a message.
const WakeBytes = frame.HeaderBytes + etherBytes

func arp(ether []byte) (Packet, Reason) {
	p := ether[etherBytes:]
	// Expect hardware Ethernet, protocol IPv4, the lengths of their addresses, and a request.
	if len(p) < arpBytes || [8]byte(p) != [8]byte{0, 1, 8, 0, 6, 4, 0, 1} {
		return Packet{}, Malformed
	}
	sender, target := netip.AddrFrom4([4]byte(p[14:18])), netip.AddrFrom4([4]byte(p[24:28]))
	if [6]byte(p[8:14]) != frame.GuestMAC || sender != guest && !sender.IsUnspecified() {
		return Packet{}, Spoofed
	}
	if target != gateway {
		return Packet{}, NotToUs
	}
	return Packet{Class: ARP, IP: p[:arpBytes]}, ""
}

// ARPReply returns the message that answers a request. Message must have accepted this request.
func ARPReply(request []byte) []byte {
	m := Prepend(nil, arpBytes, typeARP)
	m = append(m, 0, 1, 8, 0, 6, 4, 0, 2)
	m = append(m, frame.GatewayMAC[:]...)
	m = append(m, gateway.AsSlice()...)
	return append(m, request[8:18]...)
}

// IPMessage returns the message that carries an IPv4 packet to the guest.
func IPMessage(packet []byte) []byte {
	return append(Prepend(nil, len(packet), typeIPv4), packet...)
}

// Prepend appends to m the virtio and Ethernet headers that precede a payload of n bytes. The
// virtio header requests no offloading.
func Prepend(m []byte, n int, ethertype uint16) []byte {
	if m == nil {
		m = make([]byte, 0, frame.HeaderBytes+etherBytes+n)
	}
	m = append(m, make([]byte, frame.HeaderBytes)...)
	m = append(m, frame.GuestMAC[:]...)
	m = append(m, frame.GatewayMAC[:]...)
	return binary.BigEndian.AppendUint16(m, ethertype)
}

func ip(h, ether []byte) (Packet, Reason) {
	p := ether[etherBytes:]
	if len(p) < ipBytes || p[0]>>4 != 4 || p[0]&15 < 5 {
		return Packet{}, Malformed
	}
	if p[0]&15 != 5 {
		return Packet{}, Options
	}
	total := int(binary.BigEndian.Uint16(p[2:4]))
	if total < ipBytes || total > len(p) {
		return Packet{}, Malformed
	}
	p = p[:total]
	if checksum.Checksum(p[:ipBytes], 0) != 0xffff {
		return Packet{}, Checksum
	}
	if netip.AddrFrom4([4]byte(p[12:16])) != guest {
		return Packet{}, Spoofed
	}
	fragment := binary.BigEndian.Uint16(p[6:8])&(flagMore|maskOffset) != 0
	k := Packet{Class: IP, IP: p, To: netip.AddrFrom4([4]byte(p[16:20])), Piece: fragment}
	var reason Reason
	switch p[9] {
	case protoTCP:
		reason = k.tcp(fragment)
	case protoUDP:
		if !fragment && total < ipBytes+udpBytes {
			reason = Malformed
		}
	case protoICMP:
		reason = k.icmp(fragment)
	default:
		reason = Protocol
	}
	if reason == "" {
		reason = k.offload(h, fragment)
	}
	if reason != "" {
		return Packet{}, reason
	}
	return k, ""
}

func (k *Packet) tcp(fragment bool) Reason {
	switch {
	case fragment:
		return Fragment
	case len(k.IP) < ipBytes+tcpBytes:
		return Malformed
	}
	const syn, ack = 2, 16
	k.Opens = k.IP[ipBytes+13]&(syn|ack) == syn
	return ""
}

// icmp refuses all ICMP messages except echo requests. The network stack would also answer other
// requests.
func (k *Packet) icmp(fragment bool) Reason {
	const echo = 8
	switch {
	case k.To == gateway:
		return ""
	case fragment:
		return Fragment
	case len(k.IP) < ipBytes+icmpBytes:
		return Malformed
	case k.IP[ipBytes] != echo || k.IP[ipBytes+1] != 0:
		return Protocol
	case checksum.Checksum(k.IP[ipBytes:], 0) != 0xffff:
		return Checksum
	}
	k.Class = Echo
	return ""
}

// offload checks that the virtio header requests only offloads that are valid for the packet.
func (k *Packet) offload(h []byte, fragment bool) Reason {
	flags, gso := h[0], h[1]&^gsoECN
	start, offset := binary.LittleEndian.Uint16(h[6:8]), binary.LittleEndian.Uint16(h[8:10])
	k.Partial = flags&needsCsum != 0
	if k.Partial {
		want := uint16(0) // offset of the checksum in the protocol's header
		switch k.IP[9] {
		case protoTCP:
			want = 16
		case protoUDP:
			want = 6
		}
		if want == 0 || fragment || start != etherBytes+ipBytes || offset != want {
			return Malformed
		}
	}
	switch {
	case gso == gsoNone && h[1] == 0:
		if len(k.IP) > frame.MTU {
			return Malformed
		}
	case gso != gsoTCPv4 || k.IP[9] != protoTCP || !k.Partial:
		return Malformed
	}
	return ""
}
