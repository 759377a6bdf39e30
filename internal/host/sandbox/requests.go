package sandbox

import (
	"encoding/json"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/vm"
)

// BranchRequest asks for a snapshot of a running sandbox.
type BranchRequest struct {
	Tag       string // empty: one is chosen
	Mode      vm.BranchMode
	ParentTag string // empty, or the tag that the caller takes for the snapshot the sandbox runs from
	NoWait    bool   // live: return when the sandbox runs again, before the snapshot is complete
	Transient bool   // the snapshot goes with the last sandbox that runs from it
	Template  bool   // the sandbox was there to build a template, which this is: the manifest says so
	Replace   bool   // a snapshot with the tag gives way to this one, unless sandboxes run from it

	Labels map[string]string // of the snapshot; bounded like those of sandboxes
}

// BranchResult is a new snapshot and what it cost. Branch of Info has the figures; of a branch that
// is still being written, those that are known.
type BranchResult struct {
	Info   store.Info
	Figure snapshot.Branch
	Shared uint64 // bytes of the sandbox's memory that became those of the snapshot
}

// ForkRequest asks for N children of a snapshot.
type ForkRequest struct {
	Tag            string
	N              int                // 1 to MaxFork
	Env            map[string]string  // added to the snapshot's
	HostnamePrefix string             // children are called <prefix>-<6 characters of their id>; empty: "sb"
	AllowPartial   bool               // keep the children that started although others failed
	Limits         *vm.Limits         // of every child; nil: those of the snapshot
	TTL            time.Duration      // children are deleted when it has passed; 0: never
	IdleTimeout    time.Duration      // children are suspended after so long without a request; 0: never
	ExpirySuspends bool               // children are suspended instead when the TTL has passed
	Network        *netclient.Setting // nil: that of the snapshot
	Labels         map[string]string  // of every child
	Strict         unique.Strict      // of every child
	Annotation     json.RawMessage    // what the API that asks keeps with every child; nil: nothing

	present *netclient.Setting // of the suspended sandbox that is forked; nil: that of the snapshot
}

// ForkResult is what a fork made and how long it took.
type ForkResult struct {
	Sandboxes   []Info
	Failed      int
	Unconfirmed int
	VMMWall     time.Duration // request → the last child's vCPUs entered
	ForkWall    time.Duration // request → the last child's agent confirmed
}
