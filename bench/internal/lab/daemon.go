package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/build/image"
	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/daemon/metrics"
	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/internal/emu/machineapi"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/vmtest"
	"github.com/forkd/forkd/recipes"
)

// Daemon has the parts of `forkd daemon` below the REST API: a store with directories on disk and
// on tmpfs, forkd-vmm, and the sandbox managers that use these parts. No other process on the host
// uses these parts.
type Daemon struct {
	Host   report.Host
	Assets *vmtest.Assets // nil for NewStubDaemon
	Dir    string         // directory for copies of programs
	RunDir string         // directory for sockets; in RAM, like /run on hosts with systemd, and with a short path
	Store  *store.Store
	VMMs   vmpool.Processes

	net  string // path of forkd-net
	disk string // directory of the store and of private disks
	made int    // number of managers so far
}

// NewDaemon sets up an empty store. To the given cleanup stack, it adds functions that remove
// everything.
func NewDaemon(host report.Host, undo *cleanup.Stack) (*Daemon, error) {
	files, err := assets()
	if err != nil {
		return nil, err
	}
	return newDaemon(host, files, undo)
}

// NewStubDaemon is like NewDaemon, but needs no files of internal/vmtest/prepare. It can only run
// stubs, and its VMM is the embedded program.
func NewStubDaemon(host report.Host, undo *cleanup.Stack) (*Daemon, error) {
	return newDaemon(host, nil, undo)
}

func newDaemon(host report.Host, files *vmtest.Assets, undo *cleanup.Stack) (*Daemon, error) {
	d := &Daemon{Host: host, Assets: files}
	d.VMMs.KVM = &vmmclient.KVM{}
	undo.Add(func() { _ = d.VMMs.KVM.Close() })
	var err error
	if d.Dir, err = tempDir("/tmp", undo); err != nil {
		return nil, err
	}
	if d.VMMs.Jail, err = jail.New(jail.Options{}); err != nil {
		return nil, err
	}
	if files != nil {
		d.VMMs.Bin, err = CopyBinary(d.Dir, files.VMM)
	} else {
		d.VMMs.Bin, err = d.install(embedded.VMM)
	}
	if err != nil {
		return nil, err
	}
	if d.net, err = d.install(embedded.Net); err != nil {
		return nil, err
	}
	disk := machineapi.StateDir
	if !vmtest.Emulated() {
		if disk, err = cachedir.Dir(); err == nil {
			err = os.MkdirAll(disk, 0o755)
		}
		if err != nil {
			return nil, err
		}
	}
	if d.disk, err = tempDir(disk, undo); err != nil {
		return nil, err
	}
	ram, err := tempDir("/dev/shm", undo)
	if err != nil {
		return nil, err
	}
	if d.RunDir, err = tempDir("/dev/shm", undo); err != nil {
		return nil, err
	}
	if d.Store, err = store.Open(store.Config{Root: filepath.Join(d.disk, "store"), RAM: ram}); err != nil {
		return nil, err
	}
	undo.Add(func() { d.Store.Close() })
	return d, nil
}

// install writes an embedded program to a file, and returns the path of the file.
func (d *Daemon) install(name string) (path string, err error) {
	program, err := embedded.Open(name)
	if err != nil {
		return "", err
	}
	path = filepath.Join(d.Dir, name)
	// Jail.Starter needs these permissions.
	return path, errors.Join(os.WriteFile(path, program, 0o700), os.Chmod(path, 0o755), os.Chmod(d.Dir, 0o711))
}

// tempDir makes a directory with a short path. To the given cleanup stack, it adds a function that
// removes the directory.
func tempDir(parent string, undo *cleanup.Stack) (string, error) {
	dir, err := os.MkdirTemp(parent, "fkb")
	if err == nil {
		undo.Add(func() { os.RemoveAll(dir) })
	}
	return dir, err
}

// Manager is a sandbox manager that belongs to a Daemon.
type Manager struct {
	*sandbox.Manager
	baker   *bake.Baker
	runDir  string
	dataDir string
}

