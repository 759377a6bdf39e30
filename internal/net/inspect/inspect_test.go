package inspect

import (
	"bytes"
	"encoding/binary"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"

	"github.com/forkd/forkd/internal/proto/frame"
)

// message returns the message for a valid IPv4 packet from the guest.
func message(protocol byte, to [4]byte, payload ...byte) []byte {
	p := make([]byte, ipBytes, ipBytes+len(payload))
	p[0], p[8], p[9] = 0x45, 64, protocol
	binary.BigEndian.PutUint16(p[2:], uint16(ipBytes+len(payload)))
	copy(p[12:], guest.AsSlice())
	copy(p[16:], to[:])
	m := make([]byte, frame.HeaderBytes)
	m = append(m, frame.GatewayMAC[:]...)
	m = append(m, frame.GuestMAC[:]...)
	m = append(m, 8, 0)
	return sum(append(append(m, p...), payload...))
}

const ipAt = frame.HeaderBytes + etherBytes

func sum(m []byte) []byte {
	p := m[ipAt : ipAt+ipBytes]
	p[10], p[11] = 0, 0
	binary.BigEndian.PutUint16(p[10:], ^checksum.Checksum(p, 0))
	return m
}

// change returns m with some bytes replaced, and with a correct checksum in the IP header.
func change(m []byte, at int, to ...byte) []byte {
	copy(m[at:], to)
	return sum(m)
}

