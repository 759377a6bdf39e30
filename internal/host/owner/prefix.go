package owner

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/forkd/forkd/internal/host/event"
)

// Prefix limits somebody to a part of the sandboxes and snapshots, such as "team-a/": to sandboxes
// with a label whose name begins with it, and to snapshots that hold no sandbox of others. It is
// empty for who has no limit.
type Prefix string

// prefixForm has neither '.' nor an inner '/', so that no prefix begins another, nor do the tags.
var prefixForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,30}/$`)

// ParsePrefix checks a prefix that is to be a limit.
func ParsePrefix(text string) (Prefix, error) {
	if !prefixForm.MatchString(text) {
		return "", fmt.Errorf("%.40q: want up to 31 letters, digits, '_' and '-', and a '/' at the end", text)
	}
	return Prefix(text), nil
}

// HasLabels reports whether a sandbox with these labels is within p.
func (p Prefix) HasLabels(labels map[string]string) bool {
	if p == "" {
		return true
	}
	for name := range labels {
		if strings.HasPrefix(name, string(p)) {
			return true
		}
	}
	return false
}

// Tags begins the tags of snapshots within p, and the names of workspaces: "team-a.".
func (p Prefix) Tags() string { return strings.TrimSuffix(string(p), "/") + "." }

// HasTag reports whether a tag, or the name of a workspace, is within p.
func (p Prefix) HasTag(tag string) bool { return p == "" || strings.HasPrefix(tag, p.Tags()) }

// HasEvent reports whether an event is of a sandbox, or of a snapshot by its tag, within p.
func (p Prefix) HasEvent(e *event.Event) bool {
	if strings.HasPrefix(string(e.Kind), "sandbox.") {
		return p.HasLabels(e.Labels)
	}
	return p.HasTag(e.Snapshot)
}

// PrefixError refuses somebody what is beyond their Prefix, where saying so tells nothing of
// others.
type PrefixError struct {
	Who    string
	Prefix Prefix
	What   string // that they may not do
}

func (e *PrefixError) Error() string {
	return fmt.Sprintf("%s: %s is limited to labels that begin with %q, and to tags and names of workspaces that begin with %q",
		e.What, e.Who, string(e.Prefix), e.Prefix.Tags())
}

// PrefixOf returns the limit of who makes a request.
func PrefixOf(ctx context.Context) Prefix { return Of(ctx).Prefix }

// Within refuses something to who has a limit, with a *PrefixError.
func Within(ctx context.Context, allowed bool, format string, args ...any) error {
	o := Of(ctx)
	if o.Prefix == "" || allowed {
		return nil
	}
	return &PrefixError{Who: o.Name, Prefix: o.Prefix, What: fmt.Sprintf(format, args...)}
}
