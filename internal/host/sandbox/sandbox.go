// Package sandbox implements sandboxes. It forks them from snapshots, branches them, rolls them
// back, suspends and deletes them, and owns all of their files.
//
// The package decides the order of steps, the limits, and what to undo after an error. The
// documentation of package state has a drawing of a sandbox's states. Package sandbox uses other
// packages for the work itself: vmpool.VMMs for VMM processes, the interface Guest below for guest
// agents, and package store for the files of snapshots. Package workspace gives names to sandboxes,
// and package bake makes parents.
//
// The disk of a sandbox consists of layers. The VM writes only to the last layer, the top. A branch
// freezes the top, and the VM continues with a new one. A branch can also rebase the sandbox: its
// unchanged memory pages are then mapped from the branch's memory layer. Such branches, each on top
// of the previous one, are the sandbox's line. A child is handed out when clients may use it.
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
	"github.com/forkd/forkd/internal/host/mounts"
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
	// Forked gives the guest a new identity. It returns what the agent has found, or nil if the
	// agent has not searched for random number generators.
	Forked(context.Context, agentproto.Forked) (*agentproto.Unique, error)
	Dial(ctx context.Context, port uint32) (net.Conn, error) // connects to a vsock port
}

// Sandbox is a sandbox that belongs to a user and has an id, from its fork to its deletion. It can
// have several VMs one after another.
//
// An operation that changes a sandbox holds ops. It also holds mu while it changes the fields below
// mu. The holder of ops may read these fields without mu. All other readers need mu. A deletion
// does not wait for ops. If the sandbox is deleted during an operation, the operation finds the
// sandbox in the state stopping.
type Sandbox struct {
	id     string
	data   string        // directory for the sandbox's private disk tops and its suspended state
	ops    chan struct{} // lock for operations such as branch, rollback and pause; has room for one value
	usage  *idle.Watch
	since  tally.Tally // counts changes since the sandbox's latest branch or rollback
	events *event.Ring // receives the sandbox's events
	freed  sync.Once
	rests  gate.Way // context of branches that wait for the guest to freeze its file system
	mounts mounts.Set
	secret bool // the sandbox's memory must not be on a disk, see KeepSecret; guarded by ops

	detached bool        // see Detach; guarded by ops
	expiring gate.Single // permits one call of suspendExpired at a time

	mu       sync.Mutex
	state    State         // only transition writes it
	live     *liveVM       // the sandbox's VM, which may have ended; nil while suspended
	resuming *liveVM       // VM of a resumption that has not ended; otherwise nil
	record   ledger.Record // data that survives a restart of the daemon
	timing   Timing        // durations of the latest start
	exit     vm.Exit       // how the VM ended, if the sandbox has exited
	ended    time.Time     // when the sandbox exited
	console  console.Text  // last output of the VM, if the sandbox has exited

	expiry  *time.Timer
	expired bool // the sandbox's expiry has passed, so it is about to be deleted
	// +checklocks:mu
	timeless bool   // the sandbox's expiry is stopped, see stopTime
	unpin    func() // unpins the snapshot of the latest suspended state; nil if there is none
	silent   bool   // the VMM has not answered a request, see catchUp
	full     bool   // the sandbox is paused because the host has no room for its disk

	workspace string // the workspace that the sandbox belongs to, see Manager.Hold; empty: none
}

// Timing holds durations of a sandbox's start, each measured from the request.
type Timing struct {
	VMM     time.Duration // time until all vCPUs ran
	Ready   time.Duration // time until the agent had confirmed the new identity, and the hook, if any, had ended
	Restore vmmproto.RestoreResult
	Pooled  bool // the VMM process came from the pool
}

