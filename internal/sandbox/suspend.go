package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/vmm/vmmclient"
	"github.com/forkd/forkd/internal/vmm/vmmproto"
)

// suspendedName is the file in a sandbox's data directory that holds its latest suspended state. It is written when the
// snapshot of that state is on disk, and stays when the sandbox is brought back: should its VM be lost with the host, the
// sandbox is suspended again, as it was then.
const suspendedName = "suspended.json"

// suspension is the content of suspended.json.
type suspension struct {
	Record record `json:"record"` // of the sandbox to bring back; its snapshot is the suspended state
}

// Suspend saves a sandbox to a snapshot on disk and frees its memory; Resume brings it back under the same id. Until the
// snapshot is on disk nothing is given up: after an error the sandbox runs on (or stays paused), its earlier suspended
// state untouched.
func (m *Manager) Suspend(ctx context.Context, id string) (Info, error) {
	s, unlock, err := m.lockSandbox(ctx, id)
	if err != nil {
		return Info{}, err
	}
	defer unlock()
	info, err := m.suspend(ctx, s, false)
	return info, s.ended("suspend", err)
}

// errBusy says that an idle sandbox got a request before it was suspended.
var errBusy = errors.New("a request came in")

// suspend does it. The caller holds s.ops. An automatic suspension gives way to requests.
func (m *Manager) suspend(ctx context.Context, s *Sandbox, auto bool) (Info, error) {
	var undo cleanup.Stack
	defer undo.Run()
	if err := m.standStill(ctx, s, auto, &undo); err != nil {
		return Info{}, err
	}
	rec, _, err := s.branchable()
	if err != nil {
		return Info{}, err
	}
	b := &branch{m: m, s: s, start: time.Now(), req: BranchRequest{
		Tag: fmt.Sprintf("suspended-%s-%d", rec.ID, rec.Tops+1), Mode: vmmproto.BranchDiff, Transient: true,
	}}
	if err := b.freeze(ctx); err != nil {
		b.undo.Run()
		return Info{}, err
	}
	result, err := b.finish(ctx)
	if err != nil {
		return Info{}, err
	}
	unpin, err := m.cfg.Store.Pin(result.Info.Tag)
	if err != nil {
		return Info{}, err
	}
	undo.Add(unpin)
	if err := m.cfg.Store.WaitFlushed(context.WithoutCancel(ctx), result.Info.Tag); err != nil {
		return Info{}, err
	}
	return m.commitSuspension(s, b.staging.ID(), result.Info.Tag, auto, unpin, &undo)
}

// standStill stops the VM of a sandbox that is to be suspended, and adds to undo how to let it run again. One that is
// paused stays so. Where the disk has no room for what it has written it is not stopped at all.
func (m *Manager) standStill(ctx context.Context, s *Sandbox, auto bool, undo *cleanup.Stack) error {
	paused := s.Info().State == Paused
	if !paused {
		if err := s.enter("suspend", Paused); err != nil {
			return err
		}
		undo.Add(func() { s.transition(Running) })
		if auto && !s.usage.idle() {
			return errBusy
		}
	}
	stats, err := s.vmm.Stats(ctx)
	if s.heard(err) != nil {
		return err
	}
	room, err := m.cfg.Store.Room()
	if err != nil {
		return err
	}
	if room < stats.GuestDirtyBytes {
		return &noSpaceError{fmt.Errorf("suspend sandbox %q: no space left on disk: it has written %d MiB of memory, there is room for %d MiB",
			s.record.ID, stats.GuestDirtyBytes>>20, room>>20)}
	}
	if paused {
		return nil
	}
	if err := s.stopVM(ctx); err != nil {
		return err
	}
	undo.Add(func() {
		if err := s.startVM(ctx); err != nil {
			m.cfg.Log.Error("resume a sandbox that could not be suspended", "sandbox", s.record.ID, "error", err)
		}
	})
	return nil
}

