// Package agentproto is forkd's own part of the protocol between host and guest. It has the agent's
// vsock ports, the control protocol, and the fork messages. A fork message either prepares a guest
// for forks, or gives a forked guest its new identity. The guest confirms each fork message.
//
// All other services of the agent use E2B's protocols (see EnvdPort and CodeInterpreterPort). The
// control protocol is newline-delimited JSON on one vsock stream, with one answer for each request,
// without HTTP. Fork messages have a separate port and a binary form (see Forked.Append). This form
// is cheap to parse. That matters, because every child needs a private copy of each page that its
// guest writes while it handles a fork message.
package agentproto

import "time"

// vsock ports.
const (
	ControlPort = 1024 // guest listens; requests of the control protocol
	ReadyPort   = 1025 // host listens; the guest connects once and sends Ready as one line of JSON
	ForkPort    = 1026 // guest listens; a stream carries one message of Append or AppendPrepare, and the answer
	// Guest listens. A stream carries the number of a guest port, an answer, and then a connection
	// to that port.
	DialPort            = 1027
	EnvdPort            = 49983 // guest listens; E2B envd: Connect RPC and /files over HTTP/1.1
	CodeInterpreterPort = 49999 // guest listens; E2B code interpreter: /execute, /contexts over HTTP/1.1
)

// HostCID and GuestCID are the vsock addresses of the two ends (virtio 1.2 §5.10.4: 2 is the host).
const (
	HostCID  = 2
	GuestCID = 3
)

// Version is the version of the agent's protocol. A daemon refuses an agent with another version.
const Version = 6

// EvalGrace bounds how long evaluated code may take to stop when it is interrupted because of its
// timeout. After this time, the code's interpreter is killed.
const EvalGrace = 5 * time.Second

// GroupHeader is a header of envd's SendSignal, added by forkd. If it is present, with any value,
// the signal is sent to the process group.
const GroupHeader = "Forkd-Group"

// TerminalHeader is a header of envd's SendInput and CloseStdin, added by forkd. With this header,
// envd accepts input for the stdin of a process that has a terminal. envd writes the input to the
// terminal, and turns the end of the input into Ctrl-D. Clients that attach to a process use the
// header, because they cannot know whether the process has a terminal.
const TerminalHeader = "Forkd-Terminal"

// DefaultUserHeader is a header of requests to envd. It names the account to use if the request
// itself names none. It has no effect if the guest does not have this account. The header is an
// extension by forkd, because forkd's APIs have different default users.
const DefaultUserHeader = "Forkd-Default-User"

// Ready says that all services of the agent listen and that the warm interpreters have been
// started.
type Ready struct {
	Version int      `json:"version"`
	Kernel  string   `json:"kernel"`         // uname -r of the guest
	Warm    []string `json:"warm,omitempty"` // languages that have a warm interpreter, such as "python"
	// Services that could not be started, for example because python3 is missing.
	Errors []string `json:"errors,omitempty"`
}

// Op selects a control request.
type Op string

// Control requests.
const (
	OpPing  Op = "ping"  // the answer contains the agent's Ready
	OpTrust Op = "trust" // the guest's programs then trust Certificate as a certificate authority
	OpReset Op = "reset" // closes the guest's TCP connections to other hosts, as after a fork

	// OpFreeze freezes the root file system for a disk-only branch: free space is discarded, all
	// data is written to the disk, and programs that write are blocked. OpThaw ends the freeze. If
	// there is no OpThaw within 30 seconds, the agent thaws the file system, and a later OpThaw
	// returns an error.
	OpFreeze Op = "freeze"
	OpThaw   Op = "thaw"

	OpBusy Op = "busy" // the answer says whether a program holds a lock on BusyFile

	OpMount Op = "mount" // mounts Volume; waits until the volume's slot has a disk
	// OpUnmount writes the data of Volume to its disk, and unmounts it. If programs use the volume,
	// the answer is an error, but the data is on the disk nevertheless.
	OpUnmount Op = "unmount"
)

// BusyFile is the file that a program in the guest locks to keep its sandbox awake.
const BusyFile = "/run/forkd/busy"

// Request is one request of the control protocol, sent as one line.
type Request struct {
	Op          Op      `json:"op"`
	Certificate string  `json:"certificate,omitempty"` // certificate for OpTrust, in PEM
	Volume      *Volume `json:"volume,omitempty"`      // for OpMount and OpUnmount
}

// Reply is the agent's answer. Error is empty only if the request was carried out completely.
type Reply struct {
	Error string `json:"error,omitempty"`
	Ready *Ready `json:"ready,omitempty"`
	Busy  bool   `json:"busy,omitempty"` // answer to OpBusy
}
