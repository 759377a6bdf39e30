package netproto

import (
	"errors"
	"fmt"

	"github.com/forkd/forkd/internal/proto/codec"
)

// Mode says what a policy permits if no rule applies.
type Mode uint8

// Modes of a policy.
const (
	ModeNone   Mode = iota + 1 // nothing; no name is resolved
	ModePublic                 // the internet, without private networks and the host's addresses
	ModeAllow                  // the destinations in Allow
	ModeOpen                   // everything except loopback and link-local addresses, and the addresses of the host
)

var modeNames = [...]string{ModeNone: "none", ModePublic: "public", ModeAllow: "allow", ModeOpen: "open"}

// String returns the API's name of the mode.
func (m Mode) String() string {
	if int(m) < len(modeNames) && m != 0 {
		return modeNames[m]
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// ParseMode returns the mode with the given name.
func ParseMode(s string) (Mode, error) {
	for m := ModeNone; m <= ModeOpen; m++ {
		if modeNames[m] == s {
			return m, nil
		}
	}
	return 0, fmt.Errorf("%q is not a mode: use none, public, allow or open", s)
}

// MaxRules bounds the length of each list of a policy.
const MaxRules = 256

// Policy determines the destinations to which a sandbox may connect. It is treated as a value: the
// policy and its lists are never changed in place.
type Policy struct {
	Mode  Mode
	Allow []Rule // in ModePublic and ModeOpen: destinations that are permitted although these modes deny them
	Deny  []Rule // denied in every mode, even if Allow has them

	// AllowECH permits connections in which TLS encrypts the server's name (RFC 9849) even if a
	// rule for a name decides about them. The rule is then compared only with the outer name, which
	// is not encrypted.
	AllowECH bool
}

// Public returns the default policy.
func Public() Policy { return Policy{Mode: ModePublic} }

// FieldError describes an invalid field of a policy, and how to correct it.
type FieldError struct {
	Field  string // for example "mode" or "allow[3]"
	Reason string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Reason }

// ParsePolicy parses a policy in the API's form. An empty mode means ModeAllow if there are allowed
// destinations, and otherwise ModePublic. Errors are *FieldError.
func ParsePolicy(mode string, allow, deny []string) (p Policy, err error) {
	switch {
	case mode != "":
		if p.Mode, err = ParseMode(mode); err != nil {
			return Policy{}, &FieldError{"mode", err.Error()}
		}
	case len(allow) > 0:
		p.Mode = ModeAllow
	default:
		p.Mode = ModePublic
	}
	if p.Mode == ModeNone && len(allow) > 0 {
		return Policy{}, &FieldError{"allow", "mode none permits nothing: omit the list, or use mode allow"}
	}
	if p.Allow, err = parseRules("allow", allow); err != nil {
		return Policy{}, err
	}
	if p.Deny, err = parseRules("deny", deny); err != nil {
		return Policy{}, err
	}
	return p, nil
}

func parseRules(field string, texts []string) ([]Rule, error) {
	if len(texts) > MaxRules {
		return nil, &FieldError{field, fmt.Sprintf("has %d rules, at most %d: join them by *.name or larger networks",
			len(texts), MaxRules)}
	}
	var rules []Rule
	for i, text := range texts {
		rule, err := ParseRule(text)
		if err != nil {
			return nil, &FieldError{fmt.Sprintf("%s[%d]", field, i), err.Error()}
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// Texts returns rules in the API's form.
func Texts(rules []Rule) []string {
	texts := make([]string, len(rules))
	for i := range rules {
		texts[i] = rules[i].String()
	}
	return texts
}

func (p *Policy) append(w *codec.Writer) {
	w.U8(uint8(p.Mode))
	w.Bool(p.AllowECH)
	for _, rules := range [][]Rule{p.Allow, p.Deny} {
		w.U32(uint32(len(rules)))
		for i := range rules {
			w.String(rules[i].String())
		}
	}
}

// parse decodes rules. Rules are encoded as texts, so that ParseRule checks all rules.
func (p *Policy) parse(r *codec.Reader) error {
	*p = Policy{Mode: Mode(r.U8()), AllowECH: r.Bool()}
	if p.Mode < ModeNone || p.Mode > ModeOpen {
		return errors.Join(fmt.Errorf("unknown %v", p.Mode), r.Err())
	}
	for _, list := range []*[]Rule{&p.Allow, &p.Deny} {
		n := r.Count(4)
		if n > MaxRules {
			return fmt.Errorf("a list of %d rules, at most %d", n, MaxRules)
		}
		for range n {
			text := r.String()
			if r.Err() != nil {
				return r.Err()
			}
			rule, err := ParseRule(text)
			if err != nil {
				return err
			}
			*list = append(*list, rule)
		}
	}
	return r.Err()
}
