// Package bake makes snapshots of parents. A parent is a VM that is booted only to be saved: Bake
// boots an image, waits until its agent is ready, runs warm-up commands, and saves the VM as a
// snapshot.
//
// The parent writes to the top, a disk layer that becomes a part of the snapshot. Its memory
// becomes the snapshot's memory layer, which consists of ranges called extents.
//
// The package neither builds images nor forks the snapshots. It uses package store for the files of
// snapshots, vmpool.VMMs for VMM processes, and its interface Guest for the agent.
package bake

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/excerpt"
	"github.com/forkd/forkd/internal/host/identity"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// Result describes the snapshot that a bake has made, with the durations of the steps.
type Result struct {
	Info     store.Info
	Ready    agentproto.Ready
	Boot     time.Duration // time from the first instruction until the agent reported that it was ready
	Warmup   time.Duration
	Save     time.Duration // time for writing state and memory to RAM
	Persist  time.Duration // time for flushing to the disk and publishing
	MemBytes uint64        // length of the memory layer, in bytes
	Output   string        // end of the warm-up's output; the stdout of each step precedes its stderr
}

// Guest is the agent of a parent.
type Guest interface {
	Forked(context.Context, agentproto.Forked) (*agentproto.Unique, error)
	Sync(context.Context) error
	Exec(context.Context, agentclient.ExecRequest) (agentclient.ExecResult, error)
	Eval(ctx context.Context, code string, opts agentclient.EvalOptions) (agentclient.EvalResult, error)
	SetDefaults(context.Context, agentclient.Defaults) error
}

// Config configures a Baker. All fields are required unless a comment says otherwise.
type Config struct {
	Store    *store.Store
	VMMs     vmpool.VMMs
	Net      *netclient.Client            // nil: parents have no network
	Guest    func(vsockPath string) Guest // returns the agent behind the vsock socket of a VM
	RunDir   string                       // holds a directory for each VM
	Template string                       // default CPU template of parents
	Accel    string                       // "kvm", or "tcg" on an emulated host
	Cmdline  string                       // kernel command line of parents

	// Initrd returns the initramfs for a kernel. It is called for requests that name a kernel but
	// no initramfs.
	Initrd func(kernel string) (*os.File, error)
	Log    *slog.Logger

	// Admit reserves a place on the host for a parent whose disk comes from a client without the
	// right to bake. The parent's memory is given in bytes.
	Admit func(ctx context.Context, vcpus uint32, memory uint64) (leave func(), err error)
}

// Baker bakes one parent at a time, because each bake needs the memory and CPUs that its request
// names. A parent whose disk comes from a client without the right to bake takes a separate place,
// because its guest may never become ready.
type Baker struct {
	cfg   Config
	place *gate.Gate    // place of the current bake
	boots *gate.Gate    // places for parents whose disk comes from a client without the right to bake
	limit time.Duration // bootTimeout, except in tests
}

// Bounds on parents whose disk comes from a client without the right to bake.
const (
	maxBoots    = 2               // maximum number of such parents at a time; a client may have one
	bootTimeout = 5 * time.Minute // time limit from the start of the VM to the snapshot
)

func New(cfg Config) *Baker {
	return &Baker{cfg: cfg, place: gate.New(1), boots: gate.New(maxBoots), limit: bootTimeout}
}

// CheckLimits returns an error if this host cannot apply the limits to sandboxes.
func (k *Baker) CheckLimits(l vm.Limits) error { return k.cfg.VMMs.CheckLimits("limits.", l) }

// enter waits for a place of the Baker. If the disk comes from a client without the right to bake,
// enter also reserves a place on the host (see Config.Admit). It returns the context for making the
// parent, and a function that frees the places.
func (k *Baker) enter(ctx context.Context, req *Request) (context.Context, func(), error) {
	if !req.ofClient() {
		leave, err := k.place.Wait(ctx, gate.Share{Key: req.Client})
		return ctx, leave, err
	}
	leave, err := k.boots.Wait(ctx, owner.Share(req.Client, maxBoots-1))
	if err != nil {
		return nil, nil, err
	}
	withdraw, err := k.cfg.Admit(ctx, req.VCPUs, req.MemoryMiB<<20)
	if err != nil {
		leave()
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, k.limit, fmt.Errorf("no snapshot within %v: %w", k.limit,
		context.DeadlineExceeded))
	return ctx, func() { cancel(); withdraw(); leave() }, nil
}