// VsockSocket returns the path of the vsock socket of a sandbox's VMM.
func (m *Manager) VsockSocket(id string) string {
	return filepath.Join(m.runDir, id, vmmclient.VsockSocket)
}

// Options are the settings in which the managers of one Daemon may differ.
type Options struct {
	Pool  int                                 // number of waiting VMMs
	VMMs  vmpool.VMMs                         // nil: the VMMs of the daemon
	Guest func(_, vsock string) sandbox.Guest // stands in for the agent; nil: the agent itself
}

// WithManager calls f with a sandbox manager that is configured like the manager in the daemon.
// Afterwards it kills the manager's sandboxes and waiting VMMs.
func (d *Daemon) WithManager(o Options, f func(*Manager) error) error {
	d.made++
	name := strconv.Itoa(d.made)
	online, err := netclient.New(netclient.Config{Bin: d.net, Dir: filepath.Join(d.RunDir, "net"+name), Jail: d.VMMs.Jail,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer online.Close()
	if o.VMMs == nil {
		o.VMMs = d.VMMs
	}
	if o.Guest == nil {
		o.Guest = func(_, vsock string) sandbox.Guest { return agentclient.New(agentclient.DialUnix(vsock)) }
	}
	m := &Manager{runDir: filepath.Join(d.RunDir, name), dataDir: filepath.Join(d.disk, name)}
	m.Manager, err = sandbox.New(sandbox.Config{
		Store: d.Store, VMMs: o.VMMs, Net: online, Guest: o.Guest, NewTop: disklayer.Format,
		RunDir: m.runDir, DataDir: m.dataDir,
		PoolSize: o.Pool,
		Observer: metrics.New("bench"), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	defer m.Close(true)
	m.baker = bake.New(bake.Config{
		Store: d.Store, VMMs: o.VMMs, Net: online, RunDir: m.runDir,
		Guest:    func(vsock string) bake.Guest { return agentclient.New(agentclient.DialUnix(vsock)) },
		Template: Template(d.Host), Accel: d.Host.Accel, Cmdline: vmtest.Cmdline(), Log: slog.New(slog.DiscardHandler),
	})
	return f(m)
}

// Bake bakes the image of a recipe, like `forkd build`.
func (d *Daemon) Bake(ctx context.Context, m *Manager, tag, recipe string, memoryMiB uint64) error {
	r, err := d.Recipe(recipe)
	if err != nil {
		return err
	}
	r.Tag, r.MemoryMiB = tag, memoryMiB
	return m.Bake(ctx, r)
}

// Bake bakes a parent. The request r was made by Recipe.
func (m *Manager) Bake(ctx context.Context, r bake.Request) error {
	_, err := m.baker.Bake(ctx, r)
	return err
}

// Recipe returns a request for a parent with the image and the warm-up of a recipe.
func (d *Daemon) Recipe(name string) (bake.Request, error) {
	dir, ok := d.Assets.Images[name]
	if !ok {
		return bake.Request{}, fmt.Errorf("recipe %q: internal/vmtest/prepare makes no image of it", name)
	}
	img, err := image.Open(dir)
	if err != nil {
		return bake.Request{}, err
	}
	r, err := image.LoadRecipeFS(recipes.FS, name)
	if err != nil {
		return bake.Request{}, err
	}
	return bake.Request{
		Kernel: d.Assets.Cloud.VMLinux, Initrd: d.Assets.Cloud.Initrd, Rootfs: img.Rootfs(),
		Env: r.EnvOver(img.Env), Commands: r.Warmup.Commands, Python: r.Warmup.Python,
	}, nil
}

// poolLimit bounds the time for starting the VMMs of a pool. On an emulated host, each VMM takes
// about 0.1 s.
const poolLimit = 2 * time.Minute

// WaitPool waits until n VMMs of the pool are ready.
func (m *Manager) WaitPool(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, poolLimit, errors.New("the pool does not fill"))
	defer cancel()
	for m.PoolSize() < n {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("wait for %d ready VMMs: %w", n, context.Cause(ctx))
		}
	}
	return nil
}
