package snapshot

import (
	"errors"
	"fmt"
)

// Network is the network policy for forks. Its texts are interpreted only when the snapshot is
// forked.
type Network struct {
	Mode  string   `json:"mode"`
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`

	AllowECH bool `json:"allow_ech,omitempty"`

	BytesPerSecond   uint64 `json:"bytes_per_second,omitempty"`
	PacketsPerSecond uint32 `json:"packets_per_second,omitempty"`
	Connections      uint32 `json:"connections,omitempty"`

	Hold *Hold `json:"hold,omitempty"` // nil: no request is held
}

// Hold names hosts, and the answer that forkd gives in their place. If a request of a fork could
// change something at these hosts, the request is held.
type Hold struct {
	Hosts  []string `json:"hosts"`
	Answer string   `json:"answer"`
}

// Bounds on a manifest's policy: the number of rules in a list, and the number of bytes in a rule.
const (
	maxRules    = 256
	maxRuleText = 300
)

// Check reports the first bound that a policy exceeds. It does not interpret the texts.
func (n *Network) Check() error {
	if n.Mode == "" {
		return errors.New("mode is empty")
	}
	lists := [][]string{n.Allow, n.Deny}
	if n.Hold != nil {
		if len(n.Hold.Hosts) == 0 || n.Hold.Answer == "" {
			return errors.New("hold without hosts or without an answer")
		}
		lists = append(lists, n.Hold.Hosts)
	}
	for _, rules := range lists {
		if len(rules) > maxRules {
			return fmt.Errorf("a list of %d rules: at most %d", len(rules), maxRules)
		}
		for _, r := range rules {
			if len(r) > maxRuleText {
				return fmt.Errorf("a rule of %d bytes: at most %d", len(r), maxRuleText)
			}
		}
	}
	return nil
}
