package sandbox

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

// recordName is the file that makes a VM directory a sandbox's; without it a restarted daemon ends
// the VM.
const recordName = "sandbox.json"

// record is what the daemon keeps of a sandbox: in sandbox.json while it has a VM, and in
// suspended.json of its latest suspended state. See durable.Sandbox for what it is on disk.
type record struct {
	ID          string
	SnapshotTag string
	SnapshotID  string
	Origin      string // tag to show instead of that of its own suspended state
	Hostname    string
	Owner       string // see OwnedBy
	PID         int
	Created     time.Time
	MemoryBytes uint64 // of its guest's RAM
	Expires     time.Time
	Fork        string // the fork it is a child of; see unfinishedFork
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

// tag is the snapshot that users know the sandbox to run from.
func (r *record) tag() string {
	if r.Origin != "" {
		return r.Origin
	}
	return r.SnapshotTag
}

// at returns the snapshot that the sandbox was last branched to or put back to, else the one that it
// was forked from. Its ID is empty for a sandbox that has been suspended since it was forked: then
// the record has only the tag of that.
func (r *record) at() snapshot.Ref {
	switch {
	case r.At != nil:
		return *r.At
	case r.Origin != "":
		return snapshot.Ref{Tag: r.Origin}
	}
	return snapshot.Ref{ID: r.SnapshotID, Tag: r.SnapshotTag}
}

// writeRecord publishes a sandbox's record in one step. It need not survive a reboot: VMs do not
// either.
func writeRecord(dir string, r *record) error {
	stamped := r.durable()
	stamped.Protocol = vmmproto.Version // a VMM that speaks another has not been taken over
	p, err := durable.EncodeSandbox(stamped)
	if err != nil {
		return fmt.Errorf("write sandbox record: %w", err)
	}
	return atomicfile.Write(filepath.Join(dir, recordName), p, 0o600)
}

// readRecord returns a sandbox's record. The error of one whose VMM speaks another control protocol
// than this daemon is a protocolError, whatever else may be wrong with it.
func readRecord(dir string) (record, error) {
	path := filepath.Join(dir, recordName)
	p, err := os.ReadFile(path)
	if err != nil {
		return record{}, fmt.Errorf("read sandbox record: %w", err)
	}
	if version := durable.ProtocolOf(p); version != 0 && version != vmmproto.Version {
		return record{}, protocolError(version)
	}
	d, err := durable.ParseSandbox(path, p)
	if err != nil {
		return record{}, fmt.Errorf("read sandbox record: %w", err)
	}
	return fromDurable(path, d)
}

// update changes a sandbox's record, on disk first. The caller holds s.ops.
func (s *Sandbox) update(change func(*record)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.record
	change(&r)
	if s.state == Exited || s.state == Stopping {
		s.record = r // its directory is going
		return nil
	}
	if err := writeRecord(s.live.dir, &r); err != nil {
		return err
	}
	s.record = r
	return nil
}

// updateAll changes what a sandbox keeps in every state: also in its suspended state, even an
// earlier one that it may fall back to, which must not bring back what was before. The caller holds
// s.ops.
func (s *Sandbox) updateAll(change func(*record)) error {
	if err := s.updateSuspension(change); err != nil {
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

// updateSuspension changes the latest suspended state of a sandbox, if there is one. The caller
// holds s.ops.
func (s *Sandbox) updateSuspension(change func(*record)) error {
	last, err := readSuspension(s.data)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	change(&last)
	return writeSuspension(s.data, &last)
}

// suspendedName is the file in a sandbox's data directory that holds its latest suspended state. It
// is written when the snapshot of that state is on disk, and stays when the sandbox is brought
// back: should its VM be lost with the host, the sandbox is suspended again, as it was then.
const suspendedName = "suspended.json"

// writeSuspension makes a suspended state durable: the record of the sandbox to bring back, whose
// snapshot is the suspended state.
func writeSuspension(data string, r *record) error {
	p, err := durable.EncodeSuspended(r.durable())
	if err != nil {
		return err
	}
	return atomicfile.WriteDurable(filepath.Join(data, suspendedName), p, 0o600)
}

// readSuspension returns the suspended state in a data directory; os.ErrNotExist if there is none.
func readSuspension(data string) (record, error) {
	path := filepath.Join(data, suspendedName)
	p, err := os.ReadFile(path)
	if err != nil {
		return record{}, err
	}
	d, err := durable.ParseSuspended(path, p)
	if err != nil {
		return record{}, err
	}
	r, err := fromDurable(path, d)
	if err == nil {
		err = r.withSecrets(data)
	}
	return r, err
}
