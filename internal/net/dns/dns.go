// Package dns answers the DNS queries of a sandbox: it asks the host's resolvers, remembers which
// addresses it gave for which names, and limits how much can be said by way of questions and
// answers.
//
// A name that the policy does not let through is refused and not asked for. Only the question of a
// query gets out, in a message of our own. There is no IPv6 outside, so questions for it are
// answered with nothing, as are those for service bindings (RFC 9460), whose keys would hide from
// us which server a connection asks for. It listens on no socket: who has one calls Answer. It
// caches nothing: the host's resolver does.
package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"time"
	"unicode"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/time/rate"
)

// Limits of one sandbox. Names have about 30 bytes, and most programs ask for a few. A tunnel
// through DNS puts its bytes into names and into answers that are no addresses; what is left for
// one is some hundred bytes a second.
const (
	queriesPerSecond = 50
	queryBurst       = 500
	nameBytesPerSec  = 1 << 10 // of the names in questions
	nameBurst        = 32 << 10
	otherBytesPerSec = 1 << 10 // of answers that are no addresses
	otherBurst       = 64 << 10
)

// plainAnswer is how long an answer with addresses may be, in bytes, without counting as anything
// else: the longest of plain DNS over UDP (RFC 1035 §4.2.1).
const plainAnswer = 512

// Reason says why a query was refused by this package.
type Reason string

// Reasons. Others come from the policy.
const (
	Malformed Reason = "dns-malformed"
	Kind      Reason = "dns-type"   // a type of question that is not answered
	Rate      Reason = "dns-rate"   // too many queries
	Volume    Reason = "dns-volume" // too many bytes in names, or in answers that are no addresses
)

// Guest is what is remembered for one sandbox. Use New.
type Guest struct {
	resolver *Resolver
	allowed  func(name string) (bool, Reason)
	refused  func(name string, reason Reason)
	memory   memory
	queries  *rate.Limiter
	asked    *rate.Limiter // bytes of names
	other    *rate.Limiter // bytes of answers that are no addresses
}

// New returns a Guest that has been given no address yet. allowed says whether the policy lets a
// name through, spelled as package policy spells names, and refused is told of queries that were
// not answered.
func New(r *Resolver, allowed func(string) (bool, Reason), refused func(string, Reason)) *Guest {
	return &Guest{resolver: r, allowed: allowed, refused: refused,
		queries: rate.NewLimiter(queriesPerSecond, queryBurst),
		asked:   rate.NewLimiter(nameBytesPerSec, nameBurst),
		other:   rate.NewLimiter(otherBytesPerSec, otherBurst),
	}
}

// Names returns the names that the guest was given an address for.
func (g *Guest) Names(addr netip.Addr) []string { return g.memory.names(addr, time.Now()) }

// query is what a guest asks.
type query struct {
	header   dnsmessage.Header
	question dnsmessage.Question
	name     string // of the question, as package policy spells names
	edns     bool
	room     int // bytes that the answer may have
}

// Answer returns the answer to a query that came by TCP or UDP, or nil if it deserves none.
func (g *Guest) Answer(ctx context.Context, message []byte, tcp bool) []byte {
	q, ok := parse(message, tcp)
	if !ok {
		g.refused("", Malformed)
		return nil
	}
	if reason := g.admit(q); reason != "" {
		g.refused(q.name, reason)
		return q.reply(dnsmessage.RCodeRefused)
	}
	switch q.question.Type {
	case dnsmessage.TypeAAAA, typeSVCB, typeHTTPS:
		return q.reply(dnsmessage.RCodeSuccess)
	}
	answer, err := g.resolver.ask(ctx, q.question, tcp, q.edns)
	if err != nil {
		return q.reply(dnsmessage.RCodeServerFailure)
	}
	volume := len(answer)
	if q.question.Type == dnsmessage.TypeA {
		volume = max(0, volume-plainAnswer)
	}
	if !g.other.AllowN(time.Now(), volume) {
		g.refused(q.name, Volume)
		return q.reply(dnsmessage.RCodeRefused)
	}
	g.remember(q, answer)
	binary.BigEndian.PutUint16(answer, q.header.ID)
	if len(answer) > q.room {
		return q.truncated()
	}
	return answer
}