// bake is one run of Bake.
type bake struct {
	cfg     *Config
	req     Request
	staging *store.Staging
	dir     string
	vmm     vmpool.VMM
	guest   Guest
	id      string // ID of the parent's VM
	link    *netclient.Link
	from    *store.Lease   // lease of the snapshot that the parent boots from; nil: the parent boots from an image
	disk    *snapshot.Disk // the parent's disk without its own layer
	lower   []*os.File     // open files of the field disk, base image first
	undo    cleanup.Stack
	step    string // name of the current step, for errors
	result  Result
}

// Bake boots a parent, waits until its agent is ready, warms it up, saves it and publishes the
// snapshot. After an error Bake removes everything it has made. If the guest has run, the error is
// an *Error with the end of the guest's console.
func (k *Baker) Bake(ctx context.Context, req Request) (Result, error) {
	b := &bake{cfg: &k.cfg}
	defer b.undo.Run()
	if err := snapshot.CheckEnv(req.Env); err != nil {
		return Result{}, &invalid.Error{Field: "env", Reason: err.Error()}
	}
	if req.From != "" {
		if err := b.acquire(&req); err != nil {
			return Result{}, err
		}
	}
	req = k.withDefaults(req)
	if err := req.check(); err != nil {
		return Result{}, err
	}
	if err := k.cfg.VMMs.CheckLimits("limits.", req.Limits); err != nil {
		return Result{}, err
	}
	ctx, leave, err := k.enter(ctx, &req)
	if err != nil {
		return Result{}, err
	}
	defer leave()
	b.req = req
	if b.staging, err = k.cfg.Store.Stage(req.Tag); err != nil {
		return Result{}, err
	}
	b.undo.Add(b.staging.Discard)
	if req.Encrypt {
		if err := b.staging.Encrypt(ctx, b.from, false, false); err != nil {
			return Result{}, err
		}
	}
	if err := b.run(ctx); err != nil {
		failed := &Error{Tag: req.Tag, Step: b.step, Err: err}
		if b.vmm != nil {
			console, _ := vmpool.Console(k.cfg.VMMs, b.dir) // if this fails, the error has no console
			failed.Console = excerpt.Console(console.Bytes, 10)
		}
		return Result{}, failed
	}
	return b.result, nil
}

// begin records the current step, for errors and for clients that ask about the snapshot.
func (b *bake) begin(step string) {
	b.step = step
	b.staging.SetStep(step)
}

func (b *bake) run(ctx context.Context) error {
	b.begin("start the VMM")
	shell, err := vmpool.Spawn(ctx, b.cfg.VMMs, b.cfg.RunDir, vm.Shape{
		MemoryBytes: b.req.MemoryMiB << 20, VCPUs: b.req.VCPUs, Template: b.req.Template,
	})
	if err != nil {
		return vmpool.Cause(ctx, err)
	}
	b.vmm, b.dir, b.id = shell.VMM, shell.Dir, shell.ID
	b.undo.Add(func() { b.kill() })
	if b.req.ofClient() {
		if err := b.vmm.Limit(b.bootLimits(), b.req.MemoryMiB<<20); err != nil {
			return fmt.Errorf("limit the parent's VMM: %w", err)
		}
	}
	b.guest = b.cfg.Guest(filepath.Join(b.dir, vmmclient.VsockSocket))
	ctx, stop := vmpool.WhileAlive(ctx, b.vmm)
	defer stop()
	ctx, unwatch := vmpool.WhileRoom(ctx, b.vmm, ErrFull)
	defer unwatch()
	ctx, unbound := b.whileRAM(ctx)
	defer unbound()
	if err := b.toWarm(ctx); err != nil {
		return vmpool.Cause(ctx, err)
	}
	if b.req.ofClient() { // the snapshot counts against the client's share of the RAM
		release, err := b.cfg.Store.ReserveRAM(ctx, b.req.Client, b.req.MemoryMiB<<20, nil)
		if err != nil {
			return vmpool.Cause(ctx, err)
		}
		b.undo.Add(release)
	}
	manifest, extents, err := b.save(ctx)
	if err != nil {
		return vmpool.Cause(ctx, err)
	}
	b.begin("publish")
	start := time.Now()
	if err := b.vmm.Kill(); err != nil { // from here on, nothing may write to the disk layer
		return fmt.Errorf("end the parent's VMM: %w", err)
	}
	own, err := os.Open(b.staging.Path(snapshot.DiskLayerFile))
	if err != nil {
		return err
	}
	defer own.Close()
	b.staging.DurableFirst()
	if b.result.Info, err = b.staging.Publish(manifest, extents, append(b.lower[1:], own)); err != nil {
		return err
	}
	b.result.Persist = time.Since(start)
	return nil
}

