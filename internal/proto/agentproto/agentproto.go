// Package agentproto is the part of the host-guest interface that is forkd's own: the vsock ports
// the agent listens on, the control protocol, and the fork messages by which a guest is prepared
// for forks and a forked one is told of its new identity and confirms it.
//
// Everything else in the guest speaks the E2B protocols (see Envd and CodeInterpreter ports). The
// control protocol is newline-delimited JSON on one vsock stream, one reply per request, without
// HTTP. Fork messages have a port and a binary form of their own (see Forked.Append): every page
// that their handling touches is copied in every child.
package agentproto

import "time"

// vsock ports.
const (
	ControlPort = 1024 // guest listens; this package's requests
	ReadyPort   = 1025 // host side; the guest connects once and sends Ready as one JSON line
	ForkPort    = 1026 // guest listens; a stream carries one message of Append or AppendPrepare and its answer
	// guest listens; a stream carries one port of the guest, an answer, and then a connection to it
	DialPort            = 1027
	EnvdPort            = 49983 // guest listens; E2B envd: Connect RPC and /files over HTTP/1.1
	CodeInterpreterPort = 49999 // guest listens; E2B code interpreter: /execute, /contexts over HTTP/1.1
)

// HostCID and GuestCID are the vsock addresses of the two ends (virtio 1.2 §5.10.4: 2 is the host).
const (
	HostCID  = 2
	GuestCID = 3
)

// Version is the agent's protocol version; a daemon refuses an agent with another one.
const Version = 6

// EvalGrace is how long evaluated code may take to end after its timeout has passed and it was
// interrupted. Then its interpreter is killed.
const EvalGrace = 5 * time.Second

// GroupHeader on envd's SendSignal asks for the signal to go to the process group, whatever its
// value. It is forkd's own.
const GroupHeader = "Forkd-Group"

// TerminalHeader on envd's SendInput and CloseStdin lets input for stdin go to the terminal of a
// process that has one, where its end is Ctrl-D. Whoever attaches to a process cannot know which it
// has. It is forkd's own.
const TerminalHeader = "Forkd-Terminal"

// DefaultUserHeader on requests to envd names the account that they are for if they name none,
// where the guest has such an account. It is forkd's own: each of its interfaces has a default
// user.
const DefaultUserHeader = "Forkd-Default-User"

// Ready is what the agent announces when every service listens and the warm interpreters are up.
type Ready struct {
	Version int      `json:"version"`
	Kernel  string   `json:"kernel"`           // uname -r of the guest
	Warm    []string `json:"warm,omitempty"`   // languages with a warm interpreter, such as "python"
	Errors  []string `json:"errors,omitempty"` // what could not be set up, such as a missing python3
}

// Op selects a control request.
type Op string

// Control requests.
const (
	OpPing  Op = "ping"  // answered with the agent's Ready
	OpTrust Op = "trust" // has the guest's programs trust Certificate as an authority
	OpReset Op = "reset" // ends the guest's TCP connections to the outside, as a fork does: who has them there has gone

	// OpFreeze brings the root file system to rest for a branch of the disk alone: free space is
	// discarded, everything is on the disk, and programs that write wait. OpThaw ends the rest, which
	// ends by itself after 30 seconds; it fails if that has happened.
	OpFreeze Op = "freeze"
	OpThaw   Op = "thaw"
)

// Request is one line to the agent.
type Request struct {
	Op          Op     `json:"op"`
	Certificate string `json:"certificate,omitempty"` // of OpTrust; PEM
}

// Reply is the agent's answer. Error is empty if and only if the request was carried out whole.
type Reply struct {
	Error string `json:"error,omitempty"`
	Ready *Ready `json:"ready,omitempty"`
}