// Info describes a sandbox.
type Info struct {
	ID          string
	SnapshotTag string
	StateID     string // ID of the snapshot that the sandbox runs from; after a suspension, ID of the suspended state
	StateTag    string // tag of the suspended state, if the sandbox is suspended
	Hostname    string
	Owner       string // see owner.Owner
	State       State
	PID         int // process id of the VMM; 0 if there is none
	Created     time.Time
	MemoryBytes uint64    // RAM of the guest
	Expires     time.Time // zero: never
	Limits      vm.Limits
	Timing      Timing
	ExitReason  string // why the VM ended, if the sandbox has exited
	ExitDetail  string
	Ended       time.Time // when the sandbox exited, if it has
	RebasedOnto string    // ID of the branch that the sandbox's memory is based on; empty: none
	Resumable   bool      // the sandbox has exited, and Resume can restore its latest suspended state
	BranchCount int
	IdleTimeout time.Duration
	Silent      bool   // the VMM has not answered the latest request
	Workspace   string // the workspace that the sandbox belongs to; empty: none
	Network     netclient.Setting
	Labels      map[string]string // must not be changed
	Volumes     []mounts.Mount    // must not be changed
	DiskFull    bool              // the sandbox is paused until the host has room for its writes

	Unique *agentproto.Unique // what the agent found at the sandbox's latest start; nil: the agent did not search
	Strict bool               // see unique.Refuse
	Hooks  snapshot.Hooks

	ExpirySuspends bool            // on expiry, the sandbox is suspended and not deleted
	Annotation     json.RawMessage // see ForkRequest

	// snapshot of the latest branch or rollback; if there was none, the snapshot that the sandbox
	// was forked from
	At    snapshot.Ref
	Calls *uint64 // number of calls that may have changed the sandbox since the latest branch; nil: unknown
}

// Info returns the sandbox's description.
func (s *Sandbox) Info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.record
	info := Info{ID: s.id, SnapshotTag: r.Tag(), Hostname: r.Hostname, Owner: r.Owner, State: s.state, Created: r.Created,
		Expires: r.Expires, Limits: r.Limits, Timing: s.timing, StateID: r.SnapshotID,
		BranchCount: r.Count, IdleTimeout: r.IdleTimeout, Silent: s.silent, Workspace: s.workspace, Network: r.Network,
		DiskFull: s.full && s.state == Paused, MemoryBytes: r.MemoryBytes,
		ExpirySuspends: r.ExpirySuspends, Annotation: r.Annotation, Labels: r.Labels, Volumes: mounts.Used(r.Volumes),
		Unique: r.Unique, Strict: r.Strict, Hooks: r.Hooks, At: r.Latest(), Calls: s.since.CallsSince()}
	if s.state == Suspended {
		info.StateTag = r.SnapshotTag
	}
	if r.Rebased != nil {
		info.RebasedOnto = r.Rebased.ID
	}
	if s.state == Exited {
		info.ExitReason, info.ExitDetail, info.Ended = s.exit.Reason.String(), s.exit.Detail, s.ended
		info.Resumable = s.unpin != nil
	} else if s.live != nil {
		info.PID = r.PID
	}
	return info
}

// update changes a sandbox's record, first on disk and then in memory. The caller holds s.ops.
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
// sandbox's suspended state, even an earlier one, so that the old value does not return with that
// state. The caller holds s.ops.
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
	dir   string // the VM's run directory
	vmm   vmpool.VMM
	guest Guest

	// Rollbacks and rebases hold the sandbox's mu while they change these fields.
	lease *store.Lease // lease of the snapshot from which the VM runs; nil if there is none, see leased
	// releases the branch that the VM was rebased onto; nil if there is no such branch, or if the
	// branch could not be leased
	below func()
	onto  func() // releases the branch that a rebase with an unknown outcome may have put below the VM
	// context for requests to the guest; ends when the sandbox is rolled back, suspended or deleted
	calls context.Context
	cut   context.CancelCauseFunc // cancels calls
	link  *netclient.Link         // the VM's connection to the network

	leave func() // frees the VM's place on the host; nil until the VM has a place of its own
	debts debt.Debts
}

// Expiry says when a sandbox expires and what happens then.
type Expiry = ledger.Expiry
