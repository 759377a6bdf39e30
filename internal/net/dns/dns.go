// Package dns answers the DNS queries of a sandbox. It asks the host's resolvers, remembers which
// addresses it has returned for which names, and limits the data that questions and answers can
// carry.
//
// A name that the policy denies is refused and not looked up. An answer that contains a name of the
// host's network is refused if the policy denies that name. The package copies only the question of a
// guest's query, into a new message to the resolver. It answers questions for IPv6 with empty
// answers, because sandboxes cannot connect by IPv6. It also answers questions for service bindings
// (RFC 9460) with empty answers. A service binding may contain a key with which a client encrypts the
// name of the server, and the policy could then not see the name. The package listens on no socket.
// The owner of a socket calls Answer. The package has no cache, because the host's resolver has one.
package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/time/rate"

	"github.com/forkd/forkd/internal/proto/netproto"
)

// Limits of the queries of one sandbox. Names have about 30 bytes, and most programs look up a few
// names. A tunnel through DNS sends its bytes in names, and in answers other than addresses. The
// limits leave such a tunnel about a kilobyte per second in each direction.
const (
	queriesPerSecond = 50
	queryBurst       = 500
	nameBytesPerSec  = 1 << 10 // bytes per second, for the names in questions
	nameBurst        = 32 << 10
	otherBytesPerSec = 1 << 10 // bytes per second, for answers other than addresses
	otherBurst       = 64 << 10
)

// plainAnswer is how many bytes of an answer with addresses count against no limit. Further bytes
// count like the bytes of other answers. The number is the maximum length of an answer by plain DNS
// over UDP (RFC 1035 §4.2.1).
const plainAnswer = 512

// maxPrivate bounds how many names of one answer are compared with the policy. Resolvers follow
// fewer aliases.
const maxPrivate = 32

// Reason is the reason why this package refused a query.
type Reason string

// Reasons for which this package refuses queries. Further reasons come from the policy.
const (
	Malformed Reason = "dns-malformed"
	Kind      Reason = "dns-type"   // a type of question that is not answered
	Rate      Reason = "dns-rate"   // too many queries
	Volume    Reason = "dns-volume" // too many bytes in names, or in answers other than addresses
)

// Guest is the state of one sandbox. Use New.
type Guest struct {
	resolver *Resolver
	allowed  func(name string) (bool, Reason)
	refused  func(name string, reason Reason)
	memory   memory
	queries  *rate.Limiter
	asked    *rate.Limiter // limits the bytes of names
	other    *rate.Limiter // limits the bytes of answers other than addresses
}

// New returns a Guest that has not received any addresses. The Guest calls allowed(name) to learn
// whether the policy permits a name. The name is in the normalized form of package policy. The
// Guest calls refused(name, reason) for every refused query.
func New(r *Resolver, allowed func(string) (bool, Reason), refused func(string, Reason)) *Guest {
	return &Guest{resolver: r, allowed: allowed, refused: refused,
		queries: rate.NewLimiter(queriesPerSecond, queryBurst),
		asked:   rate.NewLimiter(nameBytesPerSec, nameBurst),
		other:   rate.NewLimiter(otherBytesPerSec, otherBurst),
	}
}

// Names returns the names for which the guest received the address addr.
func (g *Guest) Names(addr netip.Addr) []string { return g.memory.names(addr, time.Now()) }

// query is a guest's query.
type query struct {
	header   dnsmessage.Header
	question dnsmessage.Question
	name     string // name in the question, in the normalized form of package policy
	edns     bool
	room     int // maximum size of the answer, in bytes
}

// Answer returns the answer to a query that arrived by TCP or UDP. If it returns nil, the caller
// sends no answer.
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
	// The resolver may know names of the host's network, and the owner of any domain can make an
	// alias for them.
	private, err := privateNames(answer)
	if err != nil {
		return q.reply(dnsmessage.RCodeServerFailure)
	}
	for _, name := range private {
		if ok, reason := g.allowed(name); !ok {
			g.refused(name, reason)
			return q.reply(dnsmessage.RCodeRefused)
		}
	}
	g.remember(q, answer)
	binary.BigEndian.PutUint16(answer, q.header.ID)
	if len(answer) > q.room {
		return q.truncated()
	}
	return answer
}

