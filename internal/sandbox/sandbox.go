// Package sandbox is what users hold: it bakes parents into snapshots, forks sandboxes from them, and owns every
// sandbox from its first file to its last.
//
// It decides order, limits and what to undo. It does not speak KVM, the guest's protocols or HTTP: VMM processes and
// guest agents come in through the interfaces below, files of snapshots from package store.
//
// The life of a sandbox, written only by Sandbox.transition:
//
//	starting ──▶ running ◀──▶ paused ──▶ suspended      suspended: saved to a snapshot, without a VM
//	               │ ▲           │           │
//	               ▼ │           │           │
//	             restoring ◀─────┴───────────┘          restoring: being rolled back or brought back
//
// Each of them may become exited (the VM ended by itself; listed until it is deleted) and stopping, after which it is
// gone. A sandbox whose agent did not confirm its new identity is never running.
package sandbox

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/agentclient"
	"github.com/forkd/forkd/internal/agentproto"
	"github.com/forkd/forkd/internal/store"
	"github.com/forkd/forkd/internal/vmm/vmmclient"
	"github.com/forkd/forkd/internal/vmm/vmmproto"
)

// VMM is one VM process, as *vmmclient.VMM describes it.
type VMM interface {
	PID() int
	Boot(context.Context, vmmproto.Boot, vmmclient.BootFiles) error
	Restore(context.Context, vmmproto.Restore, vmmclient.RestoreFiles) (vmmproto.RestoreResult, error)
	Resume(context.Context) error
	Pause(context.Context) error
	Save(context.Context, vmmproto.Save, vmmclient.SaveFiles) (vmmproto.SaveResult, error)
	Branch(context.Context, vmmproto.Branch, vmmclient.BranchFiles) (vmmproto.BranchResult, error)
	WaitCopied(ctx context.Context, serial uint64) (vmmproto.Branched, error)
	Merge(context.Context, vmmproto.Merge, *os.File) error
	Stats(context.Context) (vmmproto.Stats, error)
	Conns() <-chan vmmclient.Conn
	Done() <-chan struct{}
	Exit() vmmproto.Exit
	Kill() error
}

// ShellConfig names a VM process to start.
type ShellConfig struct {
	ID      string
	Dir     string // made by Spawn: sockets and console of this VM
	Machine vmmproto.Machine
}

// VMMs starts and finds VM processes.
type VMMs interface {
	// Spawn starts a process and creates its VM, with nothing running: a shell.
	Spawn(context.Context, ShellConfig) (VMM, error)
	// Attach finds the process of dir again after a restart of the daemon.
	Attach(id, dir string) (VMM, error)
	// Console returns the last output of the VM of dir, also after its process has ended.
	Console(dir string) ([]byte, error)
}

// Guest is the agent in a running sandbox.
type Guest interface {
	Ping(context.Context) (agentproto.Ready, error)
	Forked(context.Context, agentproto.Forked) error
	Sync(context.Context) error
	Exec(context.Context, agentclient.ExecRequest) (agentclient.ExecResult, error)
	Eval(ctx context.Context, code string, opts agentclient.EvalOptions) (agentclient.EvalResult, error)
	ReadFile(ctx context.Context, path, user string) (io.ReadCloser, error)
	WriteFile(ctx context.Context, path, user string, content io.Reader) error
}

// State says where a sandbox is in its life.
type State int

// The states; the package comment draws the transitions.
const (
	Starting State = iota
	Running
	Paused
	Suspended
	Restoring
	Exited
	Stopping
)

// String returns the state as the API spells it.
func (s State) String() string {
	switch s {
	case Starting:
		return "starting"
	case Running:
		return "running"
	case Paused:
		return "paused"
	case Suspended:
		return "suspended"
	case Restoring:
		return "restoring"
	case Exited:
		return "exited"
	case Stopping:
		return "stopping"
	}
	return fmt.Sprintf("state %d", int(s))
}

// mayFollow reports whether a sandbox in state s may enter next.
func (s State) mayFollow(next State) bool {
	switch next {
	case Running:
		return s == Starting || s == Paused || s == Restoring
	case Paused:
		return s == Running || s == Restoring
	case Restoring:
		return s == Running || s == Paused || s == Suspended
	case Suspended:
		return s == Starting || s == Restoring
	case Exited:
		return s == Running || s == Paused || s == Restoring
	case Stopping:
		return s != Stopping
	}
	return false
}

