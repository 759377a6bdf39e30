package sandbox

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/agentproto"
	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/snapshot"
	"github.com/forkd/forkd/internal/vmm/vmmclient"
	"github.com/forkd/forkd/internal/vmm/vmmproto"
)

// MaxFork is the most children that one call may ask for.
const MaxFork = 1000

// ForkRequest asks for N children of a snapshot.
type ForkRequest struct {
	Tag            string
	N              int               // 1 to MaxFork
	Env            map[string]string // added to the snapshot's
	HostnamePrefix string            // children are called <prefix>-<6 characters of their id>; empty: "sb"
	AllowPartial   bool              // keep the children that started although others failed
	MemoryLimitMiB uint64            // recorded; 0: none
	TTL            time.Duration     // children are deleted when it has passed; 0: never
	IdleTimeout    time.Duration     // children are suspended after so long without a request; 0: never
}

// ForkResult is what a fork made and how long it took.
type ForkResult struct {
	Sandboxes   []Info
	Failed      int
	Unconfirmed int
	VMMWall     time.Duration // request → the last child's vCPUs entered
	ForkWall    time.Duration // request → the last child's agent confirmed
}

// hostnamePrefix is the part of RFC 1123 labels that leaves room for the suffix.
var hostnamePrefix = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

func (r *ForkRequest) check() error {
	if err := snapshot.CheckTag(r.Tag); err != nil {
		return &InvalidError{"snapshot_tag", err.Error()}
	}
	if r.N < 1 || r.N > MaxFork {
		return &InvalidError{"n", fmt.Sprintf("%d: want 1 to %d", r.N, MaxFork)}
	}
	if err := snapshot.CheckEnv(r.Env); err != nil {
		return &InvalidError{"env", err.Error()}
	}
	if r.HostnamePrefix != "" && !hostnamePrefix.MatchString(r.HostnamePrefix) {
		return &InvalidError{"hostname_prefix",
			fmt.Sprintf("%q: want up to 40 lower-case letters, digits and inner dashes", r.HostnamePrefix)}
	}
	if r.TTL < 0 {
		return &InvalidError{"ttl_secs", "negative"}
	}
	if r.IdleTimeout != 0 && r.IdleTimeout < minIdle {
		return &InvalidError{"idle_timeout_secs", fmt.Sprintf("%g: want 0, or at least %g", r.IdleTimeout.Seconds(), minIdle.Seconds())}
	}
	return nil
}

// Fork starts children of a snapshot. All of them start or none is left, unless the request allows a part; a child
// counts as started when its agent has confirmed its new identity. The error of a failed fork is a *ForkError.
func (m *Manager) Fork(ctx context.Context, req ForkRequest) (ForkResult, error) {
	start := time.Now()
	if err := req.check(); err != nil {
		return ForkResult{}, err
	}
	// Held until every child has a lease of its own, so that the snapshot cannot go while they start.
	lease, err := m.cfg.Store.Acquire(req.Tag)
	if err != nil {
		return ForkResult{}, err
	}
	defer lease.Release()
	m.pool.begin()
	defer m.pool.end()
	children, errs := m.startChildren(ctx, start, req)
	result, err := m.handOut(req, children, errs)
	if err == nil {
		m.pool.keep(lease.Manifest().ID, shape(lease.Manifest().Machine))
	}
	m.cfg.Observer.ForkDone(result, err)
	return result, err
}

// startChildren starts all children at once, as far as the semaphores let it. Where all are needed the first failure
// calls the others off.
func (m *Manager) startChildren(ctx context.Context, start time.Time, req ForkRequest) ([]*Sandbox, []error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	children, errs := make([]*Sandbox, req.N), make([]error, req.N)
	var group sync.WaitGroup
	for i := range children {
		group.Go(func() {
			children[i], errs[i] = m.startChild(ctx, start, req)
			if errs[i] != nil && !req.AllowPartial {
				cancel()
			}
		})
	}
	group.Wait()
	return children, errs
}

