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

	"github.com/forkd/forkd/internal/snapshot"
	"github.com/forkd/forkd/internal/store"
	"github.com/forkd/forkd/internal/vmm/vmmproto"
)

// Observer is told of events that are worth counting. Its methods return at once.
type Observer interface {
	ForkDone(r ForkResult, err error)
	ChildReady(t Timing)
	ConfirmFailed()
	SandboxExited(reason string)
	BranchDone(r BranchResult, err error)
	RollbackDone(err error)
}

// Config is what a Manager works with. All fields are required unless they say otherwise.
type Config struct {
	Store    *store.Store
	VMMs     VMMs
	Guest    func(vsockPath string) Guest                // agent behind the vsock socket of a VM
	NewTop   func(f *os.File, sizeBytes uint64) error    // makes f an empty private disk top
	Merge    func(dst *os.File, layers []*os.File) error // fills the empty disk layer dst with layers, base first
	RunDir   string                                      // sockets and records of sandboxes; of this manager alone
	DataDir  string                                      // private disk tops; of this manager alone
	Template string                                      // CPU template of new parents
	Accel    string                                      // "kvm", or "tcg" on an emulated host
	Cmdline  string                                      // kernel command line of parents
	Branches int                                         // branches at once; 0: 4
	PoolSize int                                         // ready shells per hot snapshot; 0: none
	Confirm  time.Duration                               // how long a child may take to confirm; 0: 30 s
	Observer Observer
	Log      *slog.Logger
}

// defaultConfirm is generous: a child that needs it runs on an emulated or badly overloaded host.
const defaultConfirm = 30 * time.Second

// Children of one daemon that are restored at the same time, and that are on their way from nothing to confirmed, per
// CPU. Restoring is CPU-bound. A child that waits for its agent mostly waits itself, but every guest that was resumed
// wants a CPU: with a hundred of them on one, none would answer in time.
const (
	restoresPerCPU = 2
	startsPerCPU   = 4
)

// Manager owns the sandboxes of one daemon. Its methods may be called concurrently.
type Manager struct {
	cfg      Config
	pool     *pool
	restores chan struct{} // semaphores
	starts   chan struct{}
	bakes    chan struct{}
	branches chan struct{}

	mu         sync.Mutex
	sandboxes  map[string]*Sandbox
	workspaces map[string]*Workspace // by name; without a sandbox while they are being created
	watchers   sync.WaitGroup
	background sync.WaitGroup // branches that nobody waits for
	quit       chan struct{}  // closed by Close: watchers leave their sandboxes alone
	closed     bool
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
		cfg:        cfg,
		restores:   make(chan struct{}, restoresPerCPU*runtime.NumCPU()),
		starts:     make(chan struct{}, startsPerCPU*runtime.NumCPU()),
		bakes:      make(chan struct{}, 1),
		branches:   make(chan struct{}, cfg.Branches),
		sandboxes:  make(map[string]*Sandbox),
		workspaces: make(map[string]*Workspace),
		quit:       make(chan struct{}),
	}
	m.pool = newPool(cfg.PoolSize, m.spawnShell, cfg.Log)
	return m, nil
}

// Snapshots returns the manager's store.
func (m *Manager) Snapshots() *store.Store { return m.cfg.Store }

// idPrefix begins every sandbox id, as in forkd 0.5.
const idPrefix = "sb-"

// CheckID reports whether id can be a sandbox's.
func CheckID(id string) error {
	if rest, ok := strings.CutPrefix(id, idPrefix); ok && snapshot.CheckID(rest) == nil {
		return nil
	}
	return &NotFoundError{ID: id}
}

func newID() string { return idPrefix + snapshot.NewID() }

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

// spawnShell starts a VMM process with a VM of the given shape and an id of its own.
func (m *Manager) spawnShell(ctx context.Context, shape vmmproto.Machine) (*shell, error) {
	id := newID()
	vmm, err := m.cfg.VMMs.Spawn(ctx, ShellConfig{ID: id, Dir: m.vmDir(id), Machine: shape})
	if err != nil {
		return nil, err
	}
	return &shell{id: id, vmm: vmm}, nil
}

// shape is the VM that a snapshot's state fits into.
func shape(m snapshot.Machine) vmmproto.Machine {
	return vmmproto.Machine{MemoryBytes: m.MemoryBytes, VCPUs: m.VCPUs, Template: m.Template}
}

// acquire takes a place in a semaphore and returns how to give it back.
func acquire(ctx context.Context, sem chan struct{}) (release func(), err error) {
	select {
	case sem <- struct{}{}:
		return func() { <-sem }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
