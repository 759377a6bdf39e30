// Package agentproto is forkd's own part of the host-guest interface: the agent's vsock ports, the
// control protocol, and the fork messages. A fork message prepares a guest for forks, or gives a
// forked guest its new identity, which the guest confirms.
//
// The rest of the guest speaks the E2B protocols (see Envd and CodeInterpreter ports). The control
// protocol is newline-delimited JSON on one vsock stream, one answer per request, without HTTP.
// Fork messages have their own port and binary form (see Forked.Append), because every child copies
// every page that a guest touches while it handles them.
package agentproto

import "time"

// vsock ports.
const (
	ControlPort = 1024 // guest listens; this package's requests
	ReadyPort   = 1025 // host side; the guest connects once and sends Ready as one JSON line
	ForkPort    = 1026 // guest listens; a stream carries one message of Append or AppendPrepare and the answer to it
	// guest listens; a stream carries the number of a guest port, an answer, and then a connection
	// to the port
	DialPort            = 1027
	EnvdPort            = 49983 // guest listens; E2B envd: Connect RPC and /files over HTTP/1.1
	CodeInterpreterPort = 49999 // guest listens; E2B code interpreter: /execute, /contexts over HTTP/1.1
)

// HostCID and GuestCID are the vsock addresses of the two ends (virtio 1.2 §5.10.4: 2 is the host).
const (
	HostCID  = 2
	GuestCID = 3
)

// Version is the agent's protocol version. A daemon refuses an agent with another version.
const Version = 6

// EvalGrace is how long evaluated code may run on after it was interrupted because of its timeout.
// Then its interpreter is killed.
const EvalGrace = 5 * time.Second

// GroupHeader on envd's SendSignal requests that the signal goes to the process group, whatever the
// header's value. It is an extension of forkd.
const GroupHeader = "Forkd-Group"

// TerminalHeader on envd's SendInput and CloseStdin lets input for stdin go to the terminal of a
// process that has one. The end of the input then becomes Ctrl-D. Clients use it when they attach
// to a process, because they cannot know whether it has a terminal. It is an extension of forkd.
const TerminalHeader = "Forkd-Terminal"

// DefaultUserHeader on requests to envd names the account for requests that name none, if the guest
// has it. forkd needs this extension because each of its interfaces has a different default user.
const DefaultUserHeader = "Forkd-Default-User"

// Ready announces that all services of the agent listen and the warm interpreters are up.
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
	OpTrust Op = "trust" // makes the guest's programs trust Certificate as a certificate authority
	OpReset Op = "reset" // closes the guest's TCP connections to the outside, as a fork does

	// OpFreeze freezes the root file system for a disk-only branch: free space is discarded, all
	// data is on the disk, and programs that write wait. OpThaw lets them continue. After 30
	// seconds the file system thaws by itself, and OpThaw fails.
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
