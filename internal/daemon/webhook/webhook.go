// Package webhook sends the events of this host to servers of the operator's choice. Each message is
// signed as in the Standard Webhooks specification (https://www.standardwebhooks.com).
//
// Each webhook follows the event ring by itself and sends one message at a time, in order. So a
// slow server delays only its own messages, and a webhook stores only the message that it is
// sending. A webhook that is too slow for the ring loses events, and then sends a message of the
// type "missed".
//
// The ring is in memory. So a daemon cannot know which events of an earlier daemon were delivered,
// and the first message of each webhook after the start has the type "missed".
package webhook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/loglimit"
)

// Counter counts for the metrics.
type Counter interface {
	// WebhookSent counts a request to a server, by whether the server accepted the message.
	WebhookSent(accepted bool)
	// WebhookLost counts a loss of events by its reason: lostOverflow or lostGivenUp.
	WebhookLost(reason string)
}

// Reasons of messages of the type "missed".
const (
	lostStart    = "start"    // the daemon has started
	lostOverflow = "overflow" // the ring dropped events that had not been sent
	lostGivenUp  = "given_up" // the server did not accept an event in time
)

// Set holds the webhooks of a daemon. A nil Set has none.
type Set struct {
	hooks []*hook
}

// hook is one webhook. Only one goroutine uses it.
type hook struct {
	settings
	secrets *secrets
	client  *http.Client
	agent   string // value of the header User-Agent
	pace    pace
	counts  Counter
	log     *slog.Logger
	lines   *loglimit.Lines // limits lines about events, which clients can cause

	failing bool      // the last request failed
	losses  int       // number of messages of the type "missed"
	refused time.Time // when the server last refused an event; zero: never
}

// Open reads a configuration file; see parse. If path is empty, there are no webhooks.
func Open(path, version string, log *slog.Logger) (*Set, error) {
	if path == "" {
		return nil, nil
	}
	list, err := load(path)
	if err != nil {
		return nil, err
	}
	set := &Set{}
	for _, s := range list {
		h := &hook{settings: s, agent: "forkd/" + version, pace: usual(), log: log.With("webhook", s.Name),
			lines: loglimit.New(loglimit.PerSecond, loglimit.AtOnce)}
		if h.secrets, err = openSecrets(s.SecretFile, h.log); err != nil {
			return nil, s.wrap("secret_file", err)
		}
		if h.client, err = newClient(&h.settings); err != nil {
			return nil, s.wrap("ca_file", err)
		}
		set.hooks = append(set.hooks, h)
	}
	return set, nil
}

// Events returns the events of this host in order. It is a tenancy.Events that begins at an unknown
// place, so that Next first reports missed events.
type Events interface {
	Next(ctx context.Context) (e event.Event, missed bool, err error)
	Place() string
	ID(e *event.Event) string
}

// Run sends events until ctx ends. It calls follow once for each webhook.
func (s *Set) Run(ctx context.Context, follow func() Events, counts Counter) {
	if s == nil {
		return
	}
	var running sync.WaitGroup
	defer running.Wait()
	for _, h := range s.hooks {
		h.counts = counts
		running.Go(func() {
			defer h.client.CloseIdleConnections()
			if err := h.run(ctx, follow()); errors.Is(err, errGone) {
				h.log.Error("the server wants no more events: no event is sent until the daemon restarts", "error", err)
			}
		})
	}
}

// run sends events until ctx ends, or until the server wants no more messages.
func (h *hook) run(ctx context.Context, events Events) error {
	reason := lostStart
	for {
		e, dropped, err := events.Next(ctx)
		switch {
		case err != nil:
		case dropped:
			if reason != lostStart {
				h.counts.WebhookLost(reason)
			}
			err = h.deliver(ctx, h.missed(events.Place(), reason), 0)
			reason = lostOverflow
		case h.wants(&e):
			err = h.deliverEvent(ctx, messageOf(events.ID(&e), &e), events.Place())
		}
		if err != nil {
			return err
		}
	}
}

// deliverEvent sends an event, whose place in the ring is given. If the server does not accept the
// event, deliverEvent sends a message that says that the event is missing.
func (h *hook) deliverEvent(ctx context.Context, m message, place string) error {
	err := h.deliver(ctx, m, h.pace.giveUp)
	if errors.Is(err, errRefused) {
		// A server with a temporary defect refuses every message. So the event is sent again after
		// the server has accepted another message.
		h.refused = time.Now()
		if err := h.deliver(ctx, h.missed(place, lostGivenUp), 0); err != nil {
			return err
		}
		if err = h.deliver(ctx, m, h.pace.giveUp); !errors.Is(err, errRefused) && !errors.Is(err, errGivenUp) {
			return err
		}
		h.giveUp(m)
		return nil
	}
	if errors.Is(err, errGivenUp) {
		h.giveUp(m)
		err = h.deliver(ctx, h.missed(place, lostGivenUp), 0)
	}
	return err
}

func (h *hook) giveUp(m message) {
	h.lines.Log(h.log, slog.LevelError, "an event was not delivered, and is given up", "event", m.id)
	h.counts.WebhookLost(lostGivenUp)
}

// wants reports whether the webhook sends an event.
func (s *settings) wants(e *event.Event) bool {
	return (len(s.Types) == 0 || slices.Contains(s.Types, string(e.Kind))) && s.Labels.Match(e.Labels)
}

// message is a message to a server.
type message struct {
	id   string // the same for each attempt to send the message, and different for each message
	body apiv1.Event
}

// maxDetail is the maximum size, in bytes, of the text in a message that may come from a guest. The
// other fields of a message have bounds of their own, so a message is smaller than 128 KiB.
const maxDetail = 8 << 10

func messageOf(id string, e *event.Event) message {
	body := face.EventOf(id, e)
	if len(body.Detail) > maxDetail {
		body.Detail = body.Detail[:maxDetail]
	}
	return message{id, body}
}

// missed returns the message that says that events before a place may be missing. Its id differs
// from the ids of events and of other such messages, because servers ignore ids that they have
// received before.
func (h *hook) missed(place, reason string) message {
	h.losses++
	body := face.MissedEvent(place)
	body.Reason = reason
	return message{fmt.Sprintf("missed-%s-%d", place, h.losses), body}
}

// pace has the times of a webhook.
type pace struct {
	timeout     time.Duration // time limit of one request
	first, most time.Duration // delay before the second attempt, and maximum delay before a later attempt
	giveUp      time.Duration // time after which an event is no longer sent
}

// usual returns the times of a webhook outside of tests.
func usual() pace {
	return pace{timeout: 15 * time.Second, first: time.Second, most: 5 * time.Minute, giveUp: time.Hour}
}
