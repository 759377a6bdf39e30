package netproto

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Protocol is the protocol to which a rule applies.
type Protocol uint8

// Protocols of rules.
const (
	AnyProtocol Protocol = iota
	TCP
	UDP
)

// Rule matches connections by their destination: a Name or a Prefix. Its text has the form
//
//	[tcp/|udp/] name | *.name | address | network/bits  [:port | :first-last]
//
// such as pypi.org, *.pythonhosted.org, 10.0.0.0/8, tcp/1.2.3.4:443, 1.2.3.0/24:80-90.
type Rule struct {
	Protocol Protocol
	Name     string       // in lower case, without a trailing dot
	Below    bool         // whether the rule matches the names below Name, at any depth, but not Name itself
	Prefix   netip.Prefix // IPv4, masked
	First    uint16       // first port; 0: see Last
	Last     uint16       // last port; 0: every port of a Prefix, but only TCP 80 and 443 of a Name
}

// IsName reports whether the rule has a Name. All other rules have a Prefix.
func (r *Rule) IsName() bool { return r.Name != "" }

// HasPorts reports whether the text of the rule has ports.
func (r *Rule) HasPorts() bool { return r.Last != 0 }

// String returns the text of the rule.
func (r *Rule) String() string {
	var b strings.Builder
	switch r.Protocol {
	case TCP:
		b.WriteString("tcp/")
	case UDP:
		b.WriteString("udp/")
	}
	switch {
	case r.Below:
		b.WriteString("*." + r.Name)
	case r.IsName():
		b.WriteString(r.Name)
	case r.Prefix.IsSingleIP():
		b.WriteString(r.Prefix.Addr().String())
	default:
		b.WriteString(r.Prefix.String())
	}
	if r.HasPorts() {
		fmt.Fprintf(&b, ":%d", r.First)
		if r.Last != r.First {
			fmt.Fprintf(&b, "-%d", r.Last)
		}
	}
	return b.String()
}

// maxRuleText bounds the text of a rule, in bytes. A name in the text has at most 253 bytes.
const maxRuleText = 300

// ParseRule parses the text of a rule. An error quotes the text and shows how to correct it.
func ParseRule(text string) (Rule, error) {
	if len(text) > maxRuleText {
		return Rule{}, fmt.Errorf("a rule of %d bytes: a name has at most 253", len(text))
	}
	r, err := parseRule(text)
	if err != nil {
		return Rule{}, fmt.Errorf("%q: %w", text, err)
	}
	return r, nil
}

func parseRule(text string) (r Rule, err error) {
	if _, rest, ok := strings.Cut(text, "://"); ok {
		host, _, _ := strings.Cut(rest, "/")
		return Rule{}, fmt.Errorf("is a URL: write %s", host)
	}
	rest := text
	if after, ok := strings.CutPrefix(rest, "tcp/"); ok {
		r.Protocol, rest = TCP, after
	} else if after, ok := strings.CutPrefix(rest, "udp/"); ok {
		r.Protocol, rest = UDP, after
	}
	if strings.Count(rest, ":") > 1 {
		return Rule{}, errors.New("sandboxes have no IPv6: write an IPv4 address, a network or a name")
	}
	host, ports, hasPorts := strings.Cut(rest, ":")
	if hasPorts {
		if r.First, r.Last, err = parsePorts(ports); err != nil {
			return Rule{}, err
		}
	}
	host = strings.TrimSuffix(host, ".")
	if _, err := strconv.Atoi(host[strings.LastIndexByte(host, '.')+1:]); err == nil || strings.Contains(host, "/") {
		r.Prefix, err = parsePrefix(host)
		return r, err
	}
	if r.Name, r.Below, err = parseName(host); err != nil {
		return Rule{}, err
	}
	if r.Protocol == UDP && !r.HasPorts() {
		return Rule{}, errors.New("needs a port: a name without one means TCP 80 and 443")
	}
	return r, nil
}

func parsePorts(text string) (first, last uint16, err error) {
	from, to, isRange := strings.Cut(text, "-")
	a, errA := strconv.ParseUint(from, 10, 16)
	b, errB := a, error(nil)
	if isRange {
		b, errB = strconv.ParseUint(to, 10, 16)
	}
	if errA != nil || errB != nil || a == 0 || b < a {
		return 0, 0, fmt.Errorf("%q is not a port: write one from 1 to 65535, or two joined by a hyphen, the lower first",
			text)
	}
	return uint16(a), uint16(b), nil
}

func parsePrefix(text string) (netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return netip.Prefix{}, errors.New("is not an IPv4 address: write one such as 10.1.2.3, or a name")
		}
		return netip.PrefixFrom(a, 32), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, errors.New("is not a network: write one such as 10.0.0.0/8, without a path behind a name")
	}
	if p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("is an address inside a network: write %s or %s", p.Masked(), p.Addr())
	}
	return p, nil
}

// parseName parses a name according to RFC 1123 §2.1. It also accepts underscores, which names of
// services contain.
func parseName(text string) (name string, below bool, err error) {
	name = strings.ToLower(text)
	name, below = strings.CutPrefix(name, "*.")
	switch {
	case name == "" || name == "*":
		return "", false, errors.New("names no host: write a name, *.name, an address or a network; mode public allows every name")
	case strings.Contains(name, "*"):
		return "", false, errors.New("has a * that is not at its beginning: only *.name is possible, for all names below one")
	case len(name) > 253:
		return "", false, fmt.Errorf("is a name of %d bytes, at most 253", len(name))
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return "", false, fmt.Errorf("has the part %q, but parts of a name have 1 to 63 characters and no hyphen at the ends", label)
		}
		for _, c := range []byte(label) {
			switch {
			case c >= 0x80:
				return "", false, errors.New("has letters beyond ASCII: write the name as DNS knows it, with xn--")
			case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '_':
			default:
				return "", false, fmt.Errorf("has %q, which no name has: write a name, *.name, an address or a network", c)
			}
		}
	}
	return name, below, nil
}
