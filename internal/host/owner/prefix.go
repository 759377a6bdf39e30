package owner

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"strings"

	"github.com/forkd/forkd/internal/host/event"
)

// Prefix limits an owner to a part of the sandboxes and snapshots. With the prefix "team-a/" the
// owner can see sandboxes with a label whose name begins with "team-a/", and snapshots that belong
// to such sandboxes or to no sandbox. An empty Prefix is no limit.
type Prefix string

// prefixForm permits no '.', and '/' only at the end. So no Prefix is a prefix of another Prefix.
// The same is true for the prefixes of tags, such as "team-a.", which the method Tags returns.
var prefixForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,30}/$`)

// ParsePrefix returns text as a Prefix, or an error if the text is not a valid prefix.
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

// Tags returns the prefix of tags and of names of workspaces, such as "team-a." for "team-a/".
func (p Prefix) Tags() string { return strings.TrimSuffix(string(p), "/") + "." }

// HasTag reports whether a tag, or the name of a workspace, is within p.
func (p Prefix) HasTag(tag string) bool { return p == "" || strings.HasPrefix(tag, p.Tags()) }

// HasEvent reports whether an event is about a sandbox within p, or about a snapshot whose tag is
// within p.
func (p Prefix) HasEvent(e *event.Event) bool {
	if strings.HasPrefix(string(e.Kind), "sandbox.") {
		return p.HasLabels(e.Labels)
	}
	return p.HasTag(e.Snapshot)
}

// PrefixError reports an operation that goes beyond the owner's Prefix. It is used only where the
// error reveals nothing about other owners.
type PrefixError struct {
	Who    string
	Prefix Prefix
	What   string // the operation
}

func (e *PrefixError) Error() string {
	return fmt.Sprintf("%s: %s is limited to labels that begin with %q, and to tags and names of workspaces that begin with %q",
		e.What, e.Who, string(e.Prefix), e.Prefix.Tags())
}

// PrefixOf returns the prefix of the owner in ctx.
func PrefixOf(ctx context.Context) Prefix { return Of(ctx).Prefix }

// Within returns a *PrefixError if the owner in ctx has a prefix and allowed is false.
func Within(ctx context.Context, allowed bool, format string, args ...any) error {
	o := Of(ctx)
	if o.Prefix == "" || allowed {
		return nil
	}
	return &PrefixError{Who: o.Name, Prefix: o.Prefix, What: fmt.Sprintf(format, args...)}
}

// Relabel returns the labels of a sandbox after a change. In a change, the value nil removes the
// label. The client of ctx may change only labels within its Prefix, and must still see the sandbox
// afterwards.
func Relabel(ctx context.Context, labels map[string]string, change map[string]*string) (map[string]string, error) {
	labels = maps.Clone(labels)
	if labels == nil {
		labels = make(map[string]string)
	}
	p := PrefixOf(ctx)
	for name, value := range change {
		if err := Within(ctx, strings.HasPrefix(name, string(p)), "labels: %.70q", name); err != nil {
			return nil, err
		}
		if value == nil {
			delete(labels, name)
		} else {
			labels[name] = *value
		}
	}
	return labels, Within(ctx, p.HasLabels(labels), "labels: without one of these the sandbox would be out of reach")
}