// handOut makes the children visible, or ends them all.
func (m *Manager) handOut(req ForkRequest, children []*Sandbox, errs []error) (ForkResult, error) {
	result := ForkResult{}
	var first error
	for _, err := range errs {
		if err == nil {
			continue
		}
		result.Failed++
		if isUnconfirmed(err) {
			result.Unconfirmed++
		}
		if first == nil || errors.Is(first, context.Canceled) {
			first = err // what happened to one says more than that the others were called off
		}
	}
	children = slices.DeleteFunc(children, func(s *Sandbox) bool { return s == nil })
	if result.Failed > 0 && (!req.AllowPartial || result.Failed == req.N) {
		inParallel(len(children), func(i int) { m.end(children[i]) })
		return result, &ForkError{Tag: req.Tag, Asked: req.N, Failed: result.Failed,
			Unconfirmed: result.Unconfirmed, First: first}
	}
	for _, s := range children {
		m.adopt(s)
		result.VMMWall = max(result.VMMWall, s.timing.VMM)
		result.ForkWall = max(result.ForkWall, s.timing.Ready)
		result.Sandboxes = append(result.Sandboxes, s.Info())
		m.cfg.Observer.ChildReady(s.timing)
	}
	return result, nil
}

// unconfirmedError reports a child whose agent did not take up its new identity. Such a child may share random numbers
// with its siblings, so nobody gets to see it.
type unconfirmedError struct {
	id      string
	err     error
	console string
}

func (e *unconfirmedError) Error() string {
	msg := fmt.Sprintf("child %s: its agent did not confirm its new identity: %v", e.id, e.err)
	if e.console != "" {
		msg += "; its console ends with:\n" + e.console
	}
	return msg
}

func (e *unconfirmedError) Unwrap() error { return e.err }

func isUnconfirmed(err error) bool {
	var u *unconfirmedError
	return errors.As(err, &u)
}

// startChild takes one child from nothing to confirmed. An error leaves nothing behind.
func (m *Manager) startChild(ctx context.Context, start time.Time, req ForkRequest) (*Sandbox, error) {
	release, err := acquire(ctx, m.starts)
	if err != nil {
		return nil, err
	}
	defer release()
	var undo cleanup.Stack
	defer undo.Run()
	lease, err := m.cfg.Store.Acquire(req.Tag)
	if err != nil {
		return nil, err
	}
	undo.Add(lease.Release)
	s := &Sandbox{lease: lease, ops: make(chan struct{}, 1)}
	if err := m.restoreChild(ctx, start, s, &undo); err != nil {
		return nil, err
	}
	manifest := lease.Manifest()
	prefix := req.HostnamePrefix
	if prefix == "" {
		prefix = "sb"
	}
	id, top := s.record.ID, s.record.Top
	s.record = record{
		Env: req.Env, IdleTimeout: req.IdleTimeout, Top: top,
		ID: id, SnapshotTag: manifest.Tag, SnapshotID: manifest.ID, PID: s.vmm.PID(), Created: start.UTC(),
		Hostname: prefix + "-" + strings.TrimPrefix(id, idPrefix)[:6], MemoryLimitMiB: req.MemoryLimitMiB,
	}
	if req.TTL > 0 {
		s.record.Expires = start.Add(req.TTL).UTC()
	}
	if err := m.confirm(ctx, s, req.Env); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err() // called off: the guest is not to blame
		}
		m.cfg.Observer.ConfirmFailed()
		console, _ := m.cfg.VMMs.Console(s.dir)
		return nil, &unconfirmedError{id: id, err: err, console: consoleTail(console, 5)}
	}
	s.timing.Ready = time.Since(start)
	if err := writeRecord(s.dir, &s.record); err != nil {
		return nil, err
	}
	undo.Release()
	return s, nil
}

