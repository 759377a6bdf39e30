package decoders

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/forkd/forkd/internal/net/dns"
)

// dnsName is the question of these tests as RFC 1035 §3.1 encodes it, and aRecord an answer to it: a
// pointer to the name, type A, class IN, an hour, and an address that numbered fills in.
var (
	dnsName  = append([]byte("\x07example\x03com\x00"), 0, 1, 0, 1)
	aRecord  = []byte{0xc0, 12, 0, 1, 0, 1, 0, 0, 0x0e, 0x10, 0, 4}
	anyName  = func(string) (bool, dns.Reason) { return true, "" }
	unminded = func(string, dns.Reason) {}
)

// dnsMessage has the header of RFC 1035 §4.1.1 with its counts, and a body.
func dnsMessage(flags uint16, counts [4]int, body ...[]byte) []byte {
	p := binary.BigEndian.AppendUint16([]byte{0, 1}, flags)
	for _, n := range counts {
		p = binary.BigEndian.AppendUint16(p, uint16(n))
	}
	return append(p, bytes.Join(body, nil)...)
}

// largestMessage is the size of inputs in the table, so that four times as much is a DNS message.
const largestMessage = 15 << 10

func dnsRows() []row {
	query := func(t *testing.T, p []byte) {
		dns.New(new(dns.Resolver), anyName, unminded).Answer(t.Context(), p, true)
	}
	questions := func(n int) []byte {
		more := bytes.Repeat([]byte{0xc0, 12, 0, 1, 0, 1}, n/6)
		return dnsMessage(0, [4]int{1 + n/6}, dnsName, more)
	}
	records := func(section int) func(int) []byte {
		return func(n int) []byte {
			counts := [4]int{1}
			counts[section] = n / 11
			return dnsMessage(0, counts, dnsName, bytes.Repeat([]byte{0, 0, 41, 4, 0xd0, 0, 0, 0, 0, 0, 0}, n/11))
		}
	}
	addresses := func(n int) []byte {
		var body []byte
		for i := range n / 16 {
			body = binary.BigEndian.AppendUint32(append(body, aRecord...), uint32(i))
		}
		return dnsMessage(0x8000, [4]int{1, n / 16}, dnsName, body)
	}
	other := func(n int) []byte {
		return dnsMessage(0x8000, [4]int{1, n / 12}, dnsName, bytes.Repeat([]byte{0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 0, 0, 0}, n/12))
	}
	return []row{
		{name: "dns query/questions", input: questions, decode: query, most: largestMessage},
		{name: "dns query/answers", input: records(1), decode: query, most: largestMessage},
		{name: "dns query/additional", input: records(3), decode: query, most: largestMessage},
		{name: "dns answer/addresses", input: addresses, decode: resolve, most: largestMessage, factor: 32},
		{name: "dns answer/other records", input: other, decode: resolve, most: largestMessage},
		{name: "dns answer/zeros", input: func(n int) []byte { return make([]byte, n) }, decode: resolve, most: largestMessage},
	}
}

// resolve has a resolver give p as its answer, by TCP and with the id of the query, to a guest whose
// memory of addresses is full after a few.
func resolve(t *testing.T, p []byte) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2 { // it is asked twice where the answer is refused
			c, err := l.Accept()
			if err != nil {
				return
			}
			query := make([]byte, 2+12)
			_, _ = io.ReadFull(c, query)
			_, _ = c.Write(append(append(binary.BigEndian.AppendUint16(nil, uint16(len(p))), query[2:4]...), p[2:]...))
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	}()
	r := new(dns.Resolver)
	r.Set([]netip.AddrPort{netip.MustParseAddrPort(l.Addr().String())})
	dns.New(r, anyName, unminded).Answer(t.Context(), dnsMessage(0, [4]int{1}, dnsName), true)
	_ = l.Close()
	<-done
}
