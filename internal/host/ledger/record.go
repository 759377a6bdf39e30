// Package ledger keeps what the daemon has to know of its sandboxes when it starts again: the record of
// each, its suspended state, the secrets of its network, and which forks are not finished.
//
// What these mean for a sandbox is package sandbox's business; what they look like on disk is package
// format/record's.
package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/forkd/forkd/internal/atomicfile"
	durable "github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// File is the file that makes a VM directory a sandbox's; without it a restarted daemon ends
// the VM.
const File = "sandbox.json"

// Record is what the daemon keeps of a sandbox: in sandbox.json while it has a VM, and in
// suspended.json of its latest suspended state. See durable.Sandbox for what it is on disk.
type Record struct {
	ID          string
	SnapshotTag string
	SnapshotID  string
	Origin      string // tag to show instead of that of its own suspended state
	Hostname    string
	Owner       string // see owner.Owner
	PID         int
	Created     time.Time
	MemoryBytes uint64 // of its guest's RAM
	Expires     time.Time
	Fork        string // the fork it is a child of; see Fork
	Protocol    int    // vmmproto.Version of its VMM

	ExpirySuspends bool            // and does not delete it
	Annotation     json.RawMessage // of the API that made it; nobody here reads it

	Env         map[string]string // given to it at its fork
	Network     netclient.Setting
	Limits      vm.Limits
	Labels      map[string]string // never changed in place
	IdleTimeout time.Duration     // suspended after so long without a request; 0: never
	AutoResume  bool              // suspended by that: the next request brings it back

	// Its disk is that of its snapshot, the frozen tops, and the top above them. Its memory is that
	// of its snapshot, or of the branch that it was rebased onto, and the private pages above it.
	// Users do not see the latter: for them it runs from its snapshot, and the branch can be deleted.
	Frozen   []durable.FrozenTop
	Top      string // file in its data directory
	Tops     int
	Branches []string // IDs of the snapshots branched from it
	Count    int
	Suspends int // tells a VM from the suspended state that followed it

	At *snapshot.Ref // the snapshot it was last branched to or put back to; nil: the one it was forked from

	Rebased  *durable.Rebased       // nil: it is over its snapshot
	Rebasing *durable.PendingRebase // a rebase is under way

	Unique *agentproto.Unique // what its agent found when it last took up an identity
	Strict bool               // see StrictRefuse

	Paused    bool                // on request; a VM that stands still without it is being suspended
	Pending   *durable.PendingTop // a branch is under way
	Restoring bool                // a rollback is under way: it may not have confirmed
}

// Tag is the snapshot that users know the sandbox to run from.
func (r *Record) Tag() string {
	if r.Origin != "" {
		return r.Origin
	}
	return r.SnapshotTag
}

// Latest returns the snapshot that the sandbox was last branched to or put back to, else the one that it
// was forked from. Its ID is empty for a sandbox that has been suspended since it was forked: then
// the record has only the tag of that.
func (r *Record) Latest() snapshot.Ref {
	switch {
	case r.At != nil:
		return *r.At
	case r.Origin != "":
		return snapshot.Ref{Tag: r.Origin}
	}
	return snapshot.Ref{ID: r.SnapshotID, Tag: r.SnapshotTag}
}

// Write publishes a sandbox's record in one step. It need not survive a reboot: VMs do not
// either.
func Write(dir string, r *Record) error {
	stamped := r.durable()
	stamped.Protocol = vmmproto.Version // a VMM that speaks another has not been taken over
	p, err := durable.EncodeSandbox(stamped)
	if err != nil {
		return fmt.Errorf("write sandbox record: %w", err)
	}
	return atomicfile.Write(filepath.Join(dir, File), p, 0o600)
}

// ProtocolError is the control protocol of a VMM that another build started.
type ProtocolError int

func (e ProtocolError) Error() string {
	return fmt.Sprintf("its VMM speaks control protocol %d, this daemon %d", int(e), vmmproto.Version)
}

// Read returns a sandbox's record. The error of one whose VMM speaks another control protocol
// than this daemon is a ProtocolError, whatever else may be wrong with it.
func Read(dir string) (Record, error) {
	path := filepath.Join(dir, File)
	p, err := os.ReadFile(path)
	if err != nil {
		return Record{}, fmt.Errorf("read sandbox record: %w", err)
	}
	if version := durable.ProtocolOf(p); version != 0 && version != vmmproto.Version {
		return Record{}, ProtocolError(version)
	}
	d, err := durable.ParseSandbox(path, p)
	if err != nil {
		return Record{}, fmt.Errorf("read sandbox record: %w", err)
	}
	return fromDurable(path, d)
}

// SuspendedFile is the file in a sandbox's data directory that holds its latest suspended state. It
// is written when the snapshot of that state is on disk, and stays when the sandbox is brought
// back: should its VM be lost with the host, the sandbox is suspended again, as it was then.
const SuspendedFile = "suspended.json"

// WriteSuspended makes a suspended state durable: the record of the sandbox to bring back, whose
// snapshot is the suspended state.
func WriteSuspended(data string, r *Record) error {
	p, err := durable.EncodeSuspended(r.durable())
	if err != nil {
		return err
	}
	return atomicfile.WriteDurable(filepath.Join(data, SuspendedFile), p, 0o600)
}

// ReadSuspended returns the suspended state in a data directory; os.ErrNotExist if there is none.
func ReadSuspended(data string) (Record, error) {
	path := filepath.Join(data, SuspendedFile)
	p, err := os.ReadFile(path)
	if err != nil {
		return Record{}, err
	}
	d, err := durable.ParseSuspended(path, p)
	if err != nil {
		return Record{}, err
	}
	r, err := fromDurable(path, d)
	if err == nil {
		err = r.AddSecrets(data)
	}
	return r, err
}

// SuspendAs makes the record of a running sandbox that of a suspended one.
func (r *Record) SuspendAs(tag, snapshotID string, auto bool) {
	if at := r.Latest(); r.At == nil && at.ID != "" {
		r.At = &at
	}
	r.Origin, r.SnapshotTag, r.SnapshotID, r.PID, r.AutoResume = r.Tag(), tag, snapshotID, 0, auto
	r.Rebased, r.Rebasing = nil, nil
	r.Frozen, r.Top, r.Pending, r.Paused = nil, "", nil, false // Branches stay: it can still be rolled back to them
	r.Suspends++
}

// UpdateSuspended changes the latest suspended state in a data directory, if there is one.
func UpdateSuspended(data string, change func(*Record)) error {
	last, err := ReadSuspended(data)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	change(&last)
	return WriteSuspended(data, &last)
}
