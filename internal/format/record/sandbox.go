package record

import (
	"encoding/json"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// Sandbox is the record of one sandbox. A restarted daemon needs it to take over the sandbox's VM.
type Sandbox struct {
	ID          string    `json:"id"`
	SnapshotTag string    `json:"snapshot_tag"` // the snapshot that the sandbox runs from or will be resumed from
	SnapshotID  string    `json:"snapshot_id"`
	Origin      string    `json:"origin,omitempty"` // tag shown to users instead of SnapshotTag
	Hostname    string    `json:"hostname"`
	Owner       string    `json:"owner,omitempty"`
	PID         int       `json:"pid,omitempty"`      // process id of the sandbox's VMM; 0 while suspended
	Protocol    int       `json:"protocol,omitempty"` // control protocol of the sandbox's VMM; 0 while suspended
	Created     time.Time `json:"created"`
	Expires     time.Time `json:"expires,omitzero"` // zero means never
	MemoryBytes uint64    `json:"memory_bytes"`     // RAM of the guest
	Fork        string    `json:"fork,omitempty"`   // ID of the fork request that created the sandbox

	Network Network `json:"network"`
	Limits  Limits  `json:"limits,omitzero"`

	Hooks snapshot.Hooks `json:"hooks,omitzero"` // a record of an earlier version of forkd has none

	Env            map[string]string `json:"env,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	Annotation     json.RawMessage   `json:"annotation,omitempty"`      // data of the API that created the sandbox
	IdleTimeoutNS  int64             `json:"idle_timeout_ns,omitempty"` // if 0, inactivity never suspends the sandbox
	ExpirySuspends bool              `json:"expiry_suspends,omitempty"`
	AutoResume     bool              `json:"auto_resume,omitempty"`
	Strict         bool              `json:"unique_strict,omitempty"`
	Unique         *Unique           `json:"unique,omitempty"` // nil: the agent did not search for generators

	Top      string      `json:"top,omitempty"` // file name of the disk top in the sandbox's data directory
	Tops     int         `json:"tops,omitempty"`
	Frozen   []FrozenTop `json:"frozen,omitempty"`
	Branches []string    `json:"branches,omitempty"` // unused; earlier versions of forkd wrote it
	Count    int         `json:"branch_count,omitempty"`
	Suspends int         `json:"suspends,omitempty"`

	// Volumes has the volumes that the sandbox has mounted. The index of a volume is the number of its
	// slot. A free slot between volumes has the mode MountFree. A record of an earlier version of forkd
	// has no volumes.
	Volumes []Mount `json:"volumes,omitempty"`

	// At is the snapshot of the latest branch or rollback. If there was none, At is nil, and the
	// sandbox is at the snapshot that it was forked from.
	At *snapshot.Ref `json:"at,omitempty"`

	Rebased   *Rebased       `json:"rebased,omitempty"`  // nil: the memory is based on the sandbox's snapshot
	Rebasing  *PendingRebase `json:"rebasing,omitempty"` // set while a rebase is in progress
	Pending   *PendingTop    `json:"pending,omitempty"`  // set while a branch is in progress
	Paused    bool           `json:"paused,omitempty"`
	Restoring bool           `json:"restoring,omitempty"` // set while a rollback is in progress

	// RestoringTo is the snapshot of the rollback in progress. Records of earlier versions of forkd
	// have only Restoring.
	RestoringTo *snapshot.Ref `json:"restoring_to,omitempty"`
}

// Network is the network policy of a sandbox, as text, in the form of a snapshot's manifest.
type Network = snapshot.Network

// Limits bound the host resources of a sandbox's VMM. A zero field is no limit.
type Limits struct {
	MemoryMiB        uint64  `json:"memory_mib,omitempty"`
	SwapMiB          uint64  `json:"swap_mib,omitempty"`
	CPUs             float64 `json:"cpus,omitempty"`
	CPUWeight        uint32  `json:"cpu_weight,omitempty"`
	IOBytesPerSecond uint64  `json:"io_bytes_per_second,omitempty"`
	IOOpsPerSecond   uint64  `json:"io_ops_per_second,omitempty"`
}

// FrozenTop is a former disk top, which is now a read-only layer below the present top.
type FrozenTop struct {
	Name  string `json:"name"`  // file name in the data directory
	Owner string `json:"owner"` // ID that snapshots use for the layer's owner
}

// PendingTop is the new disk top to which a VMM is switching. The VMM has switched if its count of
// swaps exceeds Swaps.
type PendingTop struct {
	Name  string `json:"name"`
	Owner string `json:"owner"` // ID of the owner of the layer that the present top becomes
	Swaps uint64 `json:"swaps"`
	// Volumes has the new top of each volume, by the number of the slot. The name is empty for a
	// free slot. The VMM switches to all new tops at the same instant. The records of earlier
	// versions of forkd do not have Volumes.
	Volumes []string `json:"volumes,omitempty"`
}

// Rebased names the branch that a sandbox's memory is based on. The sandbox has private memory only
// for pages that differ from that branch.
type Rebased struct {
	ID   string `json:"id"`   // ID of the branch's snapshot
	Line int    `json:"line"` // number of consecutive rebases, each onto a branch on top of the previous branch
}

// PendingRebase is the branch onto which a VMM is being rebased. The VMM has been rebased if its
// count of rebases exceeds Rebases.
type PendingRebase struct {
	To      Rebased `json:"to"`
	Rebases uint64  `json:"rebases"`
}

// Unique holds the findings of a sandbox's agent about random number generators in the guest's
// memory.
type Unique struct {
	Reseeded []Generator `json:"reseeded,omitempty"`
	Repeats  []Generator `json:"repeats,omitempty"`
	More     uint32      `json:"more,omitempty"` // number of generators that did not fit into the lists
}

// Generator is one generator of one process in the guest.
type Generator struct {
	PID     uint32 `json:"pid"`
	Program string `json:"program"`
	Library string `json:"library"`
}

// sandboxFile is the content of the record of a sandbox with a VM.
type sandboxFile struct {
	Version int `json:"version"`
	Sandbox
}

// EncodeSandbox returns the bytes of the record of a sandbox with a VM. It refuses a record that
// ParseSandbox would refuse.
func EncodeSandbox(s *Sandbox) ([]byte, error) {
	if err := s.checkLive(); err != nil {
		return nil, err
	}
	return encode(sandboxFile{Version, *s})
}

// ParseSandbox decodes and checks the record of a sandbox with a VM. Errors are *Error with the
// given path. The file at this path is not opened.
func ParseSandbox(path string, p []byte) (*Sandbox, error) {
	var now sandboxFile
	var old sandboxV0
	if err := parse(path, p, &now, &old, func() { now.Sandbox = old.upgrade() }); err != nil {
		return nil, err
	}
	if err := now.checkLive(); err != nil {
		return nil, err.in(path)
	}
	return &now.Sandbox, nil
}

// ProtocolOf returns the version of the control protocol of a sandbox's VMM, from a record that any
// version of forkd has written. The result is the top-level field "protocol" or, in a record
// without a version of its own, "vmm_protocol". If the record lacks the field, the result is 0.
func ProtocolOf(p []byte) int {
	var head struct {
		Protocol   int `json:"protocol"`
		ProtocolV0 int `json:"vmm_protocol"`
	}
	version, err := versionOf(p)
	if err != nil || json.Unmarshal(p, &head) != nil {
		return 0
	}
	if len(version) == 0 {
		return head.ProtocolV0
	}
	return head.Protocol
}

func (s *Sandbox) checkLive() *fault {
	if s.Protocol <= 0 {
		return wrong("protocol", "%d: want the control protocol of the sandbox's VMM; %s", s.Protocol, otherForkd)
	}
	return s.check()
}

// check returns the first rule that a record of a running or suspended sandbox violates.
func (s *Sandbox) check() *fault {
	switch {
	case s.ID == "":
		return wrong("id", "empty: %s", otherForkd)
	case s.SnapshotTag == "":
		return wrong("snapshot_tag", "empty: %s", otherForkd)
	case s.SnapshotID == "":
		return wrong("snapshot_id", "empty: %s", otherForkd)
	case s.MemoryBytes == 0:
		return wrong("memory_bytes", "0: want the memory of the guest; %s", otherForkd)
	case s.IdleTimeoutNS < 0:
		return wrong("idle_timeout_ns", "%d: want 0 or more; %s", s.IdleTimeoutNS, otherForkd)
	}
	if err := s.Network.Check(); err != nil {
		return wrong("network", "%v; %s", err, otherForkd)
	}
	if err := s.Hooks.Check(); err != nil {
		return wrong("hooks", "%v; %s", err, otherForkd)
	}
	return checkMounts(s.Volumes)
}

// suspendedFile is the content of the record of a suspended sandbox.
type suspendedFile struct {
	Version int     `json:"version"`
	Sandbox Sandbox `json:"sandbox"` // SnapshotTag names the suspended state
}

// EncodeSuspended returns the bytes of the record of a suspended sandbox, which has neither a VMM
// nor a disk top. It refuses a record that ParseSuspended would refuse.
func EncodeSuspended(s *Sandbox) ([]byte, error) {
	asleep := *s
	asleep.PID, asleep.Protocol = 0, 0
	if err := asleep.check(); err != nil {
		return nil, err
	}
	return encode(suspendedFile{Version, asleep})
}

// ParseSuspended decodes and checks the record of a suspended sandbox. Errors are *Error with the
// given path. The file at this path is not opened.
func ParseSuspended(path string, p []byte) (*Sandbox, error) {
	var now suspendedFile
	var old suspendedV0
	if err := parse(path, p, &now, &old, func() { now.Sandbox = old.upgrade() }); err != nil {
		return nil, err
	}
	if err := now.Sandbox.check(); err != nil {
		err.field = join("sandbox", err.field)
		return nil, err.in(path)
	}
	return &now.Sandbox, nil
}
