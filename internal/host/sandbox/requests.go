package sandbox

import (
	"encoding/json"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/mounts"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/netproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

// BranchRequest asks for a snapshot of a running sandbox.
type BranchRequest struct {
	Tag       string // empty: Branch chooses one
	Mode      vm.BranchMode
	ParentTag string // the request is refused unless the sandbox runs from this snapshot; empty: not checked
	Queue     bool   // whether Branch waits if no place for branches is free; if not, the error is an *admit.BusyError
	NoWait    bool   // for a live branch: return when the sandbox runs again, before the snapshot is complete
	Transient bool   // delete the snapshot when no sandbox runs from it any more
	// the sandbox exists only to build a template, and the branch is that template; stored in the
	// manifest
	Template bool
	Step     bool // the branch is a step of a build, so its tag may be a snapshot.StepTag
	NoHooks  bool // do not run the hook before_branch: the daemon makes the branch for itself
	Replace  bool // replace a snapshot with the same tag, unless sandboxes run from it
	Encrypt  bool // encrypt the snapshot; always done if the snapshot that the sandbox runs from is encrypted

	Labels map[string]string // labels of the snapshot; the same bounds apply as to a sandbox's labels

	// Defaults are the values that the caller has set in the guest's agent since the sandbox was
	// made.
	Defaults snapshot.Defaults
}

// BranchResult describes a new snapshot and what the branch cost. If the snapshot is still being
// written, Figure has only the figures that are known so far.
type BranchResult struct {
	Info   store.Info
	Figure snapshot.Branch
	Shared uint64 // bytes of memory that the sandbox now shares with the snapshot
}

// ForkRequest asks for N children of a snapshot.
type ForkRequest struct {
	Tag            string
	N              int                // 1 to MaxFork
	Env            map[string]string  // added to the snapshot's environment
	HostnamePrefix string             // children get the host name <prefix>-<6 characters of their id>; empty: "sb"
	AllowPartial   bool               // if some children fail, keep the other children
	Limits         *vm.Limits         // limits of each child; nil: the snapshot's limits
	TTL            time.Duration      // time after which children are deleted; 0: never
	IdleTimeout    time.Duration      // time without a request after which children are suspended; 0: never
	ExpirySuspends bool               // after the TTL, suspend children instead of deleting them
	Network        *netclient.Setting // nil: the snapshot's setting
	Hold           netproto.Hold      // which requests of each child are held; the zero value: the snapshot's hold
	Hooks          *snapshot.Hooks    // hooks of each child; nil: the snapshot's hooks
	NoHooks        bool               // do not run the hook after_fork: the daemon makes the children for itself
	hooked         bool               // whether a hook after_fork must run; set by Fork
	Labels         map[string]string  // labels of each child
	Volumes        []mounts.Mount     // volumes that each child mounts; the client must be able to see them
	Strict         unique.Strict      // what happens if the programs in a child repeat random numbers
	Annotation     json.RawMessage    // data of the API that makes the request, stored with each child; may be nil
	Provisional    bool               // if the daemon dies before ForkResult.Keep, the next daemon kills all children

	present *netclient.Setting // network setting of the suspended sandbox that is forked; nil if a snapshot is forked
}

// ForkResult holds the children of a fork, and how long the fork took.
type ForkResult struct {
	Sandboxes   []Info
	Failed      int
	Unconfirmed int
	VMMWall     time.Duration // time from the request until the vCPUs of all children ran
	ForkWall    time.Duration // time from the request until the agents of all children had confirmed
	Keep        func() error  // makes the fork final, see ForkRequest.Provisional

	Kill func(id string) error // kills a child, as Manager.Kill does, even if its labels have changed
}
