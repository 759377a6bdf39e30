package sandbox

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/forkd/forkd/internal/agentclient"
	"github.com/forkd/forkd/internal/agentproto"
	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/memlayer"
	"github.com/forkd/forkd/internal/snapshot"
	"github.com/forkd/forkd/internal/store"
	"github.com/forkd/forkd/internal/vmm/vmmclient"
	"github.com/forkd/forkd/internal/vmm/vmmproto"
)

// BakeRequest asks for a parent to be booted, warmed up and saved.
type BakeRequest struct {
	Tag       string
	Kernel    string // path of a bzImage or ELF kernel
	Initrd    string // path of the initramfs with the agent
	Rootfs    string // path of the raw root file system; never written
	MemoryMiB uint64 // 0: 512
	VCPUs     uint32 // 0: 1
	Template  string // CPU template; empty: the manager's
	Env       map[string]string
	Commands  []string      // warm-up, each for /bin/sh -c, one after another
	Python    string        // warm-up, then run in the warm interpreter
	Ready     time.Duration // how long the guest may take to boot; 0: 120 s
	Warmup    time.Duration // how long each warm-up step may take; 0: 600 s
}

// BakeResult is what a bake made and how long its steps took.
type BakeResult struct {
	Info     store.Info
	Ready    agentproto.Ready
	Boot     time.Duration // from the first instruction to the agent's announcement
	Warmup   time.Duration
	Save     time.Duration // state and memory into RAM
	Persist  time.Duration // flushed to disk and published
	MemBytes uint64        // length of the memory layer
}

// Defaults and bounds of a BakeRequest.
const (
	defaultMemoryMiB = 512
	minMemoryMiB     = 64
	maxMemoryMiB     = 1 << 20
	defaultReady     = 120 * time.Second
	defaultWarmup    = 600 * time.Second
	parentHostname   = "forkd"
)

func (r *BakeRequest) check() error {
	if err := snapshot.CheckTag(r.Tag); err != nil {
		return &InvalidError{"tag", err.Error()}
	}
	for _, f := range []struct{ field, path string }{{"kernel", r.Kernel}, {"initrd", r.Initrd}, {"rootfs", r.Rootfs}} {
		if f.path == "" || !filepath.IsAbs(f.path) {
			return &InvalidError{f.field, fmt.Sprintf("%q: want the absolute path of a file on the daemon's host", f.path)}
		}
		st, err := os.Stat(f.path)
		if err != nil {
			return &InvalidError{f.field, err.Error()}
		}
		if !st.Mode().IsRegular() || st.Size() == 0 {
			return &InvalidError{f.field, f.path + ": not a regular file with content"}
		}
	}
	if r.MemoryMiB < minMemoryMiB || r.MemoryMiB > maxMemoryMiB {
		return &InvalidError{"mem_size_mib", fmt.Sprintf("%d: want %d to %d", r.MemoryMiB, minMemoryMiB, maxMemoryMiB)}
	}
	if r.VCPUs < 1 || r.VCPUs > snapshot.MaxVCPUs {
		return &InvalidError{"vcpus", fmt.Sprintf("%d: want 1 to %d", r.VCPUs, snapshot.MaxVCPUs)}
	}
	if err := snapshot.CheckEnv(r.Env); err != nil {
		return &InvalidError{"env", err.Error()}
	}
	return nil
}

func (m *Manager) withDefaults(r BakeRequest) BakeRequest {
	if r.MemoryMiB == 0 {
		r.MemoryMiB = defaultMemoryMiB
	}
	if r.VCPUs == 0 {
		r.VCPUs = 1
	}
	if r.Template == "" {
		r.Template = m.cfg.Template
	}
	if r.Ready == 0 {
		r.Ready = defaultReady
	}
	if r.Warmup == 0 {
		r.Warmup = defaultWarmup
	}
	return r
}

// bake is one parent on its way to a snapshot.
type bake struct {
	m       *Manager
	req     BakeRequest
	staging *store.Staging
	dir     string
	vmm     VMM
	guest   Guest
	rootfs  os.FileInfo
	undo    cleanup.Stack
	step    string // what is being done, for errors
	result  BakeResult
}