// Types of records that dnsmessage does not name: RFC 6672, RFC 9460 §14.1, RFC 1995, RFC 1035
// §3.2.3.
const (
	typeDNAME dnsmessage.Type = 39
	typeSVCB  dnsmessage.Type = 64
	typeHTTPS dnsmessage.Type = 65
	typeIXFR  dnsmessage.Type = 251
)

// admit returns the reason why a query is refused, or "".
func (g *Guest) admit(q *query) Reason {
	now := time.Now()
	if !g.queries.AllowN(now, 1) { // first, because the following checks take time
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
	// Unpack only the first question. A message of 64 KiB can hold ten thousand questions, each of
	// which would take an array of 255 bytes.
	question, err := p.Question()
	if err != nil || question.Class != dnsmessage.ClassINET || !errors.Is(p.SkipQuestion(), dnsmessage.ErrSectionDone) {
		return nil, false
	}
	q := &query{header: h, question: question, room: 512} // RFC 1035 §4.2.1
	if q.name, err = normalized(question.Name.String()); err != nil {
		return nil, false
	}
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

// normalized returns a name in the normalized form of package policy.
func normalized(name string) (string, error) {
	if strings.ContainsFunc(name, func(r rune) bool { return r > unicode.MaxASCII }) {
		return "", errors.New("not ASCII") // converting such a name to lower case could turn it into another name
	}
	return strings.ToLower(strings.TrimSuffix(name, ".")), nil
}

// privateNames returns the names in an answer that belong to the host's network. It looks at the
// names of the records, and at the targets of aliases. It skips the authority section, whose
// records are about zones. It also skips the targets of other records, because the owner of a
// domain can write any name there.
func privateNames(answer []byte) ([]string, error) {
	var p dnsmessage.Parser
	if _, err := p.Start(answer); err != nil {
		return nil, err
	}
	if err := p.SkipAllQuestions(); err != nil {
		return nil, err
	}
	var names []string
	add := func(text string) error {
		name, err := normalized(text)
		switch {
		case err != nil:
			return err
		case !netproto.PrivateName(name) || slices.Contains(names, name):
			return nil
		case len(names) == maxPrivate:
			return errors.New("too many names of the host's network")
		}
		names = append(names, name)
		return nil
	}
	for {
		r, err := p.AnswerHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			break
		}
		target := ""
		if err == nil {
			target, err = aliasTarget(&p, r.Type)
		}
		if err == nil {
			err = add(r.Name.String())
		}
		if err == nil && target != "" {
			err = add(target)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := p.SkipAllAuthorities(); err != nil {
		return nil, err
	}
	for {
		r, err := p.AdditionalHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return names, nil
		}
		if err == nil {
			err = p.SkipAdditional()
		}
		if err == nil && r.Type != dnsmessage.TypeOPT {
			err = add(r.Name.String())
		}
		if err != nil {
			return nil, err
		}
	}
}

// aliasTarget reads the record whose header p has read. It returns the target of an alias, or "".
func aliasTarget(p *dnsmessage.Parser, kind dnsmessage.Type) (string, error) {
	switch kind {
	case dnsmessage.TypeCNAME:
		r, err := p.CNAMEResource()
		return r.CNAME.String(), err
	case typeDNAME:
		r, err := p.UnknownResource()
		if err != nil {
			return "", err
		}
		return plainName(r.Data)
	}
	return "", p.SkipAnswer()
}

// plainName returns the name that the bytes in data encode. The name is not compressed (RFC 6672
// §2.5).
func plainName(data []byte) (string, error) {
	var name strings.Builder
	for len(data) > 0 {
		label, rest := int(data[0]), data[1:]
		if label == 0 && len(rest) == 0 {
			return name.String(), nil
		}
		if label == 0 || label > 63 || label > len(rest) {
			break
		}
		name.Write(rest[:label])
		name.WriteByte('.')
		data = rest[label:]
	}
	return "", errors.New("not an uncompressed name")
}

// remember stores the addresses in an answer as addresses of the name in the question, even if the
// answer contains aliases.
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

// reply returns an answer that holds only a code.
func (q *query) reply(code dnsmessage.RCode) []byte { return q.build(code, false) }

// truncated returns the answer that tells a guest to repeat the query by TCP.
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
