package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/forkd/forkd/internal/agentclient"
	"github.com/forkd/forkd/internal/agentproto"
	"github.com/forkd/forkd/internal/disklayer"
	"github.com/forkd/forkd/internal/memlayer"
	"github.com/forkd/forkd/internal/store"
	"github.com/forkd/forkd/internal/vmm/vmmclient"
	"github.com/forkd/forkd/internal/vmm/vmmproto"
)

// fakeVMMs starts VMs that do nothing, except what a test tells them to. Real ones run in the machine's tests.
type fakeVMMs struct {
	mu      sync.Mutex
	live    map[string]*fakeVMM // by directory
	spawned int

	spawnErr   error
	restoreErr func(n int) error // n-th restore, from 1
	restores   int
	bootExit   *vmmproto.Exit // the guest ends like this instead of announcing itself
	forkedErr  func(n int) error
	forked     []agentproto.Forked
	evalErr    *agentclient.EvalError
	saveErr    error
	branchErr  error // before the disk tops are swapped
	lateErr    error // after that
	copyErr    error // of a live branch
	statsErr   error
	wrap       func(*fakeVMM) VMM // what Spawn returns; nil: the VM itself
	killing    func()             // called by every Kill; nil: nothing
	most       int                // layers that a VM has had above those of its snapshot
	copying    chan struct{}      // closed when a live branch is copied; nil: at once
}

type fakeVMM struct {
	all   *fakeVMMs
	dir   string
	conns chan vmmclient.Conn
	done  chan struct{}
	once  sync.Once
	exit  vmmproto.Exit
	swaps uint64
	above int // layers above those of the snapshot, the top included
}

func (f *fakeVMMs) Spawn(_ context.Context, c ShellConfig) (VMM, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.spawnErr != nil {
		return nil, f.spawnErr
	}
	if err := os.Mkdir(c.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(c.Dir, "console"), []byte("hello\nKernel panic - not syncing: x\nbye\n"), 0o600); err != nil {
		return nil, err
	}
	v := &fakeVMM{all: f, dir: c.Dir, conns: make(chan vmmclient.Conn, 1), done: make(chan struct{})}
	f.live[c.Dir] = v
	f.spawned++
	if f.wrap != nil {
		return f.wrap(v), nil
	}
	return v, nil
}

func (f *fakeVMMs) Attach(_, dir string) (VMM, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v := f.live[dir]; v != nil {
		return v, nil
	}
	return nil, errors.New("no such process")
}

func (f *fakeVMMs) Console(dir string) ([]byte, error) {
	return os.ReadFile(filepath.Join(dir, "console"))
}

func (f *fakeVMMs) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.live)
}

func (v *fakeVMM) end(x vmmproto.Exit) {
	v.once.Do(func() {
		v.exit = x
		v.all.mu.Lock()
		delete(v.all.live, v.dir)
		v.all.mu.Unlock()
		close(v.done)
		close(v.conns)
	})
}

func (v *fakeVMM) PID() int { return os.Getpid() }
func (v *fakeVMM) Boot(context.Context, vmmproto.Boot, vmmclient.BootFiles) error {
	if v.all.bootExit != nil {
		v.end(*v.all.bootExit)
		return nil
	}
	ours, theirs := net.Pipe()
	go func() {
		json.NewEncoder(theirs).Encode(agentproto.Ready{Version: agentproto.Version, Kernel: "6.12", Warm: []string{"python"}})
		theirs.Close()
	}()
	v.conns <- vmmclient.Conn{Port: agentproto.ReadyPort, Conn: ours}
	return nil
}

func (v *fakeVMM) Restore(context.Context, vmmproto.Restore, vmmclient.RestoreFiles) (vmmproto.RestoreResult, error) {
	v.all.mu.Lock()
	defer v.all.mu.Unlock()
	v.all.restores++
	if v.all.restoreErr != nil {
		return vmmproto.RestoreResult{}, v.all.restoreErr(v.all.restores)
	}
	return vmmproto.RestoreResult{}, nil
}
func (v *fakeVMM) Resume(context.Context) error { return nil }
func (v *fakeVMM) Pause(context.Context) error  { return nil }
func (v *fakeVMM) Save(_ context.Context, _ vmmproto.Save, f vmmclient.SaveFiles) (vmmproto.SaveResult, error) {
	if v.all.saveErr != nil {
		return vmmproto.SaveResult{}, v.all.saveErr
	}
	f.State.WriteString("state")
	f.Layer.Write(make([]byte, memlayer.PageSize))
	return vmmproto.SaveResult{Extents: []memlayer.Extent{{Length: memlayer.PageSize}}, LayerBytes: memlayer.PageSize}, nil
}
func (v *fakeVMM) Branch(_ context.Context, req vmmproto.Branch, f vmmclient.BranchFiles) (r vmmproto.BranchResult, err error) {
	if v.all.branchErr != nil {
		return r, v.all.branchErr
	}
	f.State.WriteString("state")
	f.Layer.Write(make([]byte, memlayer.PageSize))
	v.swaps += uint64(len(f.Tops))
	v.above += len(f.Tops)
	v.all.most = max(v.all.most, v.above)
	r.Mode, r.Save.Extents = req.Mode, []memlayer.Extent{{Length: memlayer.PageSize}}
	return r, v.all.lateErr
}
func (v *fakeVMM) WaitCopied(context.Context, uint64) (b vmmproto.Branched, err error) {
	if v.all.copying != nil {
		<-v.all.copying
	}
	return b, v.all.copyErr
}
func (v *fakeVMM) Merge(context.Context, vmmproto.Merge, *os.File) error {
	v.above = 2
	return nil
}
func (v *fakeVMM) Stats(context.Context) (vmmproto.Stats, error) {
	return vmmproto.Stats{TopSwaps: v.swaps}, v.all.statsErr
}
func (v *fakeVMM) Conns() <-chan vmmclient.Conn { return v.conns }
func (v *fakeVMM) Done() <-chan struct{}        { return v.done }
func (v *fakeVMM) Exit() vmmproto.Exit          { return v.exit }
func (v *fakeVMM) Kill() error {
	if v.all.killing != nil {
		v.all.killing()
	}
	v.end(vmmproto.Exit{Reason: vmmproto.ExitInternal, Detail: "killed"})
	return os.RemoveAll(v.dir)
}