func arpRequest(sender, target [4]byte) []byte {
	m := message(0, [4]byte{})[:frame.HeaderBytes+12]
	m = append(m, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
	m = append(m, frame.GuestMAC[:]...)
	m = append(m, sender[:]...)
	m = append(m, make([]byte, 6)...)
	return append(m, target[:]...)
}

var (
	outside = [4]byte{93, 184, 216, 34}
	atGate  = gateway.As4()
	self    = guest.As4()
)

func tcpSegment(flags byte) []byte {
	p := make([]byte, tcpBytes)
	p[12], p[13] = 5<<4, flags
	return p
}

func ping() []byte {
	p := []byte{8, 0, 0, 0, 0, 1, 0, 1}
	binary.BigEndian.PutUint16(p[2:], ^checksum.Checksum(p, 0))
	return p
}

func TestMessage(t *testing.T) {
	tcp := func() []byte { return message(protoTCP, outside, tcpSegment(2)...) }
	udp := func() []byte { return message(protoUDP, outside, make([]byte, 100)...) }
	header := func(m []byte, h ...byte) []byte { copy(m, h); return m }
	long := message(protoTCP, outside, make([]byte, 3000)...)
	for name, c := range map[string]struct {
		message []byte
		class   Class
		reason  Reason
	}{
		"TCP":                         {tcp(), IP, ""},
		"UDP":                         {udp(), IP, ""},
		"echo request":                {message(protoICMP, outside, ping()...), Echo, ""},
		"echo request to the gateway": {message(protoICMP, atGate, ping()...), IP, ""},
		"ARP for the gateway":         {arpRequest(self, atGate), ARP, ""},
		"ARP probe":                   {arpRequest([4]byte{}, atGate), ARP, ""},
		"padding behind the packet":   {append(tcp(), 0, 0, 0, 0), IP, ""},
		"TCP, checksum left to us":    {header(tcp(), 1, 0, 0, 0, 0, 0, 34, 0, 16, 0), IP, ""},
		"UDP, checksum left to us":    {header(udp(), 1, 0, 0, 0, 0, 0, 34, 0, 6, 0), IP, ""},
		"TCP in segments":             {header(bytes.Clone(long), 1, 1, 54, 0, 180, 5, 34, 0, 16, 0), IP, ""},
		"UDP fragment":                {change(udp(), ipAt+6, 0x20, 0), IP, ""},

		"nothing":                            {nil, Dropped, Malformed},
		"a header only":                      {make([]byte, frame.HeaderBytes), Dropped, Malformed},
		"too long":                           {make([]byte, frame.MaxMessage+1), Dropped, Malformed},
		"another hardware address as source": {patch(tcp(), frame.HeaderBytes+11, 9), Dropped, Spoofed},
		"a frame for another station":        {patch(tcp(), frame.HeaderBytes+5, 9), Dropped, NotToUs},
		"a broadcast": {patch(tcp(), frame.HeaderBytes, 255, 255, 255, 255, 255, 255), Dropped,
			NotToUs},
		"IPv6":                    {patch(tcp(), frame.HeaderBytes+12, 0x86, 0xdd), Dropped, Ethertype},
		"a VLAN":                  {patch(tcp(), frame.HeaderBytes+12, 0x81, 0), Dropped, Ethertype},
		"half an IP header":       {tcp()[:ipAt+10], Dropped, Malformed},
		"version 6":               {change(tcp(), ipAt, 0x65), Dropped, Malformed},
		"a header of 16 bytes":    {change(tcp(), ipAt, 0x44), Dropped, Malformed},
		"IP options":              {change(tcp(), ipAt, 0x46), Dropped, Options},
		"longer than the frame":   {change(tcp(), ipAt+2, 0, 200), Dropped, Malformed},
		"shorter than its header": {change(tcp(), ipAt+2, 0, 19), Dropped, Malformed},
		"a bad checksum": {append(tcp()[:ipAt+10], append([]byte{1, 2}, tcp()[ipAt+12:]...)...), Dropped,
			Checksum},
		"another source address":    {change(tcp(), ipAt+12, 10, 0, 0, 1), Dropped, Spoofed},
		"the gateway as source":     {change(tcp(), ipAt+12, 192, 0, 2, 1), Dropped, Spoofed},
		"another sandbox as source": {change(tcp(), ipAt+12, 192, 0, 2, 3), Dropped, Spoofed},
		"TCP fragment":              {change(tcp(), ipAt+6, 0x20, 0), Dropped, Fragment},
		"a later TCP fragment":      {change(tcp(), ipAt+6, 0, 1), Dropped, Fragment},
		"half a TCP header":         {message(protoTCP, outside, tcpSegment(2)[:13]...), Dropped, Malformed},
		"half a UDP header":         {message(protoUDP, outside, 1, 2, 3), Dropped, Malformed},
		"ping in fragments": {change(message(protoICMP, outside, ping()...), ipAt+6, 0x20, 0), Dropped,
			Fragment},
		"ping with a bad checksum":    {message(protoICMP, outside, 8, 0, 0, 0, 0, 1, 0, 1), Dropped, Checksum},
		"another ICMP message":        {message(protoICMP, outside, 5, 0, 0, 0, 0, 0, 0, 0), Dropped, Protocol},
		"half a ping":                 {message(protoICMP, outside, 8, 0), Dropped, Malformed},
		"SCTP":                        {message(132, outside, make([]byte, 20)...), Dropped, Protocol},
		"IGMP":                        {message(2, outside, make([]byte, 8)...), Dropped, Protocol},
		"longer than the MTU":         {bytes.Clone(long), Dropped, Malformed},
		"segments without a checksum": {header(bytes.Clone(long), 0, 1, 54, 0, 180, 5), Dropped, Malformed},
		"segments of UDP":             {header(udp(), 1, 1, 42, 0, 180, 5, 34, 0, 6, 0), Dropped, Malformed},
		"unknown segments": {header(bytes.Clone(long), 1, 5, 54, 0, 180, 5, 34, 0, 16, 0), Dropped,
			Malformed},
		"a checksum somewhere": {header(tcp(), 1, 0, 0, 0, 0, 0, 255, 255, 255, 255), Dropped, Malformed},
		"a checksum of a fragment": {header(change(udp(), ipAt+6, 0x20, 0), 1, 0, 0, 0, 0, 0, 34, 0, 6, 0), Dropped,
			Malformed},
		"ARP for another address":            {arpRequest(self, [4]byte{192, 0, 2, 7}), Dropped, NotToUs},
		"ARP that announces another address": {arpRequest([4]byte{192, 0, 2, 7}, [4]byte{192, 0, 2, 7}), Dropped, Spoofed},
		"ARP that claims the gateway":        {arpRequest(atGate, atGate), Dropped, Spoofed},
		"an ARP reply":                       {patch(arpRequest(self, atGate), ipAt+7, 2), Dropped, Malformed},
		"half an ARP request":                {arpRequest(self, atGate)[:ipAt+20], Dropped, Malformed},
		"ARP from another hardware address":  {patch(arpRequest(self, atGate), ipAt+8, 2, 2, 2), Dropped, Spoofed},
	} {
		packet, reason := Message(c.message)
		if packet.Class != c.class || reason != c.reason {
			t.Errorf("%s: class %d, %s; want %d, %s", name, packet.Class, reason, c.class, c.reason)
		}
		if opens := name == "TCP" || name == "TCP, checksum left to us" ||
			name == "padding behind the packet"; packet.Opens != opens {
			t.Errorf("%s: opens %v", name, packet.Opens)
		}
	}
}

// patch is like change, but corrects no checksum.
func patch(m []byte, at int, to ...byte) []byte {
	copy(m[at:], to)
	return m
}

func TestARPReply(t *testing.T) {
	packet, _ := Message(arpRequest(self, atGate))
	want := append(make([]byte, frame.HeaderBytes), frame.GuestMAC[:]...)
	want = append(want, frame.GatewayMAC[:]...)
	want = append(want, 8, 6, 0, 1, 8, 0, 6, 4, 0, 2)
	want = append(append(want, frame.GatewayMAC[:]...), atGate[:]...)
	want = append(append(want, frame.GuestMAC[:]...), self[:]...)
	if got := ARPReply(packet.IP); !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}

// FuzzMessage checks that every accepted packet comes from the guest's own address, and that it
// lies within the message.
func FuzzMessage(f *testing.F) {
	f.Add(message(protoTCP, outside, tcpSegment(2)...))
	f.Add(message(protoUDP, outside, make([]byte, 20)...))
	f.Add(message(protoICMP, outside, ping()...))
	f.Add(arpRequest(self, atGate))
	f.Fuzz(func(t *testing.T, m []byte) {
		packet, reason := Message(m)
		switch packet.Class {
		case Dropped:
			if reason == "" {
				t.Error("dropped without a reason")
			}
		case ARP:
			ARPReply(packet.IP)
		case IP, Echo:
			if reason != "" || !bytes.Equal(packet.IP[12:16], self[:]) || !bytes.Contains(m, packet.IP) {
				t.Errorf("%+v, %s", packet, reason)
			}
		}
	})
}
