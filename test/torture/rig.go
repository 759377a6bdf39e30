// Package torture branches, forks, kills and rolls back VMs, and verifies every copy. The guests
// run the program test/guest/torture, which can check whether memory and disk belong to one
// instant.
//
// The package uses VMMs directly, without a daemon, because it tests the machine and the files of a
// branch, but not the store. A seed determines the operations, but not the instants at which they
// interrupt the guest.
package torture

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmtest"
	"github.com/forkd/forkd/test/rig"
	"github.com/forkd/forkd/test/torture/guest"
)

const mib = 1 << 20

// Time limits of one step. They are long because an emulated host may be busy. A step that exceeds
// its limit is a failure.
const (
	bootLimit = 10 * time.Minute
	stepLimit = 5 * time.Minute
)

// systemMiB is the memory of a VM in addition to the memory that the guest program writes.
const systemMiB = 112

// Config determines the size of the guests.
type Config struct {
	Assets *vmtest.Assets
	Guest  guest.Size
	Jail   *jail.Starter
	Line   int // number of branches of a long line
}

// Rig makes VMs with the same configuration and counts the operations on them.
type Rig struct {
	cfg   Config
	shape vm.Shape
	dir   string // directory for sockets of the VMs
	ram   string // directory on tmpfs, for layers and disk tops
	names atomic.Uint64
	rng   *rand.Rand
	deck  *rig.Deck[round]
	drawn int // number of operations from the deck
	rep   *Report
	logf  func(format string, args ...any)
}

// NewRig returns a rig that reports to rep. It puts sockets into the directory dir, whose path must
// be short, and layers into the directory ram, which must be on tmpfs.
func NewRig(cfg Config, dir, ram string, rng *rand.Rand, rep *Report, logf func(string, ...any)) *Rig {
	shape := vm.Shape{
		MemoryBytes: uint64(systemMiB+cfg.Guest.MemoryMiB) * mib, VCPUs: uint32(cfg.Guest.CPUs), Template: vmtest.Template(),
	}
	return &Rig{cfg: cfg, shape: shape, dir: dir, ram: ram, rng: rng,
		deck: rig.NewDeck(rng, rounds()...), rep: rep, logf: logf}
}

