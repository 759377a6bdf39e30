package dns

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	tries      = 2               // number of rounds over all resolvers, as in resolv.conf(5)
	tryTimeout = 2 * time.Second // time limit for one resolver to answer

	// udpBytes is the maximum size of the answer that a query by UDP requests, in bytes. An answer
	// of this size passes every path unfragmented (DNS flag day 2020).
	udpBytes = 1232
	maxBytes = 65535 // maximum size of an answer by TCP, in bytes (RFC 1035 §4.2.2)
)

// Resolver asks the host's resolvers. It is safe for concurrent use.
type Resolver struct {
	servers atomic.Pointer[[]netip.AddrPort]
}

// Set replaces the list of resolvers. They are asked in the order of the list.
func (r *Resolver) Set(servers []netip.AddrPort) { r.servers.Store(&servers) }

// ask returns the answer to a question, as a whole message. The caller must replace the id of the
// message. An answer by UDP may be truncated.
func (r *Resolver) ask(ctx context.Context, q dnsmessage.Question, tcp, edns bool) ([]byte, error) {
	servers := r.servers.Load()
	if servers == nil || len(*servers) == 0 {
		return nil, errors.New("no resolver is configured")
	}
	var errs []error
	for range tries {
		for _, server := range *servers {
			answer, err := r.try(ctx, server, q, tcp, edns)
			if err == nil {
				return answer, nil
			}
			if errs = append(errs, err); ctx.Err() != nil {
				return nil, errors.Join(errs...)
			}
		}
	}
	return nil, errors.Join(errs...)
}

// try asks one resolver. It uses an unpredictable source port and id, so that another host cannot
// forge the answer.
func (r *Resolver) try(ctx context.Context, server netip.AddrPort, q dnsmessage.Question, tcp, edns bool) ([]byte,
	error) {
	var id [2]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	query, err := buildQuery(binary.BigEndian.Uint16(id[:]), q, edns)
	if err != nil {
		return nil, err
	}
	network := "udp"
	if tcp {
		network = "tcp"
	}
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, network, server.String())
	if err != nil {
		return nil, fmt.Errorf("ask resolver: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	exchange := overUDP
	if tcp {
		exchange = overTCP
	}
	answer, err := exchange(conn, query, func(p []byte) bool { return answers(p, id, q) })
	if err != nil {
		return nil, fmt.Errorf("ask resolver: %w", err)
	}
	return answer, nil
}

// overUDP sends a query and returns the first message m for which right(m) is true. It skips other
// messages, which may be forged.
func overUDP(conn net.Conn, query []byte, right func([]byte) bool) ([]byte, error) {
	if _, err := conn.Write(query); err != nil {
		return nil, err
	}
	buf := make([]byte, udpBytes+1)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return nil, err
		}
		if n <= udpBytes && right(buf[:n]) {
			return buf[:n], nil
		}
	}
}

func overTCP(conn net.Conn, query []byte, right func([]byte) bool) ([]byte, error) {
	if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...)); err != nil {
		return nil, err
	}
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return nil, err
	}
	buf := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(conn, buf); err != nil {
		return nil, err
	}
	if !right(buf) {
		return nil, errors.New("the answer is to another question")
	}
	return buf, nil
}

// buildQuery returns a new query for a question. It copies nothing else of the guest's query.
func buildQuery(id uint16, q dnsmessage.Question, edns bool) ([]byte, error) {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: id, RecursionDesired: true})
	err := errors.Join(b.StartQuestions(), b.Question(q))
	if edns {
		var h dnsmessage.ResourceHeader
		err = errors.Join(err, h.SetEDNS0(udpBytes, dnsmessage.RCodeSuccess, false), b.StartAdditionals(),
			b.OPTResource(h, dnsmessage.OPTResource{}))
	}
	if err != nil {
		return nil, fmt.Errorf("build query: %w", err)
	}
	return b.Finish()
}

// answers reports whether p is an answer to the query with the given id and question.
func answers(p []byte, id [2]byte, q dnsmessage.Question) bool {
	var parser dnsmessage.Parser
	h, err := parser.Start(p)
	if err != nil || !h.Response || h.ID != binary.BigEndian.Uint16(id[:]) {
		return false
	}
	got, err := parser.Question()
	return err == nil && got.Type == q.Type && got.Class == q.Class &&
		strings.EqualFold(got.Name.String(), q.Name.String())
}
