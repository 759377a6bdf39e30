package unique

import (
	"errors"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/proto/agentproto"
)

func TestParse(t *testing.T) {
	for _, good := range []Strict{AsBefore, Report, Refuse} {
		if s, err := Parse(string(good)); err != nil || s != good {
			t.Errorf("%q: %q, %v", good, s, err)
		}
	}
	for _, bad := range []string{"Strict", "refuse", " ", "report\n", strings.Repeat("x", 1000)} {
		var wrong *invalid.Error
		if _, err := Parse(bad); !errors.As(err, &wrong) || wrong.Field != "unique" || len(err.Error()) > 200 {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
}

// A setting in a request replaces the earlier setting. If the request has none, the earlier setting
// stays.
func TestOr(t *testing.T) {
	for _, before := range []bool{false, true} {
		for s, want := range map[Strict]bool{AsBefore: before, Report: false, Refuse: true} {
			if got := s.Or(before); got != want {
				t.Errorf("%q after %v: %v", s, before, got)
			}
		}
		if got := Of(before).Or(!before); got != before {
			t.Errorf("Of(%v).Or(%v) = %v", before, !before, got)
		}
	}
}

// This function returns the findings of an agent that lists n repeating generators. The agent
// counts the given number of further generators, but does not list them.
func repeats(n int, more uint32) *agentproto.Unique {
	u := &agentproto.Unique{More: more}
	for i := range n {
		g := agentproto.Generator{PID: uint32(100 + i), Program: "python3.11", Library: "libcrypto.so.3"}
		u.Repeats = append(u.Repeats, g)
	}
	return u
}

// Clients may use a strict sandbox only if its agent has searched and found nothing.
func TestAdmit(t *testing.T) {
	for _, c := range []struct {
		strict bool
		found  *agentproto.Unique
		want   bool
	}{
		{true, repeats(0, 0), true}, {true, nil, false}, {true, repeats(1, 0), false}, {true, repeats(0, 1), false},
		{false, nil, true}, {false, repeats(1, 1), true},
	} {
		err := Admit("s1", c.strict, c.found)
		var refused *Error
		if (err == nil) != c.want ||
			err != nil && (!errors.As(err, &refused) || refused.ID != "s1" || refused.Found != c.found) {
			t.Errorf("strict %v, found %+v: %v", c.strict, c.found, err)
		}
	}
}

// The error names a limited number of generators.
func TestErrorNamesGenerators(t *testing.T) {
	for _, c := range []struct {
		found     *agentproto.Unique
		named     int
		want, not string
	}{
		{nil, 0, "bake or branch the snapshot again", "these repeat"},
		{repeats(1, 0), 1, "libcrypto.so.3 (process 100 of program python3.11)", "others"},
		{repeats(maxNamed, 0), maxNamed, "process 107", "more"},
		{repeats(maxNamed+3, 0), maxNamed, "3 more", "process 108"},
		{repeats(1, 2), 1, "others that the list had no room for", "more,"},
	} {
		text := (&Error{ID: "s1", Found: c.found}).Error()
		if !strings.HasPrefix(text, "sandbox s1 is not unique") || !strings.Contains(text, c.want) ||
			strings.Contains(text, c.not) || strings.Count(text, "libcrypto") != c.named {
			t.Errorf("%+v: %s", c.found, text)
		}
	}
}
