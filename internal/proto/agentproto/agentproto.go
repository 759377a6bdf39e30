// Package agentproto is forkd's own part of the host-guest interface: the agent's vsock ports, the
// control protocol, and the fork messages. A fork message prepares a guest for forks, or tells a
// forked guest its new identity, which it confirms.
//
// The rest of the guest speaks the E2B protocols (see Envd and CodeInterpreter ports). The control
// protocol is newline-delimited JSON on one vsock stream, one answer per request, without HTTP.
// Fork messages have their own port and binary form (see Forked.Append), because every page that
// their handling touches is copied in every child.
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

// GroupHeader on envd's SendSignal requests that the signal goes to the process group, whatever the
// header's value. It is forkd's own.
const GroupHeader = "Forkd-Group"

// TerminalHeader on envd's SendInput and CloseStdin permits input for stdin to go to the terminal
// of a process that has one, where its end is Ctrl-D. A client that attaches to a process cannot
// know which it has. It is forkd's own.
const TerminalHeader = "Forkd-Terminal"

// DefaultUserHeader on requests to envd names the account for requests that name none, if the guest
// has it. It is forkd's own, because each of its interfaces has a different default user.
const DefaultUserHeader = "Forkd-Default-User"

// Ready is the agent's announcement that every service listens and the warm interpreters are up.
type Ready struct {
	Version int      `json:"version"`
	Kernel  string   `json:"kernel"`           // uname -r of the guest
	Warm    []string `json:"warm,omitempty"`   // languages with a warm interpreter, such as "python"
	Errors  []string `json:"errors,omitempty"` // parts that could not be set up, such as a missing python3
}

// Op selects a control request.
type Op string

// Control requests.
const (
	OpPing  Op = "ping"  // the answer is the agent's Ready
	OpTrust Op = "trust" // makes the guest's programs trust Certificate as an authority
	OpReset Op = "reset" // closes the guest's TCP connections to the outside, as a fork does

	// OpFreeze brings the root file system to rest for a disk-only branch: free space is discarded,
	// everything is on the disk, and programs that write wait. OpThaw ends the rest. The rest ends
	// by itself after 30 seconds; then OpThaw fails.
	OpFreeze Op = "freeze"
	OpThaw   Op = "thaw"
)

// Request is one line to the agent.
type Request struct {
	Op          Op     `json:"op"`
	Certificate string `json:"certificate,omitempty"` // for OpTrust; PEM
}

// Reply is the agent's answer. Error is empty if and only if the request was carried out
// completely.
type Reply struct {
	Error string `json:"error,omitempty"`
	Ready *Ready `json:"ready,omitempty"`
}