// file returns a new file on tmpfs without a name. Its memory is freed when it is no longer open or
// mapped.
func (r *Rig) file() (*os.File, error) {
	f, err := os.CreateTemp(r.ram, "")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

// newTop returns an empty file for the private disk of a VM.
func (r *Rig) newTop(size uint64) (*os.File, error) {
	f, err := r.file()
	if err != nil {
		return nil, err
	}
	return f, disklayer.Format(f, size)
}

// running is a running VM.
type running struct {
	*vmmclient.VMM
	rig    *Rig
	name   string
	base   *Snapshot // snapshot that the memory is based on; nil after a boot
	origin *Snapshot // snapshot that the VM was restored from; equals base until the first rebase
	size   uint64    // size of the disk in bytes

	asking  sync.Mutex
	files   []*os.File // files of the disk, the private file last
	rebased *pending   // branch of the last request for a rebase; nil: none
	agent   *agentclient.Client
}

func (r *Rig) spawn(ctx context.Context, kind string) (*running, error) {
	name := fmt.Sprintf("%s%d", kind, r.names.Add(1))
	v, err := vmmclient.Spawn(ctx, vmmclient.Config{
		Bin: r.cfg.Assets.VMM, Dir: filepath.Join(r.dir, name), ID: name, Shape: r.shape, Jail: r.cfg.Jail,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: spawn: %w", name, err)
	}
	agent := agentclient.New(agentclient.DialUnix(filepath.Join(v.Dir(), vmmclient.VsockSocket)))
	return &running{VMM: v, rig: r, name: name, agent: agent}, nil
}

func newID() (id [16]byte) {
	_, _ = crand.Read(id[:])
	return id
}

// Boot boots a guest, starts the guest program in it, and saves it as the first snapshot.
func (r *Rig) Boot(ctx context.Context) (*Snapshot, error) {
	s, err := r.bootOnce(ctx)
	if vmtest.BootAgain(err) {
		r.logf("booted once more: %v", err)
		s, err = r.bootOnce(ctx)
	}
	return s, err
}

func (r *Rig) bootOnce(ctx context.Context) (*Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	v, err := r.spawn(ctx, "boot")
	if err != nil {
		return nil, err
	}
	defer v.Kill()
	s, err := r.boot(ctx, v)
	return s, v.explain(err)
}

func (r *Rig) boot(ctx context.Context, v *running) (*Snapshot, error) {
	base, err := os.Open(filepath.Join(r.cfg.Assets.Images["base"], "rootfs.ext4"))
	if err != nil {
		return nil, err
	}
	st, err := base.Stat()
	if err != nil {
		return nil, err
	}
	v.size = uint64(st.Size())
	top, err := r.newTop(v.size)
	if err != nil {
		return nil, err
	}
	v.files = []*os.File{base, top}
	kernel, err := os.Open(r.cfg.Assets.Minimal.VMLinux)
	if err != nil {
		return nil, err
	}
	defer kernel.Close()
	initrd, err := os.Open(r.cfg.Assets.Minimal.Initrd)
	if err != nil {
		return nil, err
	}
	defer initrd.Close()
	err = v.Boot(ctx, vmmproto.Boot{
		Cmdline: vmtest.Cmdline(), Disks: []vmmproto.Disk{{SizeBytes: v.size}}, VMGenID: newID(),
	}, vmmclient.BootFiles{Kernel: kernel, Initrd: initrd, Disks: [][]*os.File{v.files}})
	if err == nil {
		err = v.Resume(ctx)
	}
	if err != nil {
		return nil, err
	}
	if err := v.waitReady(ctx); err != nil {
		return nil, err
	}
	if err := v.startProgram(ctx); err != nil {
		return nil, err
	}
	return v.save(ctx)
}

func (v *running) waitReady(ctx context.Context) error {
	select {
	case c, ok := <-v.Conns():
		if !ok {
			return vmmclient.ErrGone
		}
		defer c.Conn.Close()
		var ready agentproto.Ready
		return json.NewDecoder(c.Conn).Decode(&ready)
	case <-ctx.Done():
		return fmt.Errorf("the agent did not become ready: %w", ctx.Err())
	}
}

func (v *running) startProgram(ctx context.Context) error {
	program, err := os.ReadFile(v.rig.cfg.Assets.Torture)
	if err != nil {
		return err
	}
	if err := v.agent.WriteFile(ctx, guest.Program, "", bytes.NewReader(program)); err != nil {
		return err
	}
	out, err := v.exec(ctx, "/bin/sh", "-c", v.rig.cfg.Guest.Start())
	if err != nil {
		return fmt.Errorf("start the guest program: %w: %s", err, out)
	}
	_, err = v.ask(ctx, "verify")
	return err
}

// exec runs a command until it exits and returns its output.
func (v *running) exec(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	res, err := v.agent.Exec(ctx, agentclient.ExecRequest{Args: args, Timeout: stepLimit})
	if err == nil {
		err = res.Err()
	}
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("%s: %s", res.Status, res.Stderr)
	}
	return res.Stdout, err
}

// explain adds the VM's console output to an error.
func (v *running) explain(err error) error {
	if err == nil {
		return nil
	}
	console, cerr := vmpool.Console(vmpool.Processes{}, v.Dir())
	return fmt.Errorf("%s: %w\nconsole (%v):\n%s", v.name, err, cerr, vmtest.LastLines(console.Bytes, 30))
}

// tinyTmpfs mounts a tmpfs with room for size bytes. The returned function unmounts the tmpfs.
func (r *Rig) tinyTmpfs(size uint64) (dir string, undo func() error, err error) {
	if dir, err = os.MkdirTemp(r.dir, "full"); err != nil {
		return "", nil, err
	}
	if err := unix.Mount("torture", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		return "", nil, fmt.Errorf("mount a small tmpfs: %w", err)
	}
	return dir, func() error { return errors.Join(unix.Unmount(dir, unix.MNT_DETACH), os.Remove(dir)) }, nil
}