// restoreChild brings the VM of a child up to its running vCPUs.
func (m *Manager) restoreChild(ctx context.Context, start time.Time, s *Sandbox, undo *cleanup.Stack) error {
	release, err := acquire(ctx, m.restores)
	if err != nil {
		return err
	}
	defer release()
	manifest := s.lease.Manifest()
	sh := m.pool.take(shape(manifest.Machine))
	s.timing.Pooled = sh != nil
	if sh == nil {
		if sh, err = m.spawnShell(ctx, shape(manifest.Machine)); err != nil {
			return fmt.Errorf("start a VMM: %w", err)
		}
	}
	s.record.ID, s.vmm, s.dir = sh.id, sh.vmm, m.vmDir(sh.id)
	undo.Add(func() { m.killVMM(s) })
	s.guest = m.cfg.Guest(filepath.Join(s.dir, vmmclient.VsockSocket))
	s.data = filepath.Join(m.cfg.DataDir, sh.id)
	undo.Add(func() { os.RemoveAll(s.data) })
	files := vmmclient.RestoreFiles{State: s.lease.State(), Layers: s.lease.Layers()}
	req := vmmproto.Restore{Extents: s.lease.Extents(), VMGenID: newGenID(), Resume: true}
	if d := manifest.Disk; d != nil {
		if err := os.Mkdir(s.data, 0o700); err != nil {
			return err
		}
		s.record.Top = topName
		top, err := m.newTop(filepath.Join(s.data, topName), d.SizeBytes)
		if err != nil {
			return err
		}
		defer top.Close()
		files.Disks = [][]*os.File{append(slices.Clone(s.lease.Disk()), top)}
		req.Disks = []vmmproto.Disk{{SizeBytes: d.SizeBytes}}
	}
	if s.timing.Restore, err = s.vmm.Restore(ctx, req, files); err != nil {
		return fmt.Errorf("restore child %s: %w", sh.id, err)
	}
	s.timing.VMM = time.Since(start)
	return nil
}

// topName is the first private disk top in a sandbox's data directory.
const topName = "disk.top"

// newTop makes an empty private disk top.
func (m *Manager) newTop(path string, size uint64) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create disk top: %w", err)
	}
	if err := m.cfg.NewTop(f, size); err != nil {
		f.Close()
		os.Remove(path) // its name is needed again
		return nil, fmt.Errorf("create disk top: %w", err)
	}
	return f, nil
}

// entropyBytes is what a child's random number generators are seeded with: 256 bits.
const entropyBytes = 32

// confirm tells a child who it is and waits for its agent's answer.
func (m *Manager) confirm(ctx context.Context, s *Sandbox, env map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Confirm)
	defer cancel()
	ctx, stop := whileAlive(ctx, s.vmm)
	defer stop()
	entropy := make([]byte, entropyBytes)
	rand.Read(entropy)
	err := s.guest.Forked(ctx, agentproto.Forked{
		Entropy: entropy, RealtimeNanos: time.Now().UnixNano(), Hostname: s.record.Hostname, Env: env,
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// whileAlive returns a context that ends, with an *exitError as its cause, when the VM does.
func whileAlive(ctx context.Context, v VMM) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	finished := make(chan struct{})
	go func() {
		select {
		case <-v.Done():
			cancel(&exitError{v.Exit()})
		case <-finished:
		}
	}()
	return ctx, func() {
		close(finished)
		cancel(nil)
	}
}

// newGenID returns a VM generation ID that was never used before.
func newGenID() (id [16]byte) {
	rand.Read(id[:])
	return id
}

// recordName is the file that makes a VM directory a sandbox's; without it a restarted daemon ends the VM.
const recordName = "sandbox.json"

// writeRecord publishes a sandbox's record in one step. It need not survive a reboot: VMs do not either.
func writeRecord(dir string, r *record) error {
	p, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write sandbox record: %w", err)
	}
	path := filepath.Join(dir, recordName)
	if err := os.WriteFile(path+".new", p, 0o600); err != nil {
		return fmt.Errorf("write sandbox record: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write sandbox record: %w", err)
	}
	return nil
}
