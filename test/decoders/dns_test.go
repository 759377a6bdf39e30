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

// dnsQuestion is the question that the tests ask, encoded as in RFC 1035 §4.1.2. aRecord is the
// beginning of an address record in the answer: a pointer to the question's name, type A, class IN,
// a TTL of an hour, and the length of the address that follows.
var (
	dnsQuestion = append([]byte("\x07example\x03com\x00"), 0, 1, 0, 1)
	aRecord     = []byte{0xc0, 12, 0, 1, 0, 1, 0, 0, 0x0e, 0x10, 0, 4}
	anyName     = func(string) (bool, dns.Reason) { return true, "" }
	ignored     = func(string, dns.Reason) {}
)

// dnsMessage returns a message with the header of RFC 1035 §4.1.1, the given counts, and a body.
func dnsMessage(flags uint16, counts [4]int, body ...[]byte) []byte {
	p := binary.BigEndian.AppendUint16([]byte{0, 1}, flags)
	for _, n := range counts {
		p = binary.BigEndian.AppendUint16(p, uint16(n))
	}
	return append(p, bytes.Join(body, nil)...)
}

// largestMessage is the length of inputs in the table. Four times this length still fits into a DNS
// message.
const largestMessage = 15 << 10

func dnsRows() []row {
	query := func(t *testing.T, p []byte) {
		dns.New(new(dns.Resolver), anyName, ignored).Answer(t.Context(), p, true)
	}
	questions := func(n int) []byte {
		more := bytes.Repeat([]byte{0xc0, 12, 0, 1, 0, 1}, n/6)
		return dnsMessage(0, [4]int{1 + n/6}, dnsQuestion, more)
	}
	records := func(section int) func(int) []byte {
		return func(n int) []byte {
			counts := [4]int{1}
			counts[section] = n / 11
			return dnsMessage(0, counts, dnsQuestion, bytes.Repeat([]byte{0, 0, 41, 4, 0xd0, 0, 0, 0, 0, 0, 0}, n/11))
		}
	}
	addresses := func(n int) []byte {
		var body []byte
		for i := range n / 16 {
			body = binary.BigEndian.AppendUint32(append(body, aRecord...), uint32(i))
		}
		return dnsMessage(0x8000, [4]int{1, n / 16}, dnsQuestion, body)
	}
	other := func(n int) []byte {
		empty := []byte{0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 0, 0, 0} // a TXT record
		return dnsMessage(0x8000, [4]int{1, n / len(empty)}, dnsQuestion, bytes.Repeat(empty, n/len(empty)))
	}
	zeros := func(n int) []byte { return make([]byte, n) }
	return []row{
		{name: "dns query/questions", input: questions, decode: query, most: largestMessage},
		{name: "dns query/answers", input: records(1), decode: query, most: largestMessage},
		{name: "dns query/additional", input: records(3), decode: query, most: largestMessage},
		{name: "dns answer/addresses", input: addresses, decode: resolve, most: largestMessage, factor: 32},
		{name: "dns answer/other records", input: other, decode: resolve, most: largestMessage},
		{name: "dns answer/zeros", input: zeros, decode: resolve, most: largestMessage},
	}
}

// resolve passes p to a resolver as the answer to a guest's query. The answer arrives over TCP and
// has the query's id. The largest answers have more addresses than the resolver stores.
func resolve(t *testing.T, p []byte) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2 { // a refused answer makes the resolver send a second query
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
	dns.New(r, anyName, ignored).Answer(t.Context(), dnsMessage(0, [4]int{1}, dnsQuestion), true)
	_ = l.Close()
	<-done
}
