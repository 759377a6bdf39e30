// Package move moves suspended sandboxes from one host to another, under the same id.
//
// A client with all rights takes the sandbox through these steps. The client can repeat every step,
// and a daemon can be killed during any of them:
//
//	the host that it leaves          the host that it moves to
//	Leave    record: leaving
//	                                 Arrive    pulls the files; record: arriving
//	Commit   record: left
//	                                 Activate  no record: the sandbox can be resumed
//	Free     record: gone, no files
//
// A sandbox without a record is an ordinary sandbox. While there is a record, the sandbox is in no
// list, and no request reaches it. Leave makes a random key, and gives the new host its digest, the
// lock. Commit reveals the key, and Activate needs it. So the sandbox can be resumed on the new
// host only after the old host has given it up for ever, even if two clients move it at the same
// time. Until Free, the old host has everything that is needed to repeat Arrive. Cancel undoes
// Leave and Arrive, but not Commit.
//
// The record "gone" stays. It tells clients and routers where the sandbox is.
//
// Package sandbox suspends and resumes sandboxes, and package hub fetches the files. The callers check
// the rights of clients.
package move

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/hub"
	"github.com/forkd/forkd/internal/host/ledger"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmpool"
)

// Config configures a Book. All fields are required unless a comment says otherwise.
type Config struct {
	Dir     string // directory of the records; only the Book uses it
	DataDir string // sandbox.Config.DataDir
	KeyDir  string // directory of tokens.key and links.key, see Departure
	Node    string // name of this host; empty: sandboxes cannot move from or to this host
	Store   *store.Store
	Done    func(result string) // called at the end of a step, with a result for metrics
	Log     *slog.Logger

	Fault func(point string) // called between the durable parts of steps, for tests; may be nil
}

// Results of steps, for metrics.
const (
	Left      = "left"
	Arrived   = "arrived"
	Cancelled = "cancelled"
	Failed    = "failed"
)

// Book has the records of moves. Its methods may be called concurrently.
type Book struct {
	cfg     Config
	hub     *hub.Hub
	manager *sandbox.Manager

	mu sync.Mutex
	// +checklocks:mu
	moves map[string]*entry // by id of the sandbox; an entry is never changed, only replaced
	// +checklocks:mu
	busy map[string]chan struct{} // sandboxes with a step in progress; each channel is closed at the end of its step
	// +checklocks:mu
	foreign map[string]bool // see Foreign; it may have ids of sandboxes that no longer exist
	once    sync.Once       // fills foreign
}

// entry is a record, and the pin of the snapshot of the suspended state.
type entry struct {
	record.Move
	unpin func() // nil: there is no such snapshot
}

// Open reads the records, and pins the snapshots of sandboxes that are moving. It undoes an Arrive
// that a killed daemon has not completed. The caller must call Open before sandbox.Manager.Recover,
// and Use before the first step.
func Open(cfg Config) (*Book, error) {
	if cfg.Fault == nil {
		cfg.Fault = func(string) {}
	}
	b := &Book{cfg: cfg, moves: make(map[string]*entry), busy: make(map[string]chan struct{}),
		foreign: make(map[string]bool)}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := atomicfile.Clean(cfg.Dir); err != nil {
		return nil, err
	}
	list, err := os.ReadDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	for _, f := range list {
		if id, ok := strings.CutSuffix(f.Name(), ".json"); ok && vmpool.IsID(id) {
			if err := b.load(id); err != nil {
				return nil, fmt.Errorf("read the record of a move: %w", err)
			}
		}
	}
	return b, nil
}

// Use sets the manager of the sandboxes, and the hub that fetches snapshots.
func (b *Book) Use(m *sandbox.Manager, h *hub.Hub) { b.manager, b.hub = m, h }

func (b *Book) path(id string) string { return filepath.Join(b.cfg.Dir, id+".json") }

func (b *Book) data(id string) string { return filepath.Join(b.cfg.DataDir, id) }

