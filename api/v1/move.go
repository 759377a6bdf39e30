package v1

import "encoding/json"

// NodeHeader is the header that names a node. In a request to a router, this is the node that gets
// the request. In an answer with the code sandbox_moved, it is the node that has the sandbox.
const NodeHeader = "Forkd-Node"

// Moves lists the sandboxes that are moving between hosts, or have moved. In a daemon's answer,
// Nodes has one element, for the daemon's host. In a router's answer, it has one for each node.
type Moves struct {
	Nodes []NodeMoves `json:"nodes"`
}

// NodeMoves are the moves of one host.
type NodeMoves struct {
	Node    string   `json:"node"`              // its name; empty if it has none
	URL     string   `json:"url,omitempty"`     // address of its daemon; only a router knows it
	Error   string   `json:"error,omitempty"`   // why its moves are unknown, in the answer of a router
	Moves   []Move   `json:"moves"`             // sandboxes that are moving, or have moved away
	Foreign []string `json:"foreign,omitempty"` // ids of its sandboxes that another host has made
}

// Move is a sandbox that is moving from one host to another, or has moved.
type Move struct {
	ID string `json:"id"`
	// Phase is "leaving", "left" or "gone" on the host that the sandbox leaves, and "arriving" on
	// the host that it moves to. "here" means that the sandbox is an ordinary sandbox of this host.
	// "none" means that this host has neither the sandbox nor a record of its move.
	Phase string `json:"phase"`
	Node  string `json:"node,omitempty"`  // name of the other host
	Since int64  `json:"since,omitempty"` // in seconds since 1970
	// Departure is the answer to the step "leave". The step "arrive" needs it.
	Departure *Departure `json:"departure,omitempty"`
	Key       string     `json:"key,omitempty"` // answer to the step "commit"; the step "activate" needs it
}

// Departure has what the new host of a moving sandbox must know. Clients pass it on unchanged.
type Departure struct {
	From     string          `json:"from"`                // name of the host that the sandbox leaves
	To       string          `json:"to"`                  // name of the host that the sandbox moves to
	Tag      string          `json:"snapshot_tag"`        // the snapshot with its suspended state
	Lock     string          `json:"lock"`                // digest of the key
	Record   json.RawMessage `json:"record"`              // record of the suspended sandbox, see docs/records.md
	TokenKey string          `json:"token_key,omitempty"` // digests of the keys of its tokens and URLs
	LinkKey  string          `json:"link_key,omitempty"`
}

// MoveStep is one step of a move. The daemon of the host that the sandbox leaves takes the steps
// leave, commit and free, and the daemon of the host that it moves to takes arrive and activate. Both take
// cancel.
type MoveStep struct {
	Step      string     `json:"step"`
	Node      string     `json:"node,omitempty"`      // leave: name of the host that the sandbox moves to
	Departure *Departure `json:"departure,omitempty"` // arrive
	// Registry is for the step arrive: the HOST:PORT of the daemon that the sandbox leaves.
	Registry     string                  `json:"registry,omitempty"`
	RegistryAuth map[string]RegistryAuth `json:"registry_auth,omitempty"` // arrive: login there, see PullRequest
	Key          string                  `json:"key,omitempty"`           // activate
}
