package sandbox

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/store"
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

// tags begins the tags of snapshots within p, and the names of workspaces: "team-a.".
func (p Prefix) tags() string { return strings.TrimSuffix(string(p), "/") + "." }

// HasTag reports whether a tag, or the name of a workspace, is within p.
func (p Prefix) HasTag(tag string) bool { return p == "" || strings.HasPrefix(tag, p.tags()) }

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
		e.What, e.Who, string(e.Prefix), e.Prefix.tags())
}

// PrefixOf returns the limit of who makes a request.
func PrefixOf(ctx context.Context) Prefix { return ownerOf(ctx).prefix }

// Within refuses something to who has a limit, with a *PrefixError.
func Within(ctx context.Context, allowed bool, format string, args ...any) error {
	o := ownerOf(ctx)
	if o.prefix == "" || allowed {
		return nil
	}
	return &PrefixError{Who: o.name, Prefix: o.prefix, What: fmt.Sprintf(format, args...)}
}

// Reach returns a *NotFoundError for a sandbox that who makes a request may not know of.
func (m *Manager) Reach(ctx context.Context, id string) error {
	p := PrefixOf(ctx)
	if p == "" {
		return nil
	}
	s, err := m.Get(id)
	if err == nil && !p.HasLabels(s.Info().Labels) {
		err = &NotFoundError{ID: id}
	}
	return err
}

// ListFor is List of those sandboxes that who makes a request may know of.
func (m *Manager) ListFor(ctx context.Context) []Info {
	p := PrefixOf(ctx)
	return slices.DeleteFunc(m.List(), func(i Info) bool { return !p.HasLabels(i.Labels) })
}

// SnapshotsFor lists the snapshots that who makes a request may know of, and fork from.
func (m *Manager) SnapshotsFor(ctx context.Context) []store.Info {
	p := PrefixOf(ctx)
	list := slices.DeleteFunc(m.cfg.Store.List(), func(i store.Info) bool { return !m.isWithin(p, i) })
	for n := range list {
		if p != "" && !p.HasTag(list[n].Tag) {
			list[n].Leases = 0 // sandboxes of others
		}
	}
	return list
}

// isWithin reports whether a snapshot is within p: by its tag, as a parent, which is for all, or as
// the state of a sandbox within p. Of one that is not ready nobody knows what it will be.
func (m *Manager) isWithin(p Prefix, i store.Info) bool {
	switch {
	case p.HasTag(i.Tag):
		return true
	case i.Writing, i.Damage != "":
		return false
	case i.Branch == nil:
		return !i.Transient // else it is of a build that is not done
	}
	s, err := m.Get(i.Branch.SandboxID)
	return i.Transient && err == nil && p.HasLabels(s.Info().Labels)
}

// MayUse returns a *store.NotFoundError for a snapshot that who makes a request may not know of.
func (m *Manager) MayUse(ctx context.Context, tag string) error {
	p := PrefixOf(ctx)
	if p.HasTag(tag) {
		return nil
	}
	i, err := m.cfg.Store.Info(tag)
	if err == nil && !m.isWithin(p, i) {
		err = &store.NotFoundError{Tag: tag}
	}
	return err
}

// label checks the labels that an owner gives to children, and adds one by which the owner reaches
// them where none does.
func (o owner) label(labels map[string]string) (map[string]string, error) {
	if o.prefix == "" {
		return labels, nil
	}
	own := make(map[string]string, len(labels)+1)
	for name, value := range labels {
		if !strings.HasPrefix(name, string(o.prefix)) {
			return nil, &PrefixError{Who: o.name, Prefix: o.prefix, What: fmt.Sprintf("labels: %.70q", name)}
		}
		own[name] = value
	}
	if len(own) == 0 {
		own[string(o.prefix)+"owner"] = o.name
	}
	return own, nil
}
