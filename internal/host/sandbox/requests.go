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
	Tag       string // empty: a new one is chosen
	Mode      vm.BranchMode
	ParentTag string // snapshot from which the caller believes the sandbox runs; may be empty
	NoWait    bool   // live: return when the sandbox runs again, before the snapshot is complete
	Transient bool   // delete the snapshot with the last sandbox that runs from it
	Template  bool   // the branch is the template that the sandbox was started to build; marked in the manifest
	Step      bool   // a step of a build: the tag may be a snapshot.StepTag
	Replace   bool   // replace an existing snapshot with the tag, unless sandboxes run from it

	Labels map[string]string // of the snapshot; bounded like those of sandboxes

	// Defaults are those that the caller has given the guest's agent since the sandbox was made.
	Defaults snapshot.Defaults
}

// BranchResult is a new snapshot and its cost. Figure has the figures of the branch; if the branch
// is still being written, those known so far.
type BranchResult struct {
	Info   store.Info
	Figure snapshot.Branch
	Shared uint64 // bytes of the sandbox's memory that it now shares with the snapshot
}

// ForkRequest asks for N children of a snapshot.
type ForkRequest struct {
	Tag            string
	N              int                // 1 to MaxFork
	Env            map[string]string  // added to the snapshot's environment
	HostnamePrefix string             // children are named <prefix>-<6 characters of their id>; empty: "sb"
	AllowPartial   bool               // keep the children that started if others failed
	Limits         *vm.Limits         // of every child; nil: those of the snapshot
	TTL            time.Duration      // children are deleted after this time; 0: never
	IdleTimeout    time.Duration      // children are suspended after this time without a request; 0: never
	ExpirySuspends bool               // suspend children after the TTL instead of deleting them
	Network        *netclient.Setting // nil: the snapshot's
	Labels         map[string]string  // of every child
	Strict         unique.Strict      // of every child
	Annotation     json.RawMessage    // stored with every child for the API that asks; may be nil

	present *netclient.Setting // of the suspended sandbox that is forked; nil: the snapshot's
}

// ForkResult holds the children of a fork and its durations.
type ForkResult struct {
	Sandboxes   []Info
	Failed      int
	Unconfirmed int
	VMMWall     time.Duration // request → the last child's vCPUs entered
	ForkWall    time.Duration // request → the last child's agent confirmed
}