// Bake boots a parent, waits until its agent is ready, warms it up, saves it and publishes the snapshot. Whatever
// fails, nothing is left behind; once the guest has run the error is a *BakeError with the end of its console.
func (m *Manager) Bake(ctx context.Context, req BakeRequest) (BakeResult, error) {
	req = m.withDefaults(req)
	if err := req.check(); err != nil {
		return BakeResult{}, err
	}
	release, err := acquire(ctx, m.bakes)
	if err != nil {
		return BakeResult{}, err
	}
	defer release()
	b := &bake{m: m, req: req}
	defer b.undo.Run()
	if b.staging, err = m.cfg.Store.Stage(req.Tag); err != nil {
		return BakeResult{}, err
	}
	b.undo.Add(b.staging.Discard)
	if err := b.run(ctx); err != nil {
		failed := &BakeError{Tag: req.Tag, Step: b.step, Err: err}
		if b.vmm != nil {
			console, _ := m.cfg.VMMs.Console(b.dir) // without it the error says less
			failed.Console = consoleTail(console, 10)
		}
		return BakeResult{}, failed
	}
	return b.result, nil
}

func (b *bake) run(ctx context.Context) error {
	b.step = "start the VMM"
	sh, err := b.m.spawnShell(ctx, vmmproto.Machine{
		MemoryBytes: b.req.MemoryMiB << 20, VCPUs: b.req.VCPUs, Template: b.req.Template,
	})
	if err != nil {
		return err
	}
	b.vmm, b.dir = sh.vmm, b.m.vmDir(sh.id)
	b.undo.Add(func() { b.kill() })
	b.guest = b.m.cfg.Guest(filepath.Join(b.dir, vmmclient.VsockSocket))
	ctx, stop := whileAlive(ctx, b.vmm)
	defer stop()
	if err := b.toWarm(ctx); err != nil {
		return because(ctx, err)
	}
	manifest, extents, err := b.save(ctx)
	if err != nil {
		return because(ctx, err)
	}
	b.step = "publish"
	start := time.Now()
	b.kill() // the disk layer must have no writer any more
	if b.result.Info, err = b.staging.Publish(manifest, extents); err != nil {
		return err
	}
	b.result.Persist = time.Since(start)
	return nil
}

func (b *bake) kill() {
	if err := b.vmm.Kill(); err != nil {
		b.m.cfg.Log.Error("end a parent's VMM", "snapshot", b.req.Tag, "pid", b.vmm.PID(), "error", err)
	}
}

// toWarm boots the guest and warms it up.
func (b *bake) toWarm(ctx context.Context) error {
	b.step = "boot"
	start := time.Now()
	if err := b.boot(ctx); err != nil {
		return err
	}
	b.step = "wait for the guest's agent"
	ready, err := b.waitReady(ctx)
	if err != nil {
		return err
	}
	b.result.Ready, b.result.Boot = ready, time.Since(start)
	start = time.Now()
	b.step = "set up the guest"
	entropy := make([]byte, entropyBytes)
	rand.Read(entropy)
	err = b.guest.Forked(ctx, agentproto.Forked{
		Entropy: entropy, RealtimeNanos: time.Now().UnixNano(), Hostname: parentHostname, Env: b.req.Env,
	})
	if err != nil {
		return err
	}
	if err := b.warm(ctx); err != nil {
		return err
	}
	b.step = "flush the guest's disk"
	err = b.guest.Sync(ctx)
	b.result.Warmup = time.Since(start)
	return err
}

// boot loads the kernel and lets it run. The disk top becomes the snapshot's disk layer, so it is made in place.
func (b *bake) boot(ctx context.Context) error {
	var files [3]*os.File
	for i, path := range []string{b.req.Kernel, b.req.Initrd, b.req.Rootfs} {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		files[i] = f
	}
	var err error
	if b.rootfs, err = files[2].Stat(); err != nil {
		return err
	}
	size := uint64(b.rootfs.Size())
	top, err := b.m.newTop(b.staging.Path(snapshot.DiskLayerFile), size)
	if err != nil {
		return err
	}
	defer top.Close()
	req := vmmproto.Boot{
		Cmdline: b.m.cfg.Cmdline, VMGenID: newGenID(),
		Disks: []vmmproto.Disk{{SizeBytes: size}},
	}
	err = b.vmm.Boot(ctx, req, vmmclient.BootFiles{Kernel: files[0], Initrd: files[1], Disks: [][]*os.File{{files[2], top}}})
	if err != nil {
		return err
	}
	return b.vmm.Resume(ctx)
}

