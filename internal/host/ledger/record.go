// Package ledger stores what the daemon must know about its sandboxes after a restart: for each
// sandbox its record, its suspended state, and the secrets of its network. The package also stores
// the forks that are not finished. A fork is finished when its children are handed out, that is,
// when clients may use them. A fork is provisional if its creator decides later whether the
// children are kept.
//
// Package sandbox interprets the records. Package format/record defines their form on disk.
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

// File is the file name of a sandbox's record. If the directory of a VM has no record, a restarted
// daemon kills the VM.
const File = "sandbox.json"

// Record is the daemon's record of a sandbox. The file sandbox.json has the record of a sandbox
// with a VM; the file suspended.json has the record of its latest suspended state. durable.Sandbox
// is the form of a record on disk.
type Record struct {
	ID          string
	SnapshotTag string
	SnapshotID  string
	Origin      string // tag shown to users instead of the tag of the sandbox's own suspended state
	Hostname    string
	Owner       string // see owner.Owner
	PID         int
	Created     time.Time
	MemoryBytes uint64 // RAM of the guest
	Expires     time.Time
	Fork        string // ID of the fork that created the sandbox; see Fork
	Protocol    int    // version of vmmproto that the sandbox's VMM uses

	ExpirySuspends bool            // on expiry, the sandbox is suspended and not deleted
	Annotation     json.RawMessage // data of the API that created the sandbox; not interpreted here

	Env         map[string]string // environment that the fork gave the sandbox
	Network     netclient.Setting
	Limits      vm.Limits
	Hooks       snapshot.Hooks
	Labels      map[string]string // the map is never changed
	IdleTimeout time.Duration     // time without a request after which the sandbox is suspended; 0: never
	AutoResume  bool              // the sandbox was suspended because it was idle; the next request resumes it

	// The disk consists of the snapshot's layers, the frozen tops, and the top. The memory consists
	// of the snapshot's layers (or the layers of the branch that the sandbox was rebased onto) and
	// private pages above them. Users can delete that branch. In their view, the sandbox still runs
	// from its snapshot.
	Frozen   []durable.FrozenTop
	Top      string // file name in the data directory
	Tops     int
	Count    int
	Suspends int // number of suspensions; tells whether a suspended state is newer than the record of a VM

	Volumes []durable.Mount // volumes that the sandbox has mounted; the index of a volume is the number of its slot

	At *snapshot.Ref // snapshot of the latest branch or rollback; nil: the snapshot that the sandbox was forked from

	Rebased  *durable.Rebased       // nil: the memory is based on the sandbox's snapshot
	Rebasing *durable.PendingRebase // not nil while a rebase is in progress

	Unique *agentproto.Unique // what the agent found when the sandbox last got an identity
	Strict bool               // whether the setting of the sandbox is unique.Refuse

	Paused    bool                // set by a client's pause; false while a suspension pauses the VM
	Pending   *durable.PendingTop // not nil while a branch is in progress
	Restoring bool                // a rollback is in progress, so the guest may not have confirmed its identity

	RestoringTo *snapshot.Ref // snapshot of the rollback in progress; nil in a record of an earlier version of forkd
}

// Tag returns the tag of the snapshot from which, in the view of users, the sandbox runs.
func (r *Record) Tag() string {
	if r.Origin != "" {
		return r.Origin
	}
	return r.SnapshotTag
}

// Latest returns the snapshot of the sandbox's latest branch or rollback. If there was none, Latest
// returns the snapshot that the sandbox was forked from. After a suspension, the record has only
// the tag of that snapshot, so the ID in the result is empty.
func (r *Record) Latest() snapshot.Ref {
	switch {
	case r.At != nil:
		return *r.At
	case r.Origin != "":
		return snapshot.Ref{Tag: r.Origin}
	}
	return snapshot.Ref{ID: r.SnapshotID, Tag: r.SnapshotTag}
}

