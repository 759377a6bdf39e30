package tenancy

import (
	"context"
	"strings"

	"github.com/forkd/forkd/internal/host/event"
)

// Events returns the events that a principal may see, in order.
type Events struct {
	view   *View
	ring   *event.Ring
	follow *event.Follower
}

// Events returns the events that follow the event with the given id; see event.Ring.Follow.
func (v *View) Events(after string) *Events {
	ring := v.host.manager.Events()
	return &Events{v, ring, ring.Follow(after)}
}

// Place is like event.Follower.Place.
func (e *Events) Place() string { return e.follow.Place() }

// ID is like event.Ring.ID.
func (e *Events) ID(of *event.Event) string { return e.ring.ID(of.Seq) }

// Next is like event.Follower.Next, but skips events that the principal may not see. An event of a
// snapshot does not name a sandbox that the principal may not see.
func (e *Events) Next(ctx context.Context) (next event.Event, missed bool, err error) {
	for {
		next, missed, err = e.follow.Next(ctx)
		if err != nil || missed || !e.view.isEmpty() && e.view.p.Prefix.HasEvent(&next) {
			if next.Sandbox != "" && strings.HasPrefix(string(next.Kind), "snapshot.") && e.view.hides(next.Sandbox) {
				next.Sandbox = ""
			}
			return next, missed, err
		}
	}
}