// Sandbox is one VM forked from a snapshot, or a suspended one. Suspending and bringing back replace the Sandbox of an
// id by another one.
type Sandbox struct {
	dir    string // run directory of the VM
	data   string // directory of its private disk tops
	vmm    VMM    // nil if suspended
	guest  Guest
	timing Timing
	free   func()        // gives back everything but the VMM process; called once
	ops    chan struct{} // held by a branch, a rollback, a pause…; shared by all Sandboxes of an id
	usage  *usage

	mu      sync.Mutex
	record  record // what survives a restart of the daemon; its ID never changes
	lease   *store.Lease
	state   State
	exit    vmmproto.Exit
	console []byte // of an exited sandbox
	expiry  *time.Timer
	unpin   func() // gives up its latest suspended state; nil if there is none
	silent  bool   // its VMM has not answered a request: see catchUp
}

// record is the content of sandbox.json.
type record struct {
	ID             string    `json:"id"`
	SnapshotTag    string    `json:"snapshot_tag"`
	SnapshotID     string    `json:"snapshot_id"`
	Origin         string    `json:"origin,omitempty"` // tag to show instead of that of its own suspended state
	Hostname       string    `json:"hostname"`
	PID            int       `json:"pid"`
	Created        time.Time `json:"created"`
	MemoryLimitMiB uint64    `json:"memory_limit_mib,omitempty"`
	Expires        time.Time `json:"expires,omitzero"`

	Env         map[string]string `json:"env,omitempty"`          // given to it at its fork
	IdleTimeout time.Duration     `json:"idle_timeout,omitempty"` // suspended after so long without a request; 0: never
	AutoResume  bool              `json:"auto_resume,omitempty"`  // suspended by that: the next request brings it back

	// Its disk is that of its snapshot, the frozen tops, and the top above them. Memory needs no list: what it has
	// written since the snapshot is cumulative.
	Frozen   []frozenTop `json:"frozen,omitempty"`
	Top      string      `json:"top,omitempty"` // file in its data directory
	Tops     int         `json:"tops,omitempty"`
	Branches []string    `json:"branches,omitempty"` // IDs of the snapshots branched from it since its snapshot
	Count    int         `json:"branch_count,omitempty"`
	Suspends int         `json:"suspends,omitempty"` // tells a VM from the suspended state that followed it

	Paused    bool        `json:"paused,omitempty"`    // on request; a VM that stands still without it is being suspended
	Pending   *pendingTop `json:"pending,omitempty"`   // a branch is under way
	Restoring bool        `json:"restoring,omitempty"` // a rollback is under way: it may not have confirmed
}

// tag is the snapshot that users know the sandbox to run from.
func (r *record) tag() string {
	if r.Origin != "" {
		return r.Origin
	}
	return r.SnapshotTag
}

// frozenTop is a former disk top, below the present one.
type frozenTop struct {
	Name  string `json:"name"`  // file in the data directory
	Owner string `json:"owner"` // the ID that the layer has in snapshots
}

// pendingTop is a top that a VMM may have put onto the disk by now: it has if it has counted more swaps than Swaps.
type pendingTop struct {
	Name  string `json:"name"`
	Owner string `json:"owner"` // of the layer that the present top becomes
	Swaps uint64 `json:"swaps"`
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
	ID             string
	SnapshotTag    string
	Hostname       string
	State          State
	PID            int // 0 if the VMM process is gone
	Created        time.Time
	Expires        time.Time // zero: never
	MemoryLimitMiB uint64
	Timing         Timing
	ExitReason     string // of an exited sandbox
	ExitDetail     string
	BranchCount    int
	IdleTimeout    time.Duration
	Silent         bool // its VMM did not answer the latest request
}

// Info returns the sandbox's description.
func (s *Sandbox) Info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.record
	info := Info{ID: r.ID, SnapshotTag: r.tag(), Hostname: r.Hostname, State: s.state, Created: r.Created,
		Expires: r.Expires, MemoryLimitMiB: r.MemoryLimitMiB, Timing: s.timing,
		BranchCount: r.Count, IdleTimeout: r.IdleTimeout, Silent: s.silent}
	if s.state == Exited {
		info.ExitReason, info.ExitDetail = s.exit.Reason.String(), s.exit.Detail
	} else if s.vmm != nil {
		info.PID = r.PID
	}
	return info
}

// transition enters state next and reports whether that was allowed.
func (s *Sandbox) transition(next State) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.state.mayFollow(next) {
		return false
	}
	s.state = next
	return true
}

// running returns the guest of a running sandbox, or a *StateError.
func (s *Sandbox) running(op string) (Guest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != Running {
		return nil, &StateError{ID: s.record.ID, Op: op, State: s.state, Exit: s.exit, Console: consoleTail(s.console, 5)}
	}
	return s.guest, nil
}