// commitSuspension puts a suspended sandbox into the place of s. What undo holds is undone up to the point where the
// suspended state counts.
func (m *Manager) commitSuspension(s *Sandbox, snapshotID, tag string, auto bool, unpin func(), undo *cleanup.Stack) (Info, error) {
	s.mu.Lock()
	r := s.record
	s.mu.Unlock()
	r.Origin, r.SnapshotTag, r.SnapshotID, r.PID, r.AutoResume = r.tag(), tag, snapshotID, 0, auto
	r.Frozen, r.Top, r.Pending, r.Paused = nil, "", nil, false // Branches stay: it can still be rolled back to them
	r.Suspends++
	if err := writeSuspension(s.data, &r); err != nil {
		return Info{}, err
	}
	if !s.transition(Stopping) { // killed meanwhile
		os.RemoveAll(s.data)
		return Info{}, &NotFoundError{ID: r.ID}
	}
	undo.Release()
	next := m.suspended(s.data, r, unpin, s.ops)
	s.mu.Lock()
	next.expiry, s.expiry = s.expiry, nil
	earlier := s.unpin
	s.unpin = nil
	s.mu.Unlock()
	m.mu.Lock()
	m.sandboxes[r.ID] = next
	m.mu.Unlock()
	s.usage.stop()
	m.killVMM(s)
	clearTops(s.data)
	s.mu.Lock()
	lease := s.lease
	s.mu.Unlock()
	lease.Release()
	if earlier != nil {
		earlier()
	}
	m.cfg.Store.Cool(tag)
	return next.Info(), nil
}

// suspended makes the object of a suspended sandbox. unpin gives up its snapshot.
func (m *Manager) suspended(data string, r record, unpin func(), ops chan struct{}) *Sandbox {
	s := &Sandbox{data: data, record: r, ops: ops, state: Suspended, unpin: unpin, usage: &usage{}}
	s.free = sync.OnceFunc(func() {
		if err := os.RemoveAll(data); err != nil {
			m.cfg.Log.Warn("remove a suspended sandbox", "sandbox", r.ID, "error", err)
		}
		unpin()
	})
	return s
}

// hasSuspension reports whether there is an earlier suspended state of s.
func (s *Sandbox) hasSuspension() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unpin != nil
}

// freeVM gives back what the VM of s had, and leaves its latest suspended state.
func (s *Sandbox) freeVM() {
	clearTops(s.data)
	s.mu.Lock()
	lease := s.lease
	s.mu.Unlock()
	lease.Release()
}

// lastSuspension puts the latest suspended state of an exited sandbox into its place. The caller holds s.ops.
func (m *Manager) lastSuspension(s *Sandbox) (*Sandbox, error) {
	r, err := readSuspension(s.data)
	if err != nil {
		return nil, fmt.Errorf("resume sandbox %q: read %s: %w", s.record.ID, suspendedName, err)
	}
	if !s.transition(Stopping) {
		return nil, &NotFoundError{ID: r.ID} // killed meanwhile
	}
	s.usage.stop()
	m.killVMM(s)
	s.freeVM()
	s.mu.Lock()
	last := m.suspended(s.data, r, s.unpin, s.ops)
	last.expiry, s.unpin, s.expiry = s.expiry, nil, nil
	s.mu.Unlock()
	m.mu.Lock()
	m.sandboxes[r.ID] = last
	m.mu.Unlock()
	return last, nil
}

// writeSuspension makes a suspended state durable.
func writeSuspension(data string, r *record) error {
	return writeDurable(filepath.Join(data, suspendedName), suspension{Record: *r})
}

// readSuspension returns the suspended state in a data directory; os.ErrNotExist if there is none.
func readSuspension(data string) (record, error) {
	var s suspension
	p, err := os.ReadFile(filepath.Join(data, suspendedName))
	if err == nil {
		err = json.Unmarshal(p, &s)
	}
	return s.Record, err
}