// load reads the record of a sandbox. If the record cannot be read, the sandbox cannot be used,
// because it may run on another host.
func (b *Book) load(id string) error {
	p, err := os.ReadFile(b.path(id))
	if err != nil {
		return err
	}
	m, err := record.ParseMove(b.path(id), p)
	if err == nil && m.ID != id {
		err = fmt.Errorf("%s names sandbox %q", b.path(id), m.ID)
	}
	if err != nil {
		b.cfg.Log.Error("a sandbox that was moving is left alone", "sandbox", id, "reason", err)
		m = &record.Move{ID: id, Phase: unread}
	}
	e := &entry{Move: *m}
	b.set(id, e)
	if err := b.settle(e); err != nil { // for example, a full disk: the other sandboxes are not affected
		b.cfg.Log.Error("a sandbox that is moving cannot be used", "sandbox", id, "reason", err)
	}
	return nil
}

// settle completes or undoes what a killed daemon has begun. It pins the snapshot of a sandbox that is moving.
func (b *Book) settle(e *entry) error {
	if e.Phase == record.MoveGone {
		return os.RemoveAll(b.data(e.ID))
	}
	r, err := ledger.ReadSuspended(b.data(e.ID))
	switch {
	case errors.Is(err, fs.ErrNotExist) && e.Phase == record.MoveArriving: // the daemon was killed during Arrive
		return b.reverse(&e.Move)
	case errors.Is(err, fs.ErrNotExist) && e.Phase == record.MoveLeaving: // the sandbox was deleted while Leave began
		return b.forget(e.ID)
	case err == nil:
		unpin, err := b.cfg.Store.Pin(r.SnapshotTag)
		b.set(e.ID, &entry{e.Move, unpin})
		return err
	}
	return err
}

// unread is the phase of a record that cannot be read.
const unread = "unknown"

// write stores a record durably, before the caller acts on it.
func (b *Book) write(e *entry) error {
	p, err := record.EncodeMove(&e.Move)
	if err == nil {
		err = atomicfile.WriteDurable(b.path(e.ID), p, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the record of a move: %w", err)
	}
	b.set(e.ID, e)
	return nil
}

// forget removes the record of a sandbox durably.
func (b *Book) forget(id string) error {
	err := os.Remove(b.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = atomicfile.SyncDir(b.cfg.Dir)
	}
	if err == nil {
		b.set(id, nil)
	}
	return err
}

// reverse undoes an Arrive, and removes the sandbox's files from this host. If m.Was is not empty,
// the sandbox had moved away to that host before, and the record says so again.
func (b *Book) reverse(m *record.Move) error {
	if err := b.close(m.ID, m.Lock); err != nil {
		return err
	}
	if err := os.RemoveAll(b.data(m.ID)); err != nil {
		return err
	}
	b.cfg.Fault("reverse")
	if m.Was == "" {
		return b.forget(m.ID)
	}
	return b.write(&entry{Move: record.Move{ID: m.ID, Phase: record.MoveGone, Node: m.Was, Since: m.Since, Key: none}})
}

// none replaces the key in the record of a sandbox that has gone, when nothing needs the key any
// more.
const none = "-"

func (b *Book) set(id string, e *entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e == nil {
		delete(b.moves, id)
		return
	}
	b.moves[id] = e
}

// Away returns why a sandbox is not here. It implements sandbox.Config.Away.
func (b *Book) Away(id string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.moves[id]
	switch {
	case e == nil:
		return &sandbox.NotFoundError{ID: id}
	case e.Phase == record.MoveGone:
		return &failure.AwayError{ID: id, Node: e.Node}
	case e.Phase == record.MoveArriving && e.Was != "": // the sandbox is still on the host that it returns from
		return &failure.AwayError{ID: id, Node: e.Node}
	}
	return &failure.AwayError{ID: id}
}

// List returns the records without their keys, sorted by the ids of the sandboxes.
func (b *Book) List() []record.Move {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]record.Move, 0, len(b.moves))
	for _, e := range b.moves {
		m := e.Move
		m.Key, m.Lock = "", ""
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b record.Move) int { return strings.Compare(a.ID, b.ID) })
	return list
}