// fakeGuest is the agent of every fake VM.
type fakeGuest struct{ all *fakeVMMs }

func (g fakeGuest) Ping(context.Context) (agentproto.Ready, error) { return agentproto.Ready{}, nil }
func (g fakeGuest) Sync(context.Context) error                     { return nil }
func (g fakeGuest) Forked(ctx context.Context, f agentproto.Forked) error {
	g.all.mu.Lock()
	g.all.forked = append(g.all.forked, f)
	n, hook := len(g.all.forked), g.all.forkedErr
	g.all.mu.Unlock()
	if hook != nil {
		return hook(n)
	}
	return nil
}
func (g fakeGuest) Exec(ctx context.Context, r agentclient.ExecRequest) (agentclient.ExecResult, error) {
	if strings.Contains(strings.Join(r.Args, " "), "block") {
		<-ctx.Done()
		return agentclient.ExecResult{}, errors.New("connection reset")
	}
	return agentclient.ExecResult{Outcome: agentclient.Exited}, nil
}
func (g fakeGuest) Eval(context.Context, string, agentclient.EvalOptions) (agentclient.EvalResult, error) {
	return agentclient.EvalResult{Error: g.all.evalErr}, nil
}
func (g fakeGuest) ReadFile(context.Context, string, string) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("content")), nil
}
func (g fakeGuest) WriteFile(context.Context, string, string, io.Reader) error { return nil }

type counter struct {
	mu                        sync.Mutex
	forks, ready, unconfirmed int
	exits                     []string
	branches, rollbacks       int
}

func (c *counter) lock() func()                   { c.mu.Lock(); return c.mu.Unlock }
func (c *counter) ForkDone(ForkResult, error)     { defer c.lock()(); c.forks++ }
func (c *counter) ChildReady(Timing)              { defer c.lock()(); c.ready++ }
func (c *counter) ConfirmFailed()                 { defer c.lock()(); c.unconfirmed++ }
func (c *counter) BranchDone(BranchResult, error) { defer c.lock()(); c.branches++ }
func (c *counter) RollbackDone(error)             { defer c.lock()(); c.rollbacks++ }
func (c *counter) SandboxExited(r string)         { defer c.lock()(); c.exits = append(c.exits, r) }

// world is a manager over fakes, and the directories it must leave clean.
type world struct {
	*Manager
	vmms  *fakeVMMs
	count *counter
	dir   string
	bake  BakeRequest
}

func newWorld(t *testing.T, poolSize int) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{dir: dir, vmms: &fakeVMMs{live: make(map[string]*fakeVMM)}, bake: BakeRequest{Tag: "p"}}
	for name, field := range map[string]*string{"kernel": &w.bake.Kernel, "initrd": &w.bake.Initrd, "rootfs": &w.bake.Rootfs} {
		*field = filepath.Join(dir, name)
		if err := os.WriteFile(*field, make([]byte, 4096), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.start(t, poolSize)
	return w
}

// start makes a manager over what is in the world's directory.
func (w *world) start(t *testing.T, poolSize int) {
	t.Helper()
	st, err := store.Open(store.Config{Root: filepath.Join(w.dir, "state"), RAM: filepath.Join(w.dir, "ram")})
	if err != nil {
		t.Fatal(err)
	}
	w.count = &counter{}
	w.Manager, err = New(Config{
		Store: st, VMMs: w.vmms, Guest: func(string) Guest { return fakeGuest{w.vmms} },
		NewTop:   disklayer.Format,
		Merge:    disklayer.Merge,
		RunDir:   filepath.Join(w.dir, "run"),
		DataDir:  filepath.Join(w.dir, "data"),
		Template: "host", Accel: "kvm", PoolSize: poolSize,
		Observer: w.count, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) stop() {
	w.Close(false)
	w.Snapshots().Close()
}

// checkClean fails if anything of a sandbox is left.
func (w *world) checkClean(t *testing.T) {
	t.Helper()
	w.Snapshots().Quiesce()
	if n := w.vmms.count(); n != 0 {
		t.Errorf("%d VMs are left", n)
	}
	for _, dir := range []string{w.cfg.RunDir, w.cfg.DataDir, filepath.Join(w.dir, "state", "staging")} {
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 0 {
			t.Errorf("%s: %v left (%v)", dir, entries, err)
		}
	}
	for _, i := range w.Snapshots().List() {
		if i.Leases != 0 {
			t.Errorf("snapshot %s has %d leases", i.Tag, i.Leases)
		}
	}
}