// clearTops removes all disk tops of a sandbox without a VM.
func clearTops(data string) {
	entries, _ := os.ReadDir(data) // what is left goes with the sandbox
	for _, e := range entries {
		if e.Name() != suspendedName {
			os.Remove(filepath.Join(data, e.Name()))
		}
	}
}

// bringBack starts a VM from the state of a suspended sandbox and puts it into its place. After an error the sandbox is
// suspended as before. The caller holds old.ops.
func (m *Manager) bringBack(ctx context.Context, old *Sandbox) (*Sandbox, error) {
	start := time.Now()
	var undo cleanup.Stack
	defer undo.Run()
	if err := old.enter("resume", Restoring); err != nil {
		return nil, err
	}
	undo.Add(func() { old.transition(Suspended) })
	rec := old.record
	lease, err := m.cfg.Store.Acquire(rec.SnapshotTag)
	if err != nil {
		return nil, err
	}
	undo.Add(lease.Release)
	s := &Sandbox{dir: m.vmDir(rec.ID), data: old.data, lease: lease, record: rec, ops: old.ops, unpin: old.unpin}
	s.guest = m.cfg.Guest(filepath.Join(s.dir, vmmclient.VsockSocket))
	if s.vmm, err = m.cfg.VMMs.Spawn(ctx, ShellConfig{ID: rec.ID, Dir: s.dir, Machine: shape(lease.Manifest().Machine)}); err != nil {
		return nil, fmt.Errorf("start a VMM: %w", err)
	}
	undo.Add(func() { m.killVMM(s); clearTops(s.data) })
	s.record.PID, s.record.Tops, s.record.Top = s.vmm.PID(), rec.Tops+1, fmt.Sprintf("%s.%d", topName, rec.Tops+1)
	top, err := m.newTopOver(s, lease, s.record.Top)
	if err == nil {
		err = m.restoreVM(ctx, s, lease, top)
	}
	if top != nil {
		top.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("resume sandbox %q: %w", rec.ID, err)
	}
	s.timing.VMM = time.Since(start)
	if err := m.confirm(ctx, s, rec.Env); err != nil {
		m.cfg.Observer.ConfirmFailed()
		console, _ := m.cfg.VMMs.Console(s.dir)
		return nil, &unconfirmedError{id: rec.ID, err: err, console: consoleTail(console, 5)}
	}
	s.timing.Ready = time.Since(start)
	if err := writeRecord(s.dir, &s.record); err != nil {
		return nil, err
	}
	if !old.transition(Stopping) {
		return nil, &NotFoundError{ID: rec.ID} // killed meanwhile
	}
	undo.Release()
	old.mu.Lock()
	if old.expiry != nil {
		old.expiry.Stop()
	}
	old.mu.Unlock()
	m.adopt(s)
	return s, nil
}

// recoverSuspended takes over a suspended sandbox of an earlier daemon.
func (m *Manager) recoverSuspended(id string) error {
	data := filepath.Join(m.cfg.DataDir, id)
	r, err := readSuspension(data)
	if err != nil {
		return fmt.Errorf("read %s: %w", suspendedName, err)
	}
	if r.ID != id {
		return fmt.Errorf("%s names sandbox %q", suspendedName, r.ID)
	}
	detail, err := m.cfg.Store.Detail(r.SnapshotTag)
	if err != nil {
		return err
	}
	if detail.ID != r.SnapshotID {
		return fmt.Errorf("snapshot %q was replaced by another", r.SnapshotTag)
	}
	unpin, err := m.cfg.Store.Pin(r.SnapshotTag)
	if err != nil {
		return err
	}
	clearTops(data)
	s := m.suspended(data, r, unpin, make(chan struct{}, 1))
	m.mu.Lock()
	m.sandboxes[id] = s
	m.mu.Unlock()
	m.expire(s)
	return nil
}
