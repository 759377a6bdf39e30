package sandbox

import (
	"cmp"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/byage"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/loglimit"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/unwatched"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/host/volume"
	"github.com/forkd/forkd/internal/host/writers"
)

// Observer counts events for metrics. Its methods must not block.
type Observer interface {
	ForkDone(r ForkResult, err error)
	ChildReady(t Timing)
	ConfirmFailed()
	SandboxExited(reason string)
	BranchDone(r BranchResult, err error)
	RollbackDone(err error)
	Refused(code string) // code of an admit.Error
	PoolRefilled(took time.Duration)
}

// Config configures a Manager. All fields are required unless a comment says otherwise.
type Config struct {
	Store   *store.Store
	VMMs    vmpool.VMMs
	Net     *netclient.Client                        // nil: sandboxes have no network
	Volumes *volume.Store                            // nil: there are no volumes
	Guest   func(owner, vsockPath string) Guest      // returns the agent behind the vsock socket of a VM
	NewTop  func(f *os.File, sizeBytes uint64) error // makes f an empty private disk top
	// directory for sockets and records of sandboxes; only this manager uses it
	RunDir   string
	DataDir  string // directory for private disk tops; only this manager uses it
	Branches int    // maximum number of concurrent branches; 0: 4
	PoolSize int    // number of waiting VMMs for each machine shape; 0: none
	// maximum number of waiting VMMs for each shape, at least PoolSize; applies for some time after
	// forks that found too few waiting VMMs
	PoolMost int
	Admit    admit.Rules   // limits for the sandboxes of the host
	Confirm  time.Duration // how long a child may take to confirm its identity; 0: a minute
	Observer Observer
	Events   *event.Ring // nil: events are dropped
	Log      *slog.Logger

	// IsParent reports whether all clients may use a branch with this tag, as they may use parents. If
	// it is nil, no branch is for all clients.
	IsParent func(tag string) bool

	// Away returns why a sandbox is not here: a *NotFoundError, or an error that says that the
	// sandbox is moving, or has moved, to another host. In the second case, Recover does not touch
	// its files. If Away is nil, no sandbox moves.
	Away func(id string) error

	// OpenPrivate permits every client to give sandboxes access to private networks and the host;
	// see owner.Owner.
	OpenPrivate bool
}

// defaultConfirm is long enough for hosts that have an emulated CPU or are heavily overloaded. A guest
// with many processes takes longest, because its agent searches each of them for generators.
const defaultConfirm = time.Minute

// These constants limit the work for each CPU of the host: restoresPerCPU is how many children of
// the daemon may be restored at a time, confirmsPerCPU is how many may be confirming, and
// wavePerCPU is how many children of one fork may be starting. The CPU limits how many children can
// be restored. A child that confirms mostly waits for its agent, but the guest needs a CPU to
// change its identity. If a hundred guests did so on one CPU, none would answer in time.
const (
	restoresPerCPU = 2
	confirmsPerCPU = 4
	wavePerCPU     = 32
)

// Manager holds the sandboxes of one daemon. Its methods may be called concurrently.
type Manager struct {
	cfg      Config
	pool     *vmpool.Pool
	killer   *vmpool.Killer
	admitted *admit.Host
	owners   admit.Owners
	restores *gate.Gate
	confirms *gate.Gate
	branches *gate.Gate
	suspends *gate.Gate
	wave     int // maximum number of children of one fork that are started concurrently

	mu sync.Mutex
	// +checklocks:mu
	sandboxes  byage.Set[*Sandbox]
	watchers   sync.WaitGroup
	background sync.WaitGroup                   // branches started with NoWait, and other background work
	unwatched  *unwatched.Branches              // branches started with NoWait
	exits      *loglimit.Lines                  // limits the log lines about exited and deleted sandboxes
	writers    time.Duration                    // writers.Patience, except in tests
	room       func(dir string) (uint64, error) // returns the free bytes of the file system that contains dir
	// tasks that timers start; Close ends their context, and watchers then leave sandboxes alone
	timed gate.Tasks
	boot  Boot   // nil until SetBoot
	left  []left // set by Recover
}