// waitReady waits for the agent's announcement.
func (b *bake) waitReady(ctx context.Context) (agentproto.Ready, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, b.req.Ready,
		fmt.Errorf("no announcement within %v: look at the console, or raise ready_timeout_secs", b.req.Ready))
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			return agentproto.Ready{}, context.Cause(ctx)
		case c, ok := <-b.vmm.Conns():
			switch {
			case !ok:
				<-ctx.Done() // the VM is ending; its end is the cause
			case c.Port != agentproto.ReadyPort:
				c.Conn.Close() // nothing else listens on the host
			default:
				ready, err := readReady(ctx, c.Conn)
				return ready, because(ctx, err)
			}
		}
	}
}

// maxReady bounds the agent's announcement, in bytes.
const maxReady = 64 << 10

func readReady(ctx context.Context, conn net.Conn) (agentproto.Ready, error) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var ready agentproto.Ready
	line, err := bufio.NewReader(io.LimitReader(conn, maxReady)).ReadBytes('\n')
	if err != nil && len(line) == 0 {
		return ready, fmt.Errorf("read the agent's announcement: %w", err)
	}
	if err := json.Unmarshal(line, &ready); err != nil {
		return ready, fmt.Errorf("read the agent's announcement: %w", err)
	}
	if ready.Version != agentproto.Version {
		return ready, fmt.Errorf("the agent in the initramfs speaks protocol %d, this forkd %d: build the image again",
			ready.Version, agentproto.Version)
	}
	return ready, nil
}

// maxWarmupOutput is how much output of a warm-up step is kept for its error, in bytes.
const maxWarmupOutput = 64 << 10

// warm runs the warm-up steps.
func (b *bake) warm(ctx context.Context) error {
	for i, command := range b.req.Commands {
		b.step = fmt.Sprintf("run warm-up command %d", i+1)
		r, err := b.guest.Exec(ctx, agentclient.ExecRequest{
			Args: []string{"/bin/sh", "-c", command}, Timeout: b.req.Warmup, MaxOutput: maxWarmupOutput,
		})
		if err != nil {
			return err
		}
		if err := r.Err(); err != nil && !errors.Is(err, agentclient.ErrOutputTruncated) {
			return fmt.Errorf("%q: %w", command, err)
		}
		if r.ExitCode != 0 {
			return fmt.Errorf("%q: exit code %d: %s", command, r.ExitCode, lastLines(r.Stderr, 5))
		}
	}
	if b.req.Python == "" {
		return nil
	}
	b.step = "run the warm-up code"
	r, err := b.guest.Eval(ctx, b.req.Python, agentclient.EvalOptions{Timeout: b.req.Warmup, MaxOutput: maxWarmupOutput})
	if err != nil {
		return err
	}
	if r.Error != nil {
		return fmt.Errorf("%w\n%s", r.Error, r.Error.Traceback)
	}
	if err := r.Err(); err != nil && !errors.Is(err, agentclient.ErrOutputTruncated) {
		return err
	}
	return nil
}

// save stops the parent and writes its state and memory.
func (b *bake) save(ctx context.Context) (*snapshot.Manifest, []memlayer.Extent, error) {
	b.step = "save"
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
	saved, err := b.vmm.Save(ctx, vmmproto.Save{MaxExtents: maxLayerExtents}, vmmclient.SaveFiles{State: state, Layer: layer})
	if err != nil {
		return nil, nil, err
	}
	b.result.Save, b.result.MemBytes = time.Since(start), saved.LayerBytes
	return &snapshot.Manifest{
		Machine: snapshot.Machine{
			MemoryBytes: b.req.MemoryMiB << 20, VCPUs: b.req.VCPUs, Template: b.req.Template, Accel: b.m.cfg.Accel,
		},
		Guest: snapshot.Guest{
			Kernel: b.result.Ready.Kernel, Warm: b.result.Ready.Warm, Hostname: parentHostname, Env: b.req.Env,
		},
		Disk: &snapshot.Disk{
			SizeBytes: uint64(b.rootfs.Size()),
			Base:      snapshot.Base{Path: filepath.Clean(b.req.Rootfs), Bytes: uint64(b.rootfs.Size())},
		},
	}, saved.Extents, nil
}

// maxLayerExtents bounds the extents of a parent: each costs every fork one mmap, each gap that is filled instead some room
// in its layer. It leaves branches something of maxExtents.
const maxLayerExtents = 128