// bootLimits returns the limits of the children, but with no limit on memory. In a child, only the
// changed pages are private memory. In a parent that boots, all of the guest's memory is private,
// so many parents could not boot within the memory limit of their children. The size of the guest's
// memory bounds the parent instead.
func (b *bake) bootLimits() vm.Limits {
	l := b.req.Limits
	l.MemoryMiB, l.SwapMiB = 0, 0
	return l
}

func (b *bake) kill() {
	if err := b.vmm.Kill(); err != nil {
		b.cfg.Log.Error("end a parent's VMM", "snapshot", b.req.Tag, "pid", b.vmm.PID(), "error", err)
	}
}

// toWarm boots the guest and runs the warm-up.
func (b *bake) toWarm(ctx context.Context) error {
	b.begin("boot")
	start := time.Now()
	if err := b.boot(ctx); err != nil {
		return err
	}
	b.begin("wait for the guest's agent")
	ready, err := b.waitReady(ctx)
	if err != nil {
		return err
	}
	b.result.Ready, b.result.Boot = ready, time.Since(start)
	start = time.Now()
	b.begin("set up the guest")
	err = within(ctx, b.req.Ready, func(ctx context.Context) error {
		// each fork inherits the environment from the snapshot
		_, err := identity.Give(ctx, b.guest, parentHostname, b.req.Env)
		return err
	})
	if err != nil {
		return err
	}
	if err := b.warm(ctx); err != nil {
		return err
	}
	if err := b.inheritDefaults(ctx); err != nil {
		return err
	}
	b.begin("flush the guest's disk")
	err = within(ctx, b.req.Warmup, b.guest.Sync)
	b.result.Warmup = time.Since(start)
	return err
}

// boot loads the kernel and starts it. It creates the disk top in the snapshot's directory, because
// the top becomes the snapshot's disk layer.
func (b *bake) boot(ctx context.Context) error {
	kernel, initrd, err := b.openBoot()
	if err != nil {
		return err
	}
	defer kernel.Close()
	defer initrd.Close()
	if err := b.openDisk(ctx); err != nil {
		return err
	}
	size := b.disk.SizeBytes
	top, err := chain.NewTop(b.staging.Path(snapshot.DiskLayerFile), size, disklayer.Format)
	if err != nil {
		return err
	}
	defer top.Close()
	var undo cleanup.Stack
	defer undo.Run()
	own, err := chain.Reopened(&undo, b.lower)
	if err != nil {
		return err
	}
	if err := b.join(); err != nil {
		return err
	}
	req := vmmproto.Boot{
		Cmdline: b.cfg.Cmdline, VMGenID: identity.NewGenerationID(), Net: b.link != nil,
		Disks: []vmmproto.Disk{{SizeBytes: size}},
	}
	files := vmmclient.BootFiles{Kernel: kernel, Initrd: initrd, Disks: [][]*os.File{append(own, top)}}
	for range b.req.VolumeSlots {
		req.Disks, files.Disks = append(req.Disks, vmmproto.Disk{Volume: true}), append(files.Disks, nil)
	}
	err = b.vmm.Boot(ctx, req, files)
	if err != nil {
		return err
	}
	b.link.Ready()
	return b.vmm.Resume(ctx)
}

