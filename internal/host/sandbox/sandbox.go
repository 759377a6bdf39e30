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
	"github.com/forkd/forkd/internal/host/vmpool"
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
	Owner       string // for whom it was forked; see owner.Owner
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
	Strict bool               // see unique.Refuse

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

// liveVM is the VM of a sandbox that is not suspended.
type liveVM struct {
	dir   string // run directory
	vmm   vmpool.VMM
	guest Guest

	// Changed by rollback and rebase, under the lock of the sandbox.
	lease *store.Lease // of the snapshot that the VM runs from; nil if that could not be had, see leased
	// ends following the branch that it was rebased onto; nil: none, or that could not be had
	below func()
	onto  func()                  // likewise, of that which it may have been rebased onto
	calls context.Context         // of the requests to the guest; ends when the guest is taken from under them
	cut   context.CancelCauseFunc // of calls
	link  *netclient.Link         // to the network

	leave func() // gives up its place on the host; nil while it has none of its own
	debts debts

	kept error // that the VMM has kept a file which it was to close; under the operation lock of the sandbox
}

// Expiry says when the time of a sandbox has passed, and what becomes of it then.
type Expiry struct {
	At       time.Time // zero: never
	Suspends bool      // it is suspended; else it is deleted, in whatever state it is
}

// after returns e with so much more time.
func (e Expiry) after(d time.Duration) Expiry {
	if !e.At.IsZero() {
		e.At = e.At.Add(d)
	}
	return e
}

func (e Expiry) write(r *ledger.Record) { r.Expires, r.ExpirySuspends = e.At.UTC(), e.Suspends }
