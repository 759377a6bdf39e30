package sandbox

import (
	"cmp"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/event"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/host/volume"
	"github.com/forkd/forkd/internal/host/writers/writertest"
)

func TestMain(m *testing.M) {
	vmfake.ServeNet()
	os.Exit(writertest.Main(m))
}

type counter struct {
	mu                        sync.Mutex
	forks, ready, unconfirmed int
	exits, refused            []string
	branches, rollbacks       int
}

// +checklocksignore: it returns with the lock held
func (c *counter) lock() func() { c.mu.Lock(); return c.mu.Unlock }

func (c *counter) ForkDone(ForkResult, error)     { defer c.lock()(); c.forks++ }
func (c *counter) ChildReady(Timing)              { defer c.lock()(); c.ready++ }
func (c *counter) PoolRefilled(time.Duration)     {}
func (c *counter) ConfirmFailed()                 { defer c.lock()(); c.unconfirmed++ }
func (c *counter) BranchDone(BranchResult, error) { defer c.lock()(); c.branches++ }
func (c *counter) RollbackDone(error)             { defer c.lock()(); c.rollbacks++ }
func (c *counter) Refused(code string)            { defer c.lock()(); c.refused = append(c.refused, code) }
func (c *counter) SandboxExited(r string)         { defer c.lock()(); c.exits = append(c.exits, r) }

// world is a manager with fake VMs and guests, and the directories that it must leave clean.
type world struct {
	*Manager
	*bake.Baker
	vmms  *vmfake.VMMs
	hosts vmpool.VMMs // VMMs that the manager uses; nil: the field vmms
	count *counter
	dir   string
	bake  bake.Request

	online bool // sandboxes have a network
	net    *netclient.Client
	events *event.Ring // events of the latest manager
	admit  admit.Rules

	volumes    *volume.Store // the volumes of the latest manager
	volumesLog slog.Handler  // log of the volumes; nil: none
	room       func()        // if set, called when a volume is being created, with the source's lock held

	poolMost int
}

func newWorld(t testing.TB, poolSize int) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{dir: dir, vmms: &vmfake.VMMs{}, bake: bake.Request{Tag: "p"}}
	for name, field := range map[string]*string{"kernel": &w.bake.Kernel, "initrd": &w.bake.Initrd,
		"rootfs": &w.bake.Rootfs} {
		*field = filepath.Join(dir, name)
		if err := os.WriteFile(*field, make([]byte, 4096), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.start(t, poolSize)
	return w
}

// start starts a manager, which takes over the files in the world's directory.
func (w *world) start(t testing.TB, poolSize int) {
	t.Helper()
	st, err := store.Open(store.Config{Root: filepath.Join(w.dir, "state"), RAM: filepath.Join(w.dir, "ram")})
	if err != nil {
		t.Fatal(err)
	}
	w.count, w.events = &counter{}, event.NewRing(256)
	if w.online {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		w.net, err = netclient.New(netclient.Config{Bin: self, Dir: filepath.Join(w.dir, "net"),
			Authority: filepath.Join(w.dir, "ca.pem"), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
	}
	w.volumes, err = volume.Open(volume.Config{Dir: filepath.Join(w.dir, "volumes"),
		Log: slog.New(cmp.Or(w.volumesLog, slog.DiscardHandler)), Room: func(*os.File, uint64) error {
			if w.room != nil {
				w.room()
			}
			return nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	vmms := vmpool.VMMs(w.vmms)
	if w.hosts != nil {
		vmms = w.hosts
	}
	w.Manager, err = New(Config{
		Store: st, VMMs: vmms, Net: w.net, Guest: func(string, string) Guest { return vmfake.Guest{All: w.vmms} },
		NewTop:   disklayer.Format,
		Volumes:  w.volumes,
		RunDir:   filepath.Join(w.dir, "run"),
		DataDir:  filepath.Join(w.dir, "data"),
		PoolSize: poolSize, PoolMost: w.poolMost, Admit: w.admit,
		Observer: w.count, Events: w.events, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Baker = bake.New(bake.Config{Store: st, VMMs: w.vmms, Net: w.net, Guest: func(string) bake.Guest {
		return vmfake.Guest{All: w.vmms}
	},
		RunDir: filepath.Join(w.dir, "run"), Template: "host", Accel: "kvm", Log: slog.New(slog.DiscardHandler),
		Admit: w.AdmitParent})
}

func (w *world) stop() {
	w.Close(false)
	w.net.Close()
	w.Snapshots().Close()
}

// has reports whether there is a sandbox with this id.
func (w *world) has(id string) bool {
	_, err := w.Get(id)
	return err == nil
}

// DeleteSnapshot deletes a snapshot.
func (w *world) DeleteSnapshot(tag string, mode store.DeleteMode) error {
	_, err := w.Snapshots().Delete(tag, mode)
	return err
}

// checkClean fails the test if files or processes of a sandbox are left.
func (w *world) checkClean(t testing.TB) {
	t.Helper()
	w.Snapshots().Quiesce()
	if n := w.vmms.Count(); n != 0 {
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
	if n := w.unnamed(t); n != 0 {
		t.Errorf("%d snapshots without a name are left", n)
	}
}

// unnamed returns how many deleted snapshots still exist because other snapshots need them.
func (w *world) unnamed(t testing.TB) (n int) {
	t.Helper()
	w.Snapshots().Quiesce()
	entries, err := os.ReadDir(filepath.Join(w.dir, "state", "snapshots"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			n++
		}
	}
	return n
}