// join connects the parent to the network. If the request names no policy, the parent can reach
// nothing, so that its guest cannot fetch data that no client has requested. Every child would have
// such data.
func (b *bake) join() (err error) {
	setting := netclient.Isolated()
	if b.req.Network != nil {
		setting = *b.req.Network
	}
	b.link, err = b.cfg.Net.Join(b.id, setting, b.vmm, nil)
	b.undo.Add(b.link.Close)
	return err
}

// network returns the network setting that the snapshot passes on to its children.
func (b *bake) network() *snapshot.Network {
	switch {
	case b.req.Network != nil:
		return b.req.Network.ForSnapshot()
	case b.from != nil:
		return b.from.Manifest().Guest.Network
	}
	return nil
}

// save stops the parent and branches it. The branch writes the state and the memory of the parent,
// and makes the parent's disk top a layer.
func (b *bake) save(ctx context.Context) (*snapshot.Manifest, []vm.Extent, error) {
	b.begin("save")
	start := time.Now()
	if err := b.vmm.Pause(ctx); err != nil {
		return nil, nil, err
	}
	state, err := b.staging.Create(snapshot.StateFile)
	if err != nil {
		return nil, nil, err
	}
	defer state.Close()
	layer, err := b.staging.Create(snapshot.MemoryLayerFile)
	if err != nil {
		return nil, nil, err
	}
	defer layer.Close()
	frozen, err := os.Open(b.staging.Path(snapshot.DiskLayerFile))
	if err != nil {
		return nil, nil, err
	}
	defer frozen.Close()
	// A branch needs a new top for the disk. The parent is never resumed, so nothing is written to
	// this top, and it is deleted with its directory.
	top, err := chain.NewTop(filepath.Join(b.dir, "unused.top"), b.disk.SizeBytes, disklayer.Format)
	if err != nil {
		return nil, nil, err
	}
	defer top.Close()
	branched, err := b.vmm.Branch(ctx, vmmproto.Branch{Mode: vm.BranchDiff, MaxExtents: maxLayerExtents},
		vmmclient.BranchFiles{MemoryBytes: b.req.MemoryMiB << 20, State: state, Layer: layer,
			Tops: []*os.File{top}, Frozen: []*os.File{frozen}})
	if err != nil {
		return nil, nil, err
	}
	saved := branched.Save
	b.result.Save, b.result.MemBytes = time.Since(start), saved.LayerBytes
	m := &snapshot.Manifest{
		Machine: snapshot.Machine{
			MemoryBytes: b.req.MemoryMiB << 20, VCPUs: b.req.VCPUs, Template: b.req.Template, Accel: b.cfg.Accel,
			VolumeSlots: b.req.VolumeSlots,
		},
		Guest: snapshot.Guest{
			Kernel: b.result.Ready.Kernel, Warm: b.result.Ready.Warm, Hostname: parentHostname,
			Defaults: b.defaults(), Network: b.network(), Limits: b.req.Limits, Hooks: b.req.Hooks,
			Strict: b.req.Strict,
		},
		Disk:      b.disk,
		Transient: b.req.Transient,
	}
	if b.from != nil {
		from := b.from.Manifest()
		m.Parent, m.Boot = from.Ref(), from.Boot
	}
	return m, saved.Extents, nil
}

// maxLayerExtents is the maximum number of extents of a parent's memory layer. Every fork calls
// mmap once for each extent. If there are too many extents, some are joined, which takes space in
// the layer. Branches of the children may add extents, up to the maxExtents of package chain.
const maxLayerExtents = 128

// Error reports that a bake failed after its guest had run.
type Error struct {
	Tag     string
	Step    string // name of the step that failed
	Err     error
	Console string // last lines of the guest's console, with the panic message if there is one
}

func (e *Error) Error() string {
	msg := fmt.Sprintf("bake snapshot %q: %s: %v", e.Tag, e.Step, e.Err)
	if e.Console != "" {
		msg += "; the guest's console ends with:\n" + e.Console
	}
	return msg
}

func (e *Error) Unwrap() error { return e.Err }
