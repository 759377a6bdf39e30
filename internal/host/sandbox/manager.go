package sandbox

import (
	"cmp"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/unwatched"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Observer receives events to count. Its methods return at once.
type Observer interface {
	ForkDone(r ForkResult, err error)
	ChildReady(t Timing)
	ConfirmFailed()
	SandboxExited(reason string)
	BranchDone(r BranchResult, err error)
	RollbackDone(err error)
	Refused(code string) // see admit.Error
	PoolRefilled(took time.Duration)
}

// Config configures a Manager. All fields are required unless they say otherwise.
type Config struct {
	Store    *store.Store
	VMMs     vmpool.VMMs
	Net      *netclient.Client                        // nil: sandboxes have no network
	Guest    func(vsockPath string) Guest             // returns the agent behind the vsock socket of a VM
	NewTop   func(f *os.File, sizeBytes uint64) error // makes f an empty private disk top
	RunDir   string                                   // sockets and records of sandboxes; used by this manager alone
	DataDir  string                                   // private disk tops; used by this manager alone
	Branches int                                      // concurrent branches; 0: 4
	PoolSize int                                      // ready shells per machine shape; 0: none
	PoolMost int                                      // temporary maximum of PoolSize, after forks found too few
	Admit    admit.Rules                              // how many sandboxes the host accepts
	Confirm  time.Duration                            // how long a child may take to confirm; 0: 30 s
	Observer Observer
	Events   *event.Ring // nil: none are kept
	Log      *slog.Logger

	// OpenPrivate lets every client give sandboxes access to private networks and the host; see
	// owner.Owner.
	OpenPrivate bool
}

// defaultConfirm is generous: a child that needs it runs on an emulated or badly overloaded host.
const defaultConfirm = 30 * time.Second

// Concurrency per CPU: children of one daemon that are being restored, children that are being
// confirmed, and children of one fork that are being started. Restoring is CPU-bound. Confirming
// mostly waits for the agent, but a guest that wakes up and takes up an identity needs a CPU: with
// a hundred of them on one CPU, none would answer in time.
const (
	restoresPerCPU = 2
	confirmsPerCPU = 4
	wavePerCPU     = 32
)

// Manager owns the sandboxes of one daemon. Its methods may be called concurrently.
type Manager struct {
	cfg      Config
	pool     *vmpool.Pool
	admitted *admit.Host
	owners   admit.Owners
	restores *gate.Gate
	confirms *gate.Gate
	branches *gate.Gate
	suspends *gate.Gate
	wave     int // children of one fork that are started concurrently

	mu sync.Mutex
	// +checklocks:mu
	sandboxes  map[string]*Sandbox
	watchers   sync.WaitGroup
	background sync.WaitGroup                   // branches started with NoWait, and other background work
	unwatched  *unwatched.Branches              // branches started with NoWait
	writers    time.Duration                    // chain.WriterPatience, except in tests
	room       func(dir string) (uint64, error) // returns the free space of a file system in bytes
	timed      gate.Tasks                       // of timers; its context ends with Close: watchers leave sandboxes alone
	boot       Boot                             // nil: see SetBoot
	left       []left                           // written by Recover
}

// New returns a Manager without sandboxes; see Recover for those of an earlier daemon.
func New(cfg Config) (*Manager, error) {
	for _, dir := range []string{cfg.RunDir, cfg.DataDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	if cfg.Branches == 0 {
		cfg.Branches = defaultBranches
	}
	if cfg.Confirm == 0 {
		cfg.Confirm = defaultConfirm
	}
	m := &Manager{
		cfg:       cfg,
		admitted:  admit.New(cfg.Admit, cfg.DataDir),
		restores:  gate.New(restoresPerCPU*runtime.NumCPU() + 1), // one more than an owner may have, see owner.TakePlace
		confirms:  gate.New(confirmsPerCPU*runtime.NumCPU() + 1),
		wave:      wavePerCPU * runtime.NumCPU(),
		branches:  gate.New(cfg.Branches),
		suspends:  gate.New(maxSuspends),
		sandboxes: make(map[string]*Sandbox),
		unwatched: unwatched.New(),
		writers:   chain.WriterPatience,
		room:      admit.FreeBytes,
	}
	m.pool = vmpool.New(vmpool.Config{VMMs: cfg.VMMs, RunDir: cfg.RunDir, Size: cfg.PoolSize, Most: cfg.PoolMost,
		Log:      cfg.Log,
		Refilled: cfg.Observer.PoolRefilled})
	cfg.Store.OnGone(m.pool.Drop) // for snapshots that delete themselves or are replaced, too
	return m, nil
}

// Events returns the recent events of the manager's sandboxes, and of its snapshots if the store
// has the same ring.
func (m *Manager) Events() *event.Ring { return m.cfg.Events }

// Snapshots returns the manager's store.
func (m *Manager) Snapshots() *store.Store { return m.cfg.Store }

func (m *Manager) vmDir(id string) string { return filepath.Join(m.cfg.RunDir, id) }

// Get returns the sandbox with the given id.
func (m *Manager) Get(id string) (*Sandbox, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sandboxes[id]
	if s == nil {
		return nil, &NotFoundError{ID: id}
	}
	return s, nil
}

// List describes all sandboxes that were handed out and not deleted, oldest first.
func (m *Manager) List() []Info {
	m.mu.Lock()
	all := slices.Collect(maps.Values(m.sandboxes))
	m.mu.Unlock()
	infos := make([]Info, len(all))
	for i, s := range all {
		infos[i] = s.Info()
	}
	slices.SortFunc(infos, func(a, b Info) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID))
	})
	return infos
}

// IDs returns the ids of all sandboxes in any order.
func (m *Manager) IDs() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.sandboxes))
}

// shape returns the shape of a VM for a snapshot's state.
func shape(m snapshot.Machine) vm.Shape {
	return vm.Shape{MemoryBytes: m.MemoryBytes, VCPUs: m.VCPUs, Template: m.Template}
}

// DeleteSnapshot removes a snapshot as store.Delete does.
func (m *Manager) DeleteSnapshot(tag string, mode store.DeleteMode) error {
	_, err := m.cfg.Store.Delete(tag, mode)
	return err
}

// PoolSize returns the number of VMM shells that wait for a fork.
func (m *Manager) PoolSize() int { return m.pool.Count() }

// PoolWanted returns how many shells a full pool has.
func (m *Manager) PoolWanted() int { return m.pool.Wanted() }

// BranchesInFlight returns how many branches are being made, and their maximum.
func (m *Manager) BranchesInFlight() (n, most int) { return m.branches.Count() }

type left struct {
	LeftAlone
	ended <-chan struct{} // closed when its VMM has exited; nil: not watched
}

// LeftAlone is a sandbox of an earlier daemon that this daemon could not take over and did not
// touch.
type LeftAlone struct {
	ID     string
	PID    int // of its VMM; 0: none, or unknown
	Reason string
}

// defaultBranches is the default number of concurrent branches.
const defaultBranches = 4

// maxSuspends bounds concurrent suspensions. Each sandbox's dirty memory is in RAM a second time
// until it is on disk, and the flushes run one after another. A thousand suspensions in the same
// second would fill the file system in RAM that all branches need, and stop the sandboxes for all
// that time. A sandbox that waits for its turn runs on.
const maxSuspends = 4
