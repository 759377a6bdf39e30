// Package v1 defines the messages of the daemon's REST API as Go types, for the daemon and for
// clients. The daemon's v1 face decodes requests and sends responses. Package client sends requests
// and decodes responses. api/openapi.yaml describes the same fields for other languages.
//
// The package contains no behaviour. The daemon checks requests and chooses defaults. A zero field
// of a request means the default. Names of Go fields can change, but JSON names must not. Clients
// of forkd 0.5 send and read the same messages. The daemon accepts fields marked "of forkd 0.5"
// from these clients, and the fields have no effect.
package v1

// Health is the response of a running daemon.
type Health struct {
	OK bool `json:"ok"`
}

// Ready reports whether a daemon accepts requests.
type Ready struct {
	Ready      bool `json:"ready"`
	PoolWarm   bool `json:"pool_warm"`   // every fork finds a VMM ready
	PoolShells int  `json:"pool_shells"` // VMMs that are ready
	PoolWanted int  `json:"pool_wanted"` // size of a warm pool; 0 until the first fork

	Reason string `json:"reason,omitempty"` // why the daemon is not ready
}

// Version describes a daemon.
type Version struct {
	Version string `json:"version"`
	API     string `json:"api"`
	Accel   string `json:"accel"` // "kvm", or "tcg" on an emulated host

	Scope string `json:"scope,omitempty"` // scope of the calling client: "read", "run" or "admin"
	Node  string `json:"node,omitempty"`  // name of the daemon's host in a cluster; sandbox ids end in a code for it

	HostMemoryMiB uint64 `json:"host_memory_mib"` // memory of the daemon's host, which is the maximum for a VM

	NoKVM         string      `json:"no_kvm,omitempty"`         // why the daemon's host cannot run VMs; empty if it can
	LimitsMissing string      `json:"limits_missing,omitempty"` // why some limits cannot be enforced
	Admission     Admission   `json:"admission"`
	LeftAlone     []LeftAlone `json:"left_alone,omitempty"`
	SSH           *SSH        `json:"ssh,omitempty"` // nil: the daemon serves no SSH
}

// SSH says how clients reach sandboxes over SSH.
type SSH struct {
	Address string `json:"address"`  // host:port at which the daemon listens
	HostKey string `json:"host_key"` // the daemon's public key, such as "ssh-ed25519 AAAA…"
}

// LeftAlone is a sandbox that an earlier daemon has left, and that the present daemon could not
// take over at its start. The present daemon has not touched the sandbox.
type LeftAlone struct {
	ID     string `json:"id"`
	PID    int    `json:"pid,omitempty"` // process id of the VMM; 0: none, or unknown
	Reason string `json:"reason"`
}

// Admission holds the limits on the number of sandboxes. 0 means no limit.
type Admission struct {
	MaxSandboxes     int     `json:"max_sandboxes"`   // sandboxes with a VM
	VCPUOvercommit   float64 `json:"vcpu_overcommit"` // maximum number of vCPUs of all sandboxes, per CPU of the host
	MemoryReserveMiB uint64  `json:"memory_reserve_mib"`
	DiskReserveMiB   uint64  `json:"disk_reserve_mib"`
}

// Problem is the media type of an Error (RFC 9457).
const Problem = "application/problem+json"

// Error is the body of every error response. Message is the only field that clients of forkd 0.5
// know. The other fields are the fields of RFC 9457, and forkd's own fields Code, Field and Fix.
type Error struct {
	Message string `json:"error"`
	Type    string `json:"type"`            // URL of the code's description
	Title   string `json:"title"`           // the same for all errors with this Code
	Status  int    `json:"status"`          // HTTP status
	Detail  string `json:"detail"`          // what is wrong, and usually how to fix it; the same as Message
	Code    string `json:"code"`            // never changes its meaning: see docs/errors.md
	Field   string `json:"field,omitempty"` // the invalid field of the request
	Fix     string `json:"fix"`             // how to fix most errors with this code

	// For the code apply_conflict: up to 1,000 files that two sandboxes have changed in different
	// ways.
	Conflicts []ApplyFile `json:"conflicts,omitempty"`
}
