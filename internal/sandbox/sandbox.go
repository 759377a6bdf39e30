// Package sandbox is what users hold: it bakes parents into snapshots, forks sandboxes from them, and owns every
// sandbox from its first file to its last.
//
// It decides order, limits and what to undo. It does not speak KVM, the guest's protocols or HTTP: VMM processes and
// guest agents come in through the interfaces below, files of snapshots from package store.
//
// The life of a sandbox, written only by Sandbox.transition:
//
//	starting ──▶ running ──▶ stopping ──▶ (gone)
//	    │           │            ▲
//	    │           └──▶ exited ─┤      exited: the VM ended by itself; listed until it is deleted
//	    └────────────────────────┘      never handed out: its agent did not confirm, or the fork failed
package sandbox

import (
	"context"
	"fmt"
	"io"
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
		return s == Starting
	case Exited:
		return s == Running
	case Stopping:
		return s != Stopping
	}
	return false
}

// Sandbox is one VM forked from a snapshot.
type Sandbox struct {
	record record // what survives a restart of the daemon; immutable
	dir    string // run directory of the VM
	data   string // directory of its private disk top
	vmm    VMM
	guest  Guest
	lease  *store.Lease
	timing Timing
	free   func() // gives back everything but the VMM process; called once

	mu      sync.Mutex
	state   State
	exit    vmmproto.Exit
	console []byte // of an exited sandbox
	expiry  *time.Timer
}

// record is the content of sandbox.json.
type record struct {
	ID             string    `json:"id"`
	SnapshotTag    string    `json:"snapshot_tag"`
	SnapshotID     string    `json:"snapshot_id"`
	Hostname       string    `json:"hostname"`
	PID            int       `json:"pid"`
	Created        time.Time `json:"created"`
	MemoryLimitMiB uint64    `json:"memory_limit_mib,omitempty"`
	Expires        time.Time `json:"expires,omitzero"`
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
}

// Info returns the sandbox's description.
func (s *Sandbox) Info() Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.record
	info := Info{ID: r.ID, SnapshotTag: r.SnapshotTag, Hostname: r.Hostname, State: s.state, Created: r.Created,
		Expires: r.Expires, MemoryLimitMiB: r.MemoryLimitMiB, Timing: s.timing}
	if s.state == Exited {
		info.ExitReason, info.ExitDetail = s.exit.Reason.String(), s.exit.Detail
	} else {
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
		return nil, &StateError{ID: s.record.ID, Op: op, State: s.state, Exit: s.exit, Console: lastLines(s.console, 5)}
	}
	return s.guest, nil
}