// New returns a Manager without sandboxes. Recover adds the sandboxes of an earlier daemon.
func New(cfg Config) (*Manager, error) {
	for _, dir := range []string{cfg.RunDir, cfg.DataDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	cfg.Branches, cfg.Confirm = cmp.Or(cfg.Branches, defaultBranches), cmp.Or(cfg.Confirm, defaultConfirm)
	if cfg.Away == nil {
		cfg.Away = func(id string) error { return &NotFoundError{ID: id} }
	}
	killer := vmpool.NewKiller(cfg.Log)
	m := &Manager{
		cfg:      cfg,
		admitted: admit.New(cfg.Admit, cfg.DataDir, killer.Wait),
		killer:   killer,
		// one additional place, because an owner may not take the last place, see owner.PlaceShare
		restores:  gate.New(restoresPerCPU*runtime.NumCPU() + 1),
		confirms:  gate.New(confirmsPerCPU*runtime.NumCPU() + 1),
		wave:      wavePerCPU * runtime.NumCPU(),
		branches:  gate.New(cfg.Branches),
		suspends:  gate.New(maxSuspends),
		unwatched: unwatched.New(),
		exits:     loglimit.New(loglimit.PerSecond, loglimit.AtOnce),
		writers:   writers.Patience,
		room:      admit.FreeBytes,
	}
	m.pool = vmpool.New(vmpool.Config{VMMs: cfg.VMMs, RunDir: cfg.RunDir, Size: cfg.PoolSize, Most: cfg.PoolMost,
		Log: cfg.Log, Refilled: cfg.Observer.PoolRefilled})
	cfg.Store.OnGone(func(gone *snapshot.Manifest) { m.pool.Drop(gone.ID) })
	return m, nil
}

// Events returns the recent events of sandboxes. They include the events of snapshots if the store
// has the same ring.
func (m *Manager) Events() *event.Ring { return m.cfg.Events }

// Snapshots returns the manager's store.
func (m *Manager) Snapshots() *store.Store { return m.cfg.Store }

func (m *Manager) vmDir(id string) string { return filepath.Join(m.cfg.RunDir, id) }

// Get returns the sandbox with the given id.
func (m *Manager) Get(id string) (*Sandbox, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sandboxes.Get(id); s != nil {
		return s, nil
	}
	return nil, m.cfg.Away(id)
}

// List returns the Info of all sandboxes that clients may use, oldest first.
func (m *Manager) List() []Info { return m.After(byage.Place{}, math.MaxInt) }

// After returns the part of List after a place, but at most the given number of sandboxes. Its cost does
// not depend on the sandboxes before and after that part.
func (m *Manager) After(at byage.Place, most int) []Info {
	m.mu.Lock()
	part := m.sandboxes.After(at, most)
	m.mu.Unlock()
	infos := make([]Info, len(part))
	for i, s := range part {
		infos[i] = s.Info()
	}
	return infos
}

// IDs returns the ids of all sandboxes in any order.
func (m *Manager) IDs() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sandboxes.IDs()
}

// Has reports whether a sandbox with the given id exists, is away, or was left alone and may still
// run.
func (m *Manager) Has(id string) bool {
	_, err := m.Get(id)
	return !errors.As(err, new(*NotFoundError)) || slices.ContainsFunc(m.left, func(l left) bool { return l.ID == id })
}

// PoolSize returns how many VMMs wait for a fork.
func (m *Manager) PoolSize() int { return m.pool.Count() }

// PoolWanted returns how many VMMs a full pool has.
func (m *Manager) PoolWanted() int { return m.pool.Wanted() }

// BranchesInFlight returns the number of branches that are being made, and the maximum of this
// number.
func (m *Manager) BranchesInFlight() (n, most int) { return m.branches.Count() }

type left struct {
	LeftAlone
	ended <-chan struct{} // closed when the sandbox's VMM has exited; nil: unknown
}

// LeftAlone is a sandbox of an earlier daemon that this daemon could neither take over nor safely
// kill.
type LeftAlone struct {
	ID     string
	PID    int // process id of the sandbox's VMM; 0: there is none, or it is unknown
	Reason string
}

// defaultBranches is the default number of concurrent branches.
const defaultBranches = 4

// maxSuspends is the maximum number of concurrent suspensions. During a suspension, the sandbox's
// dirty memory is in RAM a second time, until it is on disk, and the flushes run one after another.
// A thousand concurrent suspensions would fill the file system in RAM, which all branches need. All
// these sandboxes would be stopped until their memory is on disk. A sandbox continues to run while
// it waits for its suspension.
const maxSuspends = 4