// Here reports whether a sandbox is an ordinary sandbox of this host.
func (b *Book) Here(id string) bool {
	_, err := b.manager.Get(id)
	return err == nil
}

// Foreign returns the ids of this host's sandboxes whose ids name another host, in order. Routers ask
// for them every few seconds, so only the first call looks at all sandboxes.
func (b *Book) Foreign() []string {
	b.once.Do(func() {
		for _, id := range b.manager.IDs() {
			b.adopted(id)
		}
	})
	b.mu.Lock()
	ids := slices.Sorted(maps.Keys(b.foreign))
	b.mu.Unlock()
	return slices.DeleteFunc(ids, func(id string) bool {
		if b.Here(id) {
			return false
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.foreign, id)
		return true
	})
}

// adopted adds a sandbox of this host to the result of Foreign, if its id names another host.
func (b *Book) adopted(id string) {
	if node, err := vmpool.NodeOf(id); err == nil && node != snapshot.NodeOf(b.cfg.Node) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.foreign[id] = true
	}
}

// ConflictError reports a step that is not possible now.
type ConflictError struct{ ID, Reason string }

func (e *ConflictError) Error() string { return fmt.Sprintf("move sandbox %q: %s", e.ID, e.Reason) }

func conflict(id, format string, args ...any) error {
	return &ConflictError{ID: id, Reason: fmt.Sprintf(format, args...)}
}

// other returns the error of a step if the sandbox takes part in another move.
func (e *entry) other() error {
	return conflict(e.ID, "it is %q, and the other host is %q: continue or cancel that move first", e.Phase, e.Node)
}

// stepWait bounds the time for which a step waits for another step of the same sandbox. After a
// client was killed, its last step goes on for a short time, and another client repeats the move.
const stepWait = 10 * time.Second

// begin waits until no step of a sandbox is in progress, and begins one. It returns the sandbox's
// entry, which may be nil, and the function to call at the end of the step. This function is nil if
// another step takes too long.
func (b *Book) begin(id string) (*entry, func()) {
	late := time.After(stepWait)
	for {
		b.mu.Lock()
		other := b.busy[id]
		if other == nil {
			done := make(chan struct{})
			b.busy[id] = done
			e := b.moves[id]
			b.mu.Unlock()
			return e, func() {
				b.mu.Lock()
				defer b.mu.Unlock()
				delete(b.busy, id)
				close(done)
			}
		}
		b.mu.Unlock()
		select {
		case <-other:
		case <-late:
			return nil, nil
		}
	}
}

// step runs one step of a sandbox. It returns the record after the step. If there is no record
// then, only the ID in the result is set.
func (b *Book) step(id string, run func(*entry) error) (record.Move, error) {
	if b.cfg.Node == "" {
		return record.Move{}, conflict(id, "this daemon has no --node, so ids do not lead to it")
	}
	e, end := b.begin(id)
	if end == nil {
		return record.Move{}, conflict(id, "another step is in progress: try again when it has ended")
	}
	defer end()
	if e == nil {
		e = &entry{Move: record.Move{ID: id}}
	}
	err := run(e)
	b.cfg.Fault("end")
	if err != nil {
		b.cfg.Done(Failed)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if e = b.moves[id]; e == nil {
		return record.Move{ID: id}, err
	}
	return e.Move, err
}

// Cancel undoes Leave or Arrive. After Commit it is refused on the host that the sandbox has left.
// It does nothing if the sandbox is not moving.
func (b *Book) Cancel(id string) (record.Move, error) {
	return b.step(id, func(e *entry) error {
		switch e.Phase {
		case "":
			return nil
		case record.MoveArriving:
			if err := b.reverse(&e.Move); err != nil {
				return err
			}
		case record.MoveLeaving:
			if err := b.forget(id); err != nil {
				return err
			}
			b.cfg.Fault("back")
			if err := b.manager.Adopt(id); err != nil {
				return err
			}
			b.adopted(id)
		default:
			return conflict(id, "it is %q: the host %q may run it", e.Phase, e.Node)
		}
		if e.unpin != nil {
			e.unpin()
		}
		b.cfg.Done(Cancelled)
		return nil
	})
}
