// Package sandbox implements sandboxes: it forks them from snapshots, branches them, rolls them
// back and suspends them, and owns every sandbox from its first file to its last.
//
// It decides order, limits and what to undo; state.go draws the life of a sandbox. It does not
// speak KVM, the guest's protocols or HTTP: VMM processes come from vmpool.VMMs and guest agents
// from the interface below. Files of snapshots belong to package store, names for sandboxes to
// package workspace, and parents to package bake.
package sandbox

import (
	"context"
	"encoding/json"
	"net"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/format/console"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/debt"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/idle"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/tally"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// Guest connects to the guest of a running sandbox.
type Guest interface {
	// Forked returns nil findings if the agent has not looked for any.
	Forked(context.Context, agentproto.Forked) (*agentproto.Unique, error)
	Dial(ctx context.Context, port uint32) (net.Conn, error) // to a vsock port
}

// Sandbox belongs to a user under an id, from its fork to its deletion. It can have several VMs
// during its life.
//
// An operation that changes a sandbox holds ops, and also mu while it changes the fields below mu.
// The holder of ops may read these fields without mu; all others need mu. Deletion is the
// exception. It does not wait for ops, and the holder of ops then finds the sandbox stopping.
type Sandbox struct {
	id     string
	data   string        // directory of its private disk tops, and of its suspended state
	ops    chan struct{} // held by a branch, a rollback, a pause…
	usage  *idle.Watch
	since  tally.Tally // its latest branch or rollback
	events *event.Ring // for followers
	freed  sync.Once
	rests  gate.Way // of branches that wait for the guest to come to rest, until a suspension waits
	secret bool     // its memory goes to no disk: see KeepSecret; guarded by ops

	mu      sync.Mutex
	state   State         // written by transition only
	live    *liveVM       // its VM, also after it has ended; nil while suspended
	record  ledger.Record // the part that survives a restart of the daemon
	timing  Timing        // of its latest start
	exit    vm.Exit       // of an exited sandbox
	console console.Text  // of an exited sandbox

	expiry  *time.Timer
	expired bool // its expiry has passed, and it is about to be deleted
	// +checklocks:mu
	timeless bool   // its expiry is suspended: see stopTime
	unpin    func() // unpins the snapshot of its latest suspended state; nil if it has none
	silent   bool   // its VMM has left a request unanswered: see catchUp
	full     bool   // it is paused because the host has no room for its disk

	workspace string // the workspace that it belongs to, see Manager.Hold
}

// Timing holds the durations of a sandbox's start, measured from the request.
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
	StateTag    string // snapshot of a suspended sandbox, from which it is restored
	Hostname    string
	Owner       string // see owner.Owner
	State       State
	PID         int // 0 if the VMM process is gone
	Created     time.Time
	MemoryBytes uint64    // of guest RAM
	Expires     time.Time // zero: never
	Limits      vm.Limits
	Timing      Timing
	ExitReason  string // of an exited sandbox
	ExitDetail  string
	RebasedOnto string // ID of the branch below its memory; empty: none
	Resumable   bool   // it has exited, and Resume restores its latest suspended state
	BranchCount int
	IdleTimeout time.Duration
	Silent      bool   // its VMM did not answer the latest request
	Workspace   string // empty: none
	Network     netclient.Setting
	Labels      map[string]string // read-only
	DiskFull    bool              // it is paused until the host has room for what it writes

	Unique *agentproto.Unique // findings of its agent at its latest start; nil: the agent did not look
	Strict bool               // see unique.Refuse

	ExpirySuspends bool            // on expiry, suspend it instead of deleting it
	Annotation     json.RawMessage // see ForkRequest

	At    snapshot.Ref // the snapshot of its last branch or rollback, else the snapshot it was forked from
	Calls *uint64      // see package tally; nil: unknown
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

// update changes a sandbox's record, on disk first. The caller holds s.ops.
func (s *Sandbox) update(change func(*ledger.Record)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.record
	change(&r)
	if s.state == Exited || s.state == Stopping {
		s.record = r // the sandbox's directory is being removed
		return nil
	}
	if err := ledger.Write(s.live.dir, &r); err != nil {
		return err
	}
	s.record = r
	return nil
}

// updateAll changes a part of the record that the sandbox keeps in every state. It also changes the
// sandbox's suspended state, even an earlier one: if the sandbox returns to that state, the old
// value must not come back. The caller holds s.ops.
func (s *Sandbox) updateAll(change func(*ledger.Record)) error {
	if err := ledger.UpdateSuspended(s.data, change); err != nil {
		return err
	}
	s.mu.Lock()
	suspended := s.live == nil
	if suspended {
		change(&s.record)
	}
	s.mu.Unlock()
	if suspended {
		return nil
	}
	return s.update(change)
}

// liveVM is the VM of a sandbox that is not suspended.
type liveVM struct {
	dir   string // run directory
	vmm   vmpool.VMM
	guest Guest

	// Changed by rollback and rebase, under the lock of the sandbox.
	lease *store.Lease // of the snapshot from which the VM runs; nil if it could not be leased, see leased
	// releases the branch that it was rebased onto; nil if there is none or it could not be leased
	below func()
	onto  func()                  // likewise, for the branch that it may have been rebased onto
	calls context.Context         // for requests to the guest; ends when the guest is taken away
	cut   context.CancelCauseFunc // of calls
	link  *netclient.Link         // to the network

	leave func() // releases its place on the host; nil while it has none of its own
	debts debt.Debts

	kept error // set if the VMM kept a file that it should have closed; guarded by the sandbox's ops
}

// Expiry says when a sandbox expires and what happens then.
type Expiry struct {
	At       time.Time // zero: never
	Suspends bool      // suspend it; otherwise delete it, in any state
}

// after returns e, later by d.
func (e Expiry) after(d time.Duration) Expiry {
	if !e.At.IsZero() {
		e.At = e.At.Add(d)
	}
	return e
}

func (e Expiry) write(r *ledger.Record) { r.Expires, r.ExpirySuspends = e.At.UTC(), e.Suspends }
