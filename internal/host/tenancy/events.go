package tenancy

import (
	"context"

	"github.com/forkd/forkd/internal/host/event"
)

// Events follows the events that a principal may see.
type Events struct {
	view   *View
	ring   *event.Ring
	follow *event.Follower
}

// Events starts after the event with this id; see event.Ring.Follow.
func (v *View) Events(after string) *Events {
	ring := v.host.manager.Events()
	return &Events{v, ring, ring.Follow(after)}
}

// Place is event.Follower.Place.
func (e *Events) Place() string { return e.follow.Place() }

// ID is event.Ring.ID.
func (e *Events) ID(of *event.Event) string { return e.ring.ID(of.Seq) }

// Next is event.Follower.Next, but skips the events of others.
func (e *Events) Next(ctx context.Context) (next event.Event, missed bool, err error) {
	for {
		next, missed, err = e.follow.Next(ctx)
		if err != nil || missed || !e.view.isEmpty() && e.view.p.Prefix.HasEvent(&next) {
			return next, missed, err
		}
	}
}
