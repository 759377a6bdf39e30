// Package ledger keeps what the daemon must know of its sandboxes after a restart: the record of
// each, its suspended state, the secrets of its network, and the unfinished forks.
//
// Package sandbox interprets the records; package format/record defines their form on disk.
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

// File is the name of a sandbox's record. A restarted daemon kills a VM whose directory lacks it.
const File = "sandbox.json"

// Record is the daemon's record of a sandbox: in sandbox.json while the sandbox has a VM, and in
// suspended.json for its latest suspended state. Its form on disk is durable.Sandbox.
type Record struct {
	ID          string
	SnapshotTag string
	SnapshotID  string
	Origin      string // tag to show instead of the tag of its own suspended state
	Hostname    string
	Owner       string // see owner.Owner
	PID         int
	Created     time.Time
	MemoryBytes uint64 // of guest RAM
	Expires     time.Time
	Fork        string // the fork that made it; see Fork
	Protocol    int    // vmmproto.Version of its VMM

	ExpirySuspends bool            // suspend it on expiry instead of deleting it
	Annotation     json.RawMessage // for the API that made it; not interpreted here

	Env         map[string]string // environment given at its fork
	Network     netclient.Setting
	Limits      vm.Limits
	Labels      map[string]string // never changed in place
	IdleTimeout time.Duration     // time without a request until it is suspended; 0: never
	AutoResume  bool              // suspended for being idle: the next request resumes it

	// Its disk consists of its snapshot's, the frozen tops, and the top above them. Its memory
	// consists of its snapshot's, or that of the branch that it was rebased onto, and the private
	// pages above it. Users do not see that branch: for them the sandbox runs from its snapshot, and
	// they can delete the branch.
	Frozen   []durable.FrozenTop
	Top      string // file in its data directory
	Tops     int
	Count    int
	Suspends int // distinguishes a VM from the suspended state that followed it

	At *snapshot.Ref // the snapshot of its last branch or rollback; nil: the snapshot it was forked from

	Rebased  *durable.Rebased       // nil: its memory is based on its snapshot
	Rebasing *durable.PendingRebase // not nil while a rebase is in progress

	Unique *agentproto.Unique // findings of its agent when it last took up an identity
	Strict bool               // see StrictRefuse

	Paused    bool                // on request; a paused VM without it is being suspended
	Pending   *durable.PendingTop // not nil while a branch is in progress
	Restoring bool                // a rollback is in progress, so the guest may not have confirmed
}

// Tag returns the snapshot that users see the sandbox run from.
func (r *Record) Tag() string {
	if r.Origin != "" {
		return r.Origin
	}
	return r.SnapshotTag
}

// Latest returns the snapshot of the sandbox's last branch or rollback, or else the snapshot that
// it was forked from. If the sandbox was suspended since its fork, the record has only the tag of
// the snapshot that it was forked from, and the ID is empty.
func (r *Record) Latest() snapshot.Ref {
	switch {
	case r.At != nil:
		return *r.At
	case r.Origin != "":
		return snapshot.Ref{Tag: r.Origin}
	}
	return snapshot.Ref{ID: r.SnapshotID, Tag: r.SnapshotTag}
}

// Write publishes a sandbox's record atomically. The record need not survive a reboot, because no
// VM does.
func Write(dir string, r *Record) error {
	stamped := r.durable()
	stamped.Protocol = vmmproto.Version // a VMM that speaks another version has not been taken over
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

// Read returns a sandbox's record. If its VMM speaks another control protocol than this daemon, the
// error is a ProtocolError, even if there are other defects.
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
// is written when the snapshot of that state is on disk, and stays when the sandbox is resumed. If
// the sandbox's VM is lost with the host, the sandbox returns to that state.
const SuspendedFile = "suspended.json"

// WriteSuspended makes a suspended state durable: the record of the sandbox to resume, whose
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

// SuspendAs converts the record of a running sandbox to that of a suspended one.
func (r *Record) SuspendAs(tag, snapshotID string, auto bool) {
	if at := r.Latest(); r.At == nil && at.ID != "" {
		r.At = &at
	}
	r.Origin, r.SnapshotTag, r.SnapshotID, r.PID, r.AutoResume = r.Tag(), tag, snapshotID, 0, auto
	r.Rebased, r.Rebasing = nil, nil
	r.Frozen, r.Top, r.Pending, r.Paused = nil, "", nil, false
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
