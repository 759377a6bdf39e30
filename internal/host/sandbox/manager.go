package sandbox

import (
	"context"
	"log/slog"
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
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Observer is told of events that are worth counting. Its methods return at once.
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

// Config is what a Manager works with. All fields are required unless they say otherwise.
type Config struct {
	Store    *store.Store
	VMMs     vmpool.VMMs
	Net      *netclient.Client                        // nil: sandboxes have no network
	Guest    func(vsockPath string) Guest             // agent behind the vsock socket of a VM
	NewTop   func(f *os.File, sizeBytes uint64) error // makes f an empty private disk top
	RunDir   string                                   // sockets and records of sandboxes; of this manager alone
	DataDir  string                                   // private disk tops; of this manager alone
	Branches int                                      // branches at once; 0: 4
	PoolSize int                                      // ready shells per machine shape; 0: none
	PoolMost int                                      // so many for a while where forks have found too few
	Admit    admit.Rules                              // how many sandboxes the host takes
	Confirm  time.Duration                            // how long a child may take to confirm; 0: 30 s
	Observer Observer
	Events   *event.Ring // nil: none are kept
	Log      *slog.Logger

	// OpenPrivate lets every client open private networks and the host to sandboxes; see owner.Owner.
	OpenPrivate bool
}

// defaultConfirm is generous: a child that needs it runs on an emulated or badly overloaded host.
const defaultConfirm = 30 * time.Second

// Children of one daemon that are restored at the same time, and that are told who they are, and
// children of one fork that are started at the same time, per CPU. Restoring is CPU-bound. A child
// that waits for its agent mostly waits itself, but a guest that wakes up and takes up an identity
// wants a CPU: with a hundred of them on one, none would answer in time.
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
	verifies *gate.Gate
	suspends *gate.Gate
	wave     int // children of one fork that are started at the same time

	mu         sync.Mutex
	sandboxes  map[string]*Sandbox
	unwatched  map[string]chan struct{} // tags of branches that nobody waits for; closed when they are complete
	watchers   sync.WaitGroup
	background sync.WaitGroup                   // branches that nobody waits for, and the like
	patience   time.Duration                    // unwatchedWait but in tests
	writers    time.Duration                    // chain.WriterPatience but in tests
	room       func(dir string) (uint64, error) // what is free on a file system in bytes
	quit       chan struct{}                    // closed by Close: watchers leave their sandboxes alone
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
		restores:  gate.New(restoresPerCPU*runtime.NumCPU() + 1), // one more than an owner may have, see takePlace
		confirms:  gate.New(confirmsPerCPU*runtime.NumCPU() + 1),
		wave:      wavePerCPU * runtime.NumCPU(),
		branches:  gate.New(cfg.Branches),
		verifies:  gate.New(maxVerifies),
		suspends:  gate.New(maxSuspends),
		sandboxes: make(map[string]*Sandbox),
		unwatched: make(map[string]chan struct{}),
		patience:  unwatchedWait,
		writers:   chain.WriterPatience,
		room:      admit.FreeBytes,
		quit:      make(chan struct{}),
	}
	m.pool = vmpool.New(vmpool.Config{VMMs: cfg.VMMs, RunDir: cfg.RunDir, Size: cfg.PoolSize, Most: cfg.PoolMost,
		Log:      cfg.Log,
		Refilled: cfg.Observer.PoolRefilled})
	return m, nil
}

// Events returns what has lately happened to the manager's sandboxes, and to the snapshots if the
// store was given the same ring.
func (m *Manager) Events() *event.Ring { return m.cfg.Events }

// Snapshots returns the manager's store.
func (m *Manager) Snapshots() *store.Store { return m.cfg.Store }

func (m *Manager) vmDir(id string) string { return filepath.Join(m.cfg.RunDir, id) }

// Get returns the sandbox with an id.
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
	all := make([]*Sandbox, 0, len(m.sandboxes))
	for _, s := range m.sandboxes {
		all = append(all, s)
	}
	m.mu.Unlock()
	infos := make([]Info, len(all))
	for i, s := range all {
		infos[i] = s.Info()
	}
	slices.SortFunc(infos, func(a, b Info) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return infos
}

// shape is the VM that a snapshot's state fits into.
func shape(m snapshot.Machine) vm.Shape {
	return vm.Shape{MemoryBytes: m.MemoryBytes, VCPUs: m.VCPUs, Template: m.Template}
}

// maxVerifies is how many snapshots are verified at once. Each reads gigabytes of the disk and takes a
// CPU while it hashes them.
const maxVerifies = 3

// VerifySnapshot verifies a snapshot as store.Verify does, when its turn has come.
func (m *Manager) VerifySnapshot(ctx context.Context, tag string) error {
	release, err := takePlace(ctx, m.verifies, "")
	if err != nil {
		return err
	}
	defer release()
	return m.cfg.Store.Verify(ctx, tag)
}

// DeleteSnapshot removes a snapshot as store.Delete does, and the shells that waited for its forks.
func (m *Manager) DeleteSnapshot(tag string, mode store.DeleteMode) error {
	gone, err := m.cfg.Store.Delete(tag, mode)
	for _, d := range gone {
		m.pool.Drop(d.ID)
	}
	return err
}

// PoolSize returns the number of VMM shells that wait for a fork.
func (m *Manager) PoolSize() int { return m.pool.Count() }

// PoolWanted returns how many there are when the pool is warm.
func (m *Manager) PoolWanted() int { return m.pool.Wanted() }

// BranchesInFlight returns how many branches are being made, and how many may be at once.
func (m *Manager) BranchesInFlight() (n, most int) { return m.branches.Count() }

type left struct {
	LeftAlone
	ended <-chan struct{} // closed when its VMM has ended; nil: that is not watched
}

// LeftAlone is a sandbox of an earlier daemon that this one could not take over and has not
// touched.
type LeftAlone struct {
	ID     string
	PID    int // of its VMM; 0: it has none, or that is not known
	Reason string
}

// defaultBranches is how many branches a daemon makes at once.
const defaultBranches = 4

// maxSuspends is how many sandboxes are suspended at once. What each has written lies in RAM a second
// time until it is on disk, and is brought there one after another: a thousand whose time passes in
// the same second would fill the file system in RAM that everybody's branches need, and stand still
// all the while. One that waits for its turn runs on.
const maxSuspends = 4

// unwatchedWait is how long a fork waits for a branch that its caller did not wait for. Published
// clients of forkd 0.5 give up after a minute.
const unwatchedWait = 45 * time.Second