// Write stores a sandbox's record atomically. It does not sync the file, because after a reboot the
// VM no longer exists, and the record is useless.
func Write(dir string, r *Record) error {
	stamped := r.durable()
	stamped.Protocol = vmmproto.Version // VMMs with another version are not taken over
	p, err := durable.EncodeSandbox(stamped)
	if err != nil {
		return fmt.Errorf("write sandbox record: %w", err)
	}
	return atomicfile.Write(filepath.Join(dir, File), p, 0o600)
}

// ProtocolError is the protocol version of a VMM that a different build has started.
type ProtocolError int

func (e ProtocolError) Error() string {
	return fmt.Sprintf("its VMM speaks control protocol %d, this daemon %d", int(e), vmmproto.Version)
}

// Read returns a sandbox's record. If the sandbox's VMM uses a different version of the control
// protocol than this daemon, the error is a ProtocolError, whatever else is wrong with the record.
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

// SuspendedFile is the name of the file with the latest suspended state of a sandbox, in the
// sandbox's data directory. The file is written when the snapshot of that state is on disk. The
// file stays when the sandbox is resumed: if the VM is then lost because the host crashes, the
// sandbox returns to that state.
const SuspendedFile = "suspended.json"

// WriteSuspended durably stores a suspended state: the record of the sandbox to resume. The record
// names the snapshot that contains the state.
func WriteSuspended(data string, r *Record) error {
	p, err := durable.EncodeSuspended(r.durable())
	if err != nil {
		return err
	}
	return atomicfile.WriteDurable(filepath.Join(data, SuspendedFile), p, 0o600)
}

// ReadSuspended returns the suspended state in a data directory. If there is none, the error is
// os.ErrNotExist.
func ReadSuspended(data string) (Record, error) {
	path := filepath.Join(data, SuspendedFile)
	p, err := os.ReadFile(path)
	if err != nil {
		return Record{}, err
	}
	r, err := ParseSuspended(path, p)
	if err == nil {
		err = r.AddSecrets(data)
	}
	return r, err
}

// ParseSuspended reads the content of a file that WriteSuspended wrote. The path is used in errors
// only.
func ParseSuspended(path string, p []byte) (Record, error) {
	d, err := durable.ParseSuspended(path, p)
	if err != nil {
		return Record{}, err
	}
	return fromDurable(path, d)
}

// SuspendAs changes the record of a running sandbox to the record of a suspended sandbox.
func (r *Record) SuspendAs(tag, snapshotID string, auto bool) {
	if at := r.Latest(); r.At == nil && at.ID != "" {
		r.At = &at
	}
	r.Origin, r.SnapshotTag, r.SnapshotID, r.PID, r.AutoResume = r.Tag(), tag, snapshotID, 0, auto
	r.Rebased, r.Rebasing = nil, nil
	r.Frozen, r.Top, r.Pending, r.Paused = nil, "", nil, false
	r.Suspends++
}

// IsOwnState reports whether a snapshot is the sandbox's latest suspended state.
func (r *Record) IsOwnState(s snapshot.Ref) bool { return r.Origin != "" && r.SnapshotID == s.ID }

// RolledBackTo completes the rollback in a sandbox's record: afterwards the sandbox runs from the
// given snapshot.
func (r *Record) RolledBackTo(to snapshot.Ref) {
	if !r.IsOwnState(to) {
		r.At = &to
	}
	if r.SnapshotID != to.ID {
		r.Origin, r.SnapshotTag, r.SnapshotID = "", to.Tag, to.ID
	}
	r.Restoring, r.RestoringTo, r.Paused, r.Frozen = false, nil, false, nil
	r.Rebased, r.Rebasing = nil, nil
}

// suspendRestoring stores the target of an interrupted rollback as the suspended state of the
// sandbox. The VM cannot be used, and the state before the rollback no longer exists.
func (r Record) suspendRestoring(data string) error {
	if r.RestoringTo == nil {
		return nil
	}
	r.RolledBackTo(*r.RestoringTo)
	r.PID, r.Top, r.Pending, r.AutoResume = 0, "", nil, r.IdleTimeout > 0
	return WriteSuspended(data, &r)
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
