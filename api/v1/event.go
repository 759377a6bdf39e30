package v1

import "time"

// EventStream is the media type of events (server-sent events, HTML standard).
const EventStream = "text/event-stream"

// Event describes a change of a sandbox or a snapshot.
type Event struct {
	ID   string    `json:"id"` // position after this event, for Last-Event-ID
	Time time.Time `json:"time"`

	// Type is "sandbox.created" or the like, see docs/api.md. "missed" means that events were lost
	// at this point. The client should then list the objects again.
	Type string `json:"type"`

	// ID of the sandbox that changed or, for a snapshot, of the sandbox that was branched.
	SandboxID string `json:"sandbox_id,omitempty"`
	// Tag of the snapshot that changed. For a change of a sandbox: tag of the snapshot that the
	// sandbox runs from.
	SnapshotTag string            `json:"snapshot_tag,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"` // labels of the sandbox that changed

	Reason string `json:"reason,omitempty"` // one word for the change, or for the way in which the sandbox exited
	Detail string `json:"detail,omitempty"` // Reason as text; may come from the guest

	// Records of the objects that changed, if the client requested records. They may be newer than the
	// event. If a record is missing, either the client must read the object, or the object no
	// longer exists.
	Sandbox  *Sandbox  `json:"sandbox,omitempty"`
	Snapshot *Snapshot `json:"snapshot,omitempty"`
}

// EventMissed is the type of an event that stands for lost events.
const EventMissed = "missed"
