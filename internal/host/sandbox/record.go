package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// recordName is the file that makes a VM directory a sandbox's; without it a restarted daemon ends
// the VM.
const recordName = "sandbox.json"

// record is the content of sandbox.json.
type record struct {
	ID          string    `json:"id"`
	SnapshotTag string    `json:"snapshot_tag"`
	SnapshotID  string    `json:"snapshot_id"`
	Origin      string    `json:"origin,omitempty"` // tag to show instead of that of its own suspended state
	Hostname    string    `json:"hostname"`
	Owner       string    `json:"owner,omitempty"` // see OwnedBy
	PID         int       `json:"pid"`
	Created     time.Time `json:"created"`
	MemoryBytes uint64    `json:"memory_bytes,omitempty"` // of its guest's RAM
	Expires     time.Time `json:"expires,omitzero"`
	Fork        string    `json:"fork,omitempty"` // the fork it is a child of; see unfinishedFork
	Protocol    int       `json:"vmm_protocol"`   // vmmproto.Version of its VMM

	ExpirySuspends bool            `json:"expiry_suspends,omitempty"` // and does not delete it
	Annotation     json.RawMessage `json:"annotation,omitempty"`      // of the API that made it; nobody here reads it

	Env         map[string]string  `json:"env,omitempty"`     // given to it at its fork
	Network     *netclient.Setting `json:"network,omitempty"` // nil: the default
	Limits      vm.Limits          `json:"limits,omitzero"`
	Labels      map[string]string  `json:"labels,omitempty"`       // never changed in place
	IdleTimeout time.Duration      `json:"idle_timeout,omitempty"` // suspended after so long without a request; 0: never
	AutoResume  bool               `json:"auto_resume,omitempty"`  // suspended by that: the next request brings it back

	// Its disk is that of its snapshot, the frozen tops, and the top above them. Its memory is that
	// of its snapshot, or of the branch that it was rebased onto, and the private pages above it.
	Frozen   []frozenTop `json:"frozen,omitempty"`
	Top      string      `json:"top,omitempty"` // file in its data directory
	Tops     int         `json:"tops,omitempty"`
	Branches []string    `json:"branches,omitempty"` // IDs of the snapshots branched from it since its snapshot
	Count    int         `json:"branch_count,omitempty"`
	Suspends int         `json:"suspends,omitempty"` // tells a VM from the suspended state that followed it

	Rebased  *rebased       `json:"rebased,omitempty"`  // nil: it is over its snapshot
	Rebasing *pendingRebase `json:"rebasing,omitempty"` // a rebase is under way

	Unique *agentproto.Unique `json:"unique,omitempty"`        // what its agent found when it last took up an identity
	Strict bool               `json:"unique_strict,omitempty"` // see StrictRefuse

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

// writeRecord publishes a sandbox's record in one step. It need not survive a reboot: VMs do not
// either.
func writeRecord(dir string, r *record) error {
	stamped := *r
	stamped.Protocol = vmmproto.Version // a VMM that speaks another has not been taken over
	p, err := json.Marshal(stamped)
	if err != nil {
		return fmt.Errorf("write sandbox record: %w", err)
	}
	return atomicfile.Write(filepath.Join(dir, recordName), p, 0o600)
}

func readRecord(dir string) (record, error) {
	var r record
	p, err := os.ReadFile(filepath.Join(dir, recordName))
	if err == nil {
		err = json.Unmarshal(p, &r)
	}
	if err != nil {
		return r, fmt.Errorf("read sandbox record: %w", err)
	}
	return r, nil
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

// suspension is the content of suspended.json.
type suspension struct {
	Record record `json:"record"` // of the sandbox to bring back; its snapshot is the suspended state
}

// writeSuspension makes a suspended state durable.
func writeSuspension(data string, r *record) error {
	p, err := json.Marshal(suspension{Record: *r})
	if err != nil {
		return err
	}
	return atomicfile.WriteDurable(filepath.Join(data, suspendedName), p, 0o600)
}

// readSuspension returns the suspended state in a data directory; os.ErrNotExist if there is none.
func readSuspension(data string) (record, error) {
	var s suspension
	p, err := os.ReadFile(filepath.Join(data, suspendedName))
	if err == nil {
		err = json.Unmarshal(p, &s)
	}
	if err == nil {
		err = s.Record.withSecrets(data)
	}
	return s.Record, err
}
