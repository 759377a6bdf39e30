package owner

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/event"
)

// The Owner of a context without an owner has no rights and no limits.
func TestOwnerOfAContext(t *testing.T) {
	if o := Of(t.Context()); o != (Owner{}) {
		t.Errorf("without an owner: %+v", o)
	}
	ann := Owner{Name: "token:ann", Most: 3, Prefix: "ann/", Admin: true}
	ctx, cancel := context.WithCancel(In(t.Context(), ann))
	defer cancel()
	if o := Of(ctx); o != ann {
		t.Errorf("owner %+v, want %+v", o, ann)
	}
	if p := PrefixOf(ctx); p != ann.Prefix {
		t.Errorf("prefix %q", p)
	}
}

// Only clients that the daemon can distinguish have a limited share.
func TestShare(t *testing.T) {
	for name, most := range map[string]int{"": 0, Anyone: 0, "token:ann": 5} {
		if got, want := Share(name, 5), (gate.Share{Key: name, Most: most}); got != want {
			t.Errorf("%q: %+v, want %+v", name, got, want)
		}
	}
	if got, want := FairShare("token:ann", 16), (gate.Share{Key: "token:ann", Most: gate.Fair(16)}); got != want {
		t.Errorf("a fair share: %+v, want %+v", got, want)
	}
}

// No Prefix is a prefix of another Prefix, so no owner can reach objects of another owner.
func TestParsePrefix(t *testing.T) {
	for _, good := range []string{"a/", "team-a/", "Team_1/", strings.Repeat("x", 31) + "/"} {
		if p, err := ParsePrefix(good); err != nil || string(p) != good {
			t.Errorf("%q: %q, %v", good, p, err)
		}
	}
	for _, bad := range []string{"", "/", "a", "a//", "a/b/", "a.b/", "-a/", "_a/", "a/\n", "ä/",
		strings.Repeat("x", 32) + "/"} {
		if p, err := ParsePrefix(bad); err == nil || p != "" {
			t.Errorf("%q: %q, %v", bad, p, err)
		}
	}
}

func TestWhatIsWithinAPrefix(t *testing.T) {
	sandbox := func(name string) *event.Event {
		return &event.Event{Kind: event.SandboxCreated, Snapshot: "a.base", Labels: map[string]string{name: ""}}
	}
	snapshot := func(tag string) *event.Event { return &event.Event{Kind: event.SnapshotDeleted, Snapshot: tag} }
	const p = Prefix("a/")
	for what, c := range map[string]struct{ got, want bool }{
		"its label":                {p.HasLabels(map[string]string{"b/x": "", "a/x": ""}), true},
		"no label":                 {p.HasLabels(nil), false},
		"a label of another":       {p.HasLabels(map[string]string{"ab/x": "a/"}), false},
		"its tag":                  {p.HasTag("a.base"), true},
		"a tag of another":         {p.HasTag("ab.base"), false},
		"a tag of none":            {p.HasTag("a"), false},
		"its sandbox":              {p.HasEvent(sandbox("a/x")), true},
		"a sandbox of another":     {p.HasEvent(sandbox("b/x")), false},
		"its snapshot":             {p.HasEvent(snapshot("a.base")), true},
		"a snapshot of another":    {p.HasEvent(snapshot("b.base")), false},
		"any label, no limit":      {Prefix("").HasLabels(nil), true},
		"any tag, no limit":        {Prefix("").HasTag("b.base"), true},
		"any sandbox, no limit":    {Prefix("").HasEvent(sandbox("b/x")), true},
		"any snapshot, no limit":   {Prefix("").HasEvent(snapshot("b.base")), true},
		"a sandbox without labels": {p.HasEvent(&event.Event{Kind: event.SandboxCreated, Snapshot: "a.base"}), false},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v", what, c.got)
		}
	}
}

// An owner with a prefix can set only labels with this prefix. A sandbox of that owner always has
// such a label.
func TestLabel(t *testing.T) {
	ann := Owner{Name: "token:ann", Prefix: "ann/"}
	for _, c := range []struct {
		owner        Owner
		labels, want map[string]string // if want is nil, the labels are refused
	}{
		{ann, nil, map[string]string{"ann/owner": "token:ann"}},
		{ann, map[string]string{"ann/job": "1"}, map[string]string{"ann/job": "1"}},
		{ann, map[string]string{"ann/job": "1", "job": "2"}, nil},
		{Owner{}, map[string]string{"job": "2"}, map[string]string{"job": "2"}},
	} {
		given := maps.Clone(c.labels)
		got, err := c.owner.Label(c.labels)
		var beyond *PrefixError
		switch {
		case c.want == nil:
			if !errors.As(err, &beyond) || beyond.Who != ann.Name || !strings.Contains(err.Error(), `labels: "job"`) {
				t.Errorf("%v: %v, %v", c.labels, got, err)
			}
		case err != nil || !maps.Equal(got, c.want):
			t.Errorf("%v: %v, %v; want %v", c.labels, got, err, c.want)
		}
		if !maps.Equal(c.labels, given) {
			t.Errorf("the caller's labels became %v", c.labels)
		}
	}
}

// Within returns an error only for owners with a prefix. The error names the prefix.
func TestWithin(t *testing.T) {
	limited := In(t.Context(), Owner{Name: "token:ann", Prefix: "ann/"})
	for _, c := range []struct {
		ctx     context.Context
		allowed bool
		refused bool
	}{{limited, true, false}, {limited, false, true}, {t.Context(), false, false}} {
		err := Within(c.ctx, c.allowed, "tag: %q", "x")
		var beyond *PrefixError
		if errors.As(err, &beyond) != c.refused || !c.refused && err != nil {
			t.Errorf("%+v, allowed %v: %v", Of(c.ctx), c.allowed, err)
		}
		if c.refused {
			const want = `tag: "x": token:ann is limited to labels that begin with "ann/", and to tags and names of ` +
				`workspaces that begin with "ann."`
			if err.Error() != want {
				t.Errorf("%q, want %q", err, want)
			}
		}
	}
}

func TestClosedErrorNamesTheField(t *testing.T) {
	for who, want := range map[string]string{"": "the client does not have", "token:ann": "token:ann does not have"} {
		err := &ClosedError{Field: "network.allow", Who: who, Reason: "10.0.0.0/8 is private"}
		if text := err.Error(); !strings.HasPrefix(text, "network.allow: 10.0.0.0/8 is private") ||
			!strings.Contains(text, want) {
			t.Errorf("%q", text)
		}
	}
}
