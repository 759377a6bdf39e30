// Package sandbox is what users hold: it forks sandboxes from snapshots, branches them, puts them
// back, suspends them, and owns every sandbox from its first file to its last.
//
// It decides order, limits and what to undo; the life of a sandbox is drawn in state.go. It does
// not speak KVM, the guest's protocols or HTTP: VMM processes come in through vmpool.VMMs and guest
// agents through the interface below, and files of snapshots are package store's. Names for
// sandboxes are package workspace's, parents package bake's.
package sandbox

import (
	"context"
	"encoding/json"
	"net"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/format/console"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/idle"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/tally"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// Guest is the way to the guest of a running sandbox.
type Guest interface {
	// Forked returns nil for what was found if the agent has not looked.
	Forked(context.Context, agentproto.Forked) (*agentproto.Unique, error)
	Dial(ctx context.Context, port uint32) (net.Conn, error) // to a vsock port
}

// Sandbox is what a user holds under an id, from its fork to its deletion. Its VM comes and goes,
// it stays.
//
// Who changes a sandbox holds ops, and changes what is below mu under mu as well: the holder of ops
// reads it without, anybody else under mu. Deleting is the exception: it waits for nobody, and who
// holds ops finds the sandbox stopping.
type Sandbox struct {
	id     string
	data   string        // directory of its private disk tops, and of its suspended state
	ops    chan struct{} // held by a branch, a rollback, a pause…
	usage  *idle.Watch
	since  tally.Tally // its latest branch or rollback
	events *event.Ring // whoever follows
	freed  sync.Once

	mu      sync.Mutex
	state   State         // written by transition only
	live    *liveVM       // its VM, also one that has ended; nil while it is suspended
	record  ledger.Record // what survives a restart of the daemon
	timing  Timing        // of its latest start
	exit    vm.Exit       // of an exited sandbox
	console console.Text  // of that, too

	expiry   *time.Timer
	expired  bool   // its time has passed, and it is about to be deleted
	timeless bool   // its time does not pass: see stopTime
	unpin    func() // gives up its latest suspended state; nil if there is none
	silent   bool   // its VMM has not answered a request: see catchUp
	full     bool   // it is paused because the host has no room for its disk

	workspace string // that it belongs to, see Manager.Hold
}

// Timing is how long a sandbox took to start, measured from the request that asked for it.
type Timing struct {
	VMM     time.Duration // all vCPUs entered
	Ready   time.Duration // its agent confirmed its new identity
	Restore vmmproto.RestoreResult
	Pooled  bool // its VMM process was waiting in the pool
}

// Info describes a sandbox.
type Info struct {
	ID          string
	SnapshotTag string
	StateTag    string // the snapshot that a suspended sandbox is brought back from
	Hostname    string
	Owner       string // for whom it was forked; see OwnedBy
	State       State
	PID         int // 0 if the VMM process is gone
	Created     time.Time
	MemoryBytes uint64    // of its guest's RAM
	Expires     time.Time // zero: never
	Limits      vm.Limits
	Timing      Timing
	ExitReason  string // of an exited sandbox
	ExitDetail  string
	RebasedOnto string // ID of the branch that its memory lies on; empty: none
	Resumable   bool   // it has exited, and Resume brings it back from its latest suspended state
	BranchCount int
	IdleTimeout time.Duration
	Silent      bool   // its VMM did not answer the latest request
	Workspace   string // that it belongs to; empty: none
	Network     netclient.Setting
	Labels      map[string]string // not to be changed
	DiskFull    bool              // it is paused until the host has room for what it writes

	Unique *agentproto.Unique // what its agent found at its latest start; nil: it has not looked
	Strict bool               // see StrictRefuse

	ExpirySuspends bool            // it is suspended, and not deleted, when it expires
	Annotation     json.RawMessage // see ForkRequest

	At    snapshot.Ref // the snapshot it was last branched to or put back to, else the one it was forked from
	Calls *uint64      // see package tally; nil: not known
}

// Info returns the sandbox's description.
func (s *Sandbox) Info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.record
	info := Info{ID: s.id, SnapshotTag: r.Tag(), Hostname: r.Hostname, Owner: r.Owner, State: s.state, Created: r.Created,
		Expires: r.Expires, Limits: r.Limits, Timing: s.timing,
		BranchCount: r.Count, IdleTimeout: r.IdleTimeout, Silent: s.silent, Workspace: s.workspace, Network: r.Network,
		DiskFull: s.full && s.state == Paused, MemoryBytes: r.MemoryBytes,
		ExpirySuspends: r.ExpirySuspends, Annotation: r.Annotation, Labels: r.Labels,
		Unique: r.Unique, Strict: r.Strict, At: r.Latest(), Calls: s.since.CallsSince()}
	if s.state == Suspended {
		info.StateTag = r.SnapshotTag
	}
	if r.Rebased != nil {
		info.RebasedOnto = r.Rebased.ID
	}
	if s.state == Exited {
		info.ExitReason, info.ExitDetail = s.exit.Reason.String(), s.exit.Detail
		info.Resumable = s.unpin != nil
	} else if s.live != nil {
		info.PID = r.PID
	}
	return info
}

// withVM returns the record and the VM of a sandbox that runs or is paused, or a *StateError.
func (s *Sandbox) withVM(op string) (ledger.Record, *liveVM, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.state.hasVM() {
		return ledger.Record{}, nil, s.stateErrorLocked(op)
	}
	return s.record, s.live, nil
}

// running returns the VM of a running sandbox and the context of requests to its guest, or a
// *StateError.
func (s *Sandbox) running(op string) (*liveVM, context.Context, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != Running {
		return nil, nil, s.stateErrorLocked(op)
	}
	return s.live, s.live.calls, nil
}

// hasSuspension reports whether there is an earlier suspended state of s.
func (s *Sandbox) hasSuspension() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unpin != nil
}

// leased returns the lease of the snapshot that a VM of s runs from. A VM that was taken over when
// its snapshot could not be used runs without one: it is tried again here.
func (m *Manager) leased(s *Sandbox, op string, v *liveVM) (*store.Lease, error) {
	if v.lease != nil {
		return v.lease, nil
	}
	lease, err := m.acquire(s.record)
	if err != nil {
		return nil, &LeaseError{ID: s.id, Op: op, Tag: s.record.SnapshotTag, Err: err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == Stopping { // what it had is being given back
		lease.Release()
		return nil, s.stateErrorLocked(op)
	}
	v.lease = lease
	return lease, nil
}

// acquire leases the snapshot that a record names, and no other of that tag.
func (m *Manager) acquire(r ledger.Record) (*store.Lease, error) {
	lease, err := m.cfg.Store.Acquire(r.SnapshotTag)
	if err != nil {
		return nil, err
	}
	if lease.Manifest().ID != r.SnapshotID {
		lease.Release()
		return nil, &replacedError{r.SnapshotTag}
	}
	return lease, nil
}