// Types of questions that dnsmessage has no name for: RFC 9460 §14.1, RFC 1995, RFC 1035 §3.2.3.
const (
	typeSVCB  dnsmessage.Type = 64
	typeHTTPS dnsmessage.Type = 65
	typeIXFR  dnsmessage.Type = 251
)

// admit says why a query is not let through, if it is not.
func (g *Guest) admit(q *query) Reason {
	now := time.Now()
	if !g.queries.AllowN(now, 1) { // first: to compare a name with the policy, and to note a refusal, costs as well
		return Rate
	}
	if ok, reason := g.allowed(q.name); !ok {
		return reason
	}
	switch q.question.Type {
	case dnsmessage.TypeAXFR, typeIXFR, dnsmessage.TypeALL:
		return Kind
	}
	if !g.asked.AllowN(now, len(q.name)) {
		return Volume
	}
	return ""
}

// parse reads a standard query with one question (RFC 1035 §4.1).
func parse(message []byte, tcp bool) (*query, bool) {
	var p dnsmessage.Parser
	h, err := p.Start(message)
	if err != nil || h.Response || h.OpCode != 0 {
		return nil, false
	}
	// A message of 64 KiB has room for ten thousand questions, and each unpacks into an array of 255
	// bytes: only the first is unpacked.
	question, err := p.Question()
	if err != nil || question.Class != dnsmessage.ClassINET || !errors.Is(p.SkipQuestion(), dnsmessage.ErrSectionDone) {
		return nil, false
	}
	q := &query{header: h, question: question, room: 512} // RFC 1035 §4.2.1
	q.name = strings.TrimSuffix(q.question.Name.String(), ".")
	if strings.ContainsFunc(q.name, func(r rune) bool { return r > unicode.MaxASCII }) {
		return nil, false // lowered, some letters would become those of another name
	}
	q.name = strings.ToLower(q.name)
	if p.SkipAllAnswers() == nil && p.SkipAllAuthorities() == nil {
		for {
			r, err := p.AdditionalHeader()
			if err != nil {
				break
			}
			if r.Type == dnsmessage.TypeOPT {
				q.edns = true
				q.room = min(max(q.room, int(r.Class)), udpBytes) // RFC 6891 §6.2.3
			}
			if p.SkipAdditional() != nil {
				break
			}
		}
	}
	if tcp {
		q.room = maxBytes
	}
	return q, true
}

// remember keeps the addresses of an answer, whatever aliases lead to them.
func (g *Guest) remember(q *query, answer []byte) {
	var p dnsmessage.Parser
	h, err := p.Start(answer)
	if err != nil || h.RCode != dnsmessage.RCodeSuccess || q.question.Type != dnsmessage.TypeA ||
		p.SkipAllQuestions() != nil {
		return
	}
	now := time.Now()
	for {
		r, err := p.AnswerHeader()
		if err != nil {
			return
		}
		if r.Type != dnsmessage.TypeA || r.Class != dnsmessage.ClassINET {
			if p.SkipAnswer() != nil {
				return
			}
			continue
		}
		a, err := p.AResource()
		if err != nil {
			return
		}
		g.memory.put(q.name, netip.AddrFrom4(a.A), time.Duration(r.TTL)*time.Second, now)
	}
}

// reply returns an answer that holds nothing but a code.
func (q *query) reply(code dnsmessage.RCode) []byte { return q.build(code, false) }

// truncated returns the answer that makes a guest ask again by TCP.
func (q *query) truncated() []byte { return q.build(dnsmessage.RCodeSuccess, true) }

func (q *query) build(code dnsmessage.RCode, truncated bool) []byte {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: q.header.ID, Response: true,
		RecursionDesired:   q.header.RecursionDesired,
		RecursionAvailable: true, RCode: code, Truncated: truncated})
	if b.StartQuestions() != nil || b.Question(q.question) != nil {
		return nil
	}
	answer, err := b.Finish()
	if err != nil {
		return nil
	}
	return answer
}
