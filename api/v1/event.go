package v1

import "time"

// EventStream is the media type of events (server-sent events, by the HTML standard).
const EventStream = "text/event-stream"

// Event is one thing that happened to a sandbox or a snapshot.
type Event struct {
	ID   string    `json:"id"` // of the place behind it, for Last-Event-ID
	Time time.Time `json:"time"`

	// Type is "sandbox.created" or the like, see docs/api.md, or "missed": events were lost between
	// the one before and the next, and what there is should be listed again.
	Type string `json:"type"`

	// that it happened to, or that the snapshot was branched from
	SandboxID   string            `json:"sandbox_id,omitempty"`
	SnapshotTag string            `json:"snapshot_tag,omitempty"` // that it happened to, or that the sandbox runs from
	Labels      map[string]string `json:"labels,omitempty"`       // of the sandbox that it happened to

	Reason string `json:"reason,omitempty"` // what was done, or how it exited, in a word
	Detail string `json:"detail,omitempty"` // the same in words; a guest may have chosen them
}

// EventMissed is the type of an event that stands for those that were lost.
const EventMissed = "missed"
