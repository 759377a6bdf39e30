package netproto

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/forkd/forkd/internal/proto/codec"
)

// Answer is the answer that the guest gets to a held request instead of the server's answer.
type Answer uint8

// Answers to held requests.
const (
	AnswerRefuse Answer = iota + 1 // the request fails at once
	AnswerRecord                   // the request succeeds at once, with an answer that says that it was only recorded
	AnswerWait                     // the request waits until the hold ends, and then goes to the server
)

var answerNames = [...]string{AnswerRefuse: "refuse", AnswerRecord: "record", AnswerWait: "wait"}

// String returns the API's name of the answer.
func (a Answer) String() string {
	if int(a) < len(answerNames) && a != 0 {
		return answerNames[a]
	}
	return fmt.Sprintf("answer %d", uint8(a))
}

// MaxHeldHosts bounds the hosts of a hold.
const MaxHeldHosts = 64

// Hold holds back the requests of a sandbox that could change something at a server. The zero value
// holds nothing. It is treated as a value: its list is never changed in place.
type Hold struct {
	Hosts  []Rule // names without ports and protocols
	Answer Answer // 0 only in the zero value
}

// On reports whether the hold holds anything.
func (h *Hold) On() bool { return len(h.Hosts) > 0 }

// Equal reports whether two holds are the same.
func (h *Hold) Equal(o *Hold) bool { return h.Answer == o.Answer && slices.Equal(h.Hosts, o.Hosts) }

// ParseHold parses a hold in the API's form. An empty answer means AnswerRefuse. Errors are
// *FieldError.
func ParseHold(hosts []string, answer string) (h Hold, err error) {
	h.Answer = Answer(max(0, slices.Index(answerNames[:], cmp.Or(answer, answerNames[AnswerRefuse]))))
	switch {
	case h.Answer == 0:
		return Hold{}, &FieldError{"answer", fmt.Sprintf("%.100q: want refuse, record or wait", answer)}
	case len(hosts) == 0 || len(hosts) > MaxHeldHosts:
		return Hold{}, &FieldError{"hosts", fmt.Sprintf("has %d names: want 1 to %d", len(hosts), MaxHeldHosts)}
	}
	if h.Hosts, err = parseRules("hosts", hosts); err != nil {
		return Hold{}, err
	}
	for i, r := range h.Hosts {
		if !r.IsName() || r.HasPorts() || r.Protocol != AnyProtocol {
			return Hold{}, &FieldError{fmt.Sprintf("hosts[%d]", i), fmt.Sprintf("%q: want a name or *.name", &h.Hosts[i])}
		}
	}
	return h, nil
}

func (h *Hold) append(w *codec.Writer) {
	w.U8(uint8(h.Answer))
	w.U32(uint32(len(h.Hosts)))
	for i := range h.Hosts {
		w.String(h.Hosts[i].String())
	}
}

// parse decodes a hold. An invalid hold is an error: without its hold, a sandbox could change
// something at a server.
func (h *Hold) parse(r *codec.Reader) error {
	*h = Hold{}
	answer := Answer(r.U8())
	var hosts []string
	for range r.Count(4) {
		hosts = append(hosts, r.String())
	}
	if r.Err() != nil || answer == 0 && len(hosts) == 0 {
		return r.Err()
	}
	var err error
	*h, err = ParseHold(hosts, answer.String())
	return err
}

// Outcomes of held requests.
const (
	OutcomeRefused  = "refused"
	OutcomeRecorded = "recorded"
	OutcomeWaiting  = "waiting"
	OutcomeSent     = "sent"     // the request waited, and was sent to the server after the hold had ended
	OutcomeGivenUp  = "given_up" // the guest did not wait until the hold ended
	OutcomeExpired  = "expired"  // the request waited for too long, and was refused
)

// Bounds on the effects of one sandbox. MaxEffects is a number of effects; the other bounds are in
// bytes.
const (
	MaxEffects     = 200
	MaxEffectBytes = 256 << 10 // all effects together
	MaxEffectBody  = 16 << 10  // the kept part of a body
	MaxEffectHead  = 8 << 10   // the kept parts of the headers, and of the URL
)

// Effect is a request that was held. The guest chooses all of its texts.
type Effect struct {
	ID        uint64
	Unix      int64 // time of the request, in seconds since 1970
	Method    string
	URL       string
	Headers   []string // "Name: value"; values of credentials are hidden
	Body      []byte   // the beginning of the body, up to MaxEffectBody
	Truncated bool     // whether headers, URL or body are longer than what is kept
	Outcome   string
}

// Effects are the requests of a sandbox that were held since its network stack was made.
type Effects struct {
	Since  int64    // when this list began, in seconds since 1970; 0: the guest has sent nothing yet
	Missed uint64   // held requests for which the list had no room; they were refused
	List   []Effect // oldest first
}

// Append encodes m.
func (m *Effects) Append(w *codec.Writer) {
	w.U64(uint64(m.Since))
	w.U64(m.Missed)
	w.U32(uint32(len(m.List)))
	for _, e := range m.List {
		w.U64(e.ID)
		w.U64(uint64(e.Unix))
		w.String(e.Method)
		w.String(e.URL)
		w.U32(uint32(len(e.Headers)))
		for _, h := range e.Headers {
			w.String(h)
		}
		w.Blob(e.Body)
		w.Bool(e.Truncated)
		w.String(e.Outcome)
	}
}

// Parse decodes m.
func (m *Effects) Parse(r *codec.Reader) error {
	*m = Effects{Since: int64(r.U64()), Missed: r.U64()}
	for range r.Count(37) {
		e := Effect{ID: r.U64(), Unix: int64(r.U64()), Method: r.String(), URL: r.String()}
		for range r.Count(4) {
			e.Headers = append(e.Headers, r.String())
		}
		e.Body, e.Truncated, e.Outcome = slices.Clone(r.Blob()), r.Bool(), r.String()
		m.List = append(m.List, e)
	}
	return r.Err()
}
