// Package v1 has the messages of the daemon's REST API as Go types, once for both of its sides: the
// daemon's v1 face decodes and answers them, and package client sends them. api/openapi.yaml
// describes the same fields for other languages.
//
// It holds no behaviour: the daemon checks requests and chooses defaults, and a zero field of a
// request means that the default is wanted. Names of Go fields are free to change, those in JSON
// are not. Clients of forkd 0.5 send and read the same messages: fields marked "of forkd 0.5" are
// accepted for them and change nothing.
package v1

// Health is the answer of a daemon that serves.
type Health struct {
	OK bool `json:"ok"`
}

// Ready is the answer to whether a daemon takes requests.
type Ready struct {
	Ready      bool `json:"ready"`
	PoolWarm   bool `json:"pool_warm"`   // every fork finds a waiting VMM
	PoolShells int  `json:"pool_shells"` // VMMs that wait
	PoolWanted int  `json:"pool_wanted"` // of a warm pool; 0 until something was forked

	Reason string `json:"reason,omitempty"` // why it is not ready
}

// Version describes a daemon.
type Version struct {
	Version string `json:"version"`
	API     string `json:"api"`
	Accel   string `json:"accel"` // "kvm", or "tcg" on an emulated host

	Scope string `json:"scope,omitempty"` // of the client that asks: "read", "run" or "admin"

	HostMemoryMiB uint64 `json:"host_memory_mib"` // that the daemon's host has: no VM can have more

	NoKVM         string      `json:"no_kvm,omitempty"`         // why no VM can run on the daemon's host; empty: they can
	LimitsMissing string      `json:"limits_missing,omitempty"` // why limits cannot all be enforced
	Admission     Admission   `json:"admission"`
	LeftAlone     []LeftAlone `json:"left_alone,omitempty"`
}

// LeftAlone is a sandbox of an earlier daemon that this one could not take over when it started,
// and has not touched.
type LeftAlone struct {
	ID     string `json:"id"`
	PID    int    `json:"pid,omitempty"` // of its VMM; 0: it has none, or that is not known
	Reason string `json:"reason"`
}

// Admission says how many sandboxes the daemon takes. 0 is no limit.
type Admission struct {
	MaxSandboxes     int     `json:"max_sandboxes"`   // that have a VM
	VCPUOvercommit   float64 `json:"vcpu_overcommit"` // vCPUs of all sandboxes, per CPU of the host
	MemoryReserveMiB uint64  `json:"memory_reserve_mib"`
	DiskReserveMiB   uint64  `json:"disk_reserve_mib"`
}

// Problem is the media type of an Error (RFC 9457).
const Problem = "application/problem+json"

// Error is the body of every answer that is not a success. Message is for clients of forkd 0.5,
// which know nothing else; the other fields are those of RFC 9457, and Code, Field and Fix beside
// them.
type Error struct {
	Message string `json:"error"`
	Type    string `json:"type"`            // where the code is described
	Title   string `json:"title"`           // the same for all errors of the code
	Status  int    `json:"status"`          // of HTTP
	Detail  string `json:"detail"`          // what is wrong, and as a rule how to put it right; the same as Message
	Code    string `json:"code"`            // never changes its meaning: see docs/errors.md
	Field   string `json:"field,omitempty"` // of the request, that is wrong
	Fix     string `json:"fix"`             // what helps against most errors of the code
}
