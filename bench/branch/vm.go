package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/agentclient"
	"github.com/forkd/forkd/internal/agentproto"
	"github.com/forkd/forkd/internal/disklayer"
	"github.com/forkd/forkd/internal/guestmem"
	"github.com/forkd/forkd/internal/image"
	"github.com/forkd/forkd/internal/memlayer"
	"github.com/forkd/forkd/internal/vmm/vmmclient"
	"github.com/forkd/forkd/internal/vmm/vmmproto"
	"github.com/forkd/forkd/internal/vmtest"
)

// vmLab makes VMs and snapshots of them, without a store: files that are open and have no name.
type vmLab struct {
	bin    string // forkd-vmm
	dir    string // short, for sockets
	ram    string // on tmpfs
	kernel vmtest.Kernel
	image  *image.Image
	shape  vmmproto.Machine
	made   int
}

// vm is a running VM with its private disk top.
type vm struct {
	*vmmclient.VMM
	lab   *vmLab
	agent *agentclient.Client
	disk  []*os.File // base image, layers, top
}

// snap is a snapshot: open files that several VMs may run on.
type snap struct {
	state   *os.File
	layers  []*os.File // memory, base first
	extents []memlayer.Extent
	disk    []*os.File // base image and frozen layers
}

// file makes an empty file that vanishes when it is closed.
func (l *vmLab) file() (*os.File, error) {
	f, err := os.CreateTemp(l.ram, "layer")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

func (l *vmLab) diskSpec() []vmmproto.Disk {
	return []vmmproto.Disk{{SizeBytes: uint64(l.image.RootfsSize)}}
}

// newTop makes an empty private disk top.
func (l *vmLab) newTop() (*os.File, error) {
	f, err := l.file()
	if err != nil {
		return nil, err
	}
	return f, disklayer.Format(f, uint64(l.image.RootfsSize))
}

// spawn starts a VMM with an empty machine.
func (l *vmLab) spawn(ctx context.Context) (*vm, error) {
	l.made++
	id := strconv.Itoa(l.made)
	v := &vm{lab: l}
	var err error
	v.VMM, err = vmmclient.Spawn(ctx, vmmclient.Config{
		Bin: l.bin, Dir: filepath.Join(l.dir, id), ID: id, Machine: l.shape, CgroupFD: -1,
	})
	if err != nil {
		return nil, err
	}
	v.agent = agentclient.New(agentclient.DialUnix(filepath.Join(v.Dir(), vmmclient.VsockSocket)))
	return v, nil
}

// bake boots a parent, warms it up and saves it.
func (l *vmLab) bake(ctx context.Context) (*snap, error) {
	v, err := l.spawn(ctx)
	if err != nil {
		return nil, err
	}
	defer v.Kill()
	if err := v.boot(ctx); err != nil {
		return nil, err
	}
	r, err := v.agent.Eval(ctx, l.image.Warmup.Python, agentclient.EvalOptions{Timeout: warmLimit})
	if err != nil {
		return nil, err
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	if err := v.Pause(ctx); err != nil {
		return nil, err
	}
	s := &snap{disk: v.disk}
	if s.state, err = l.file(); err != nil {
		return nil, err
	}
	layer, err := l.file()
	if err != nil {
		return nil, err
	}
	saved, err := v.Save(ctx, vmmproto.Save{MaxExtents: parentExtents}, vmmclient.SaveFiles{State: s.state, Layer: layer})
	s.layers, s.extents = []*os.File{layer}, saved.Extents
	return s, err
}

// Bounds that the sandbox manager has: extents of a parent, extents that a VMM may describe a branch with, and extents
// of a branch's whole map, within which the manager brings it by copying what lies between.
const (
	parentExtents = 128
	vmmExtents    = 8192
	mapExtents    = 256
)

// Bounds for a guest on a busy emulated host.
const (
	bootLimit = 3 * time.Minute
	warmLimit = 2 * time.Minute
)

// boot runs the image until its agent is ready and has its identity.
func (v *vm) boot(ctx context.Context) error {
	var files [3]*os.File
	for i, path := range []string{v.lab.kernel.VMLinux, v.lab.kernel.Initrd, v.lab.image.Rootfs()} {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		if i < 2 {
			defer f.Close()
		}
		files[i] = f
	}
	top, err := v.lab.newTop()
	if err != nil {
		return err
	}
	v.disk = []*os.File{files[2], top}
	err = v.Boot(ctx, vmmproto.Boot{Cmdline: vmtest.Cmdline(), Disks: v.lab.diskSpec(), VMGenID: newGenID()},
		vmmclient.BootFiles{Kernel: files[0], Initrd: files[1], Disks: [][]*os.File{v.disk}})
	if err == nil {
		err = v.Resume(ctx)
	}
	if err != nil {
		return err
	}
	select {
	case c, ok := <-v.Conns():
		if !ok {
			return errors.New("the parent's VM ended while it booted")
		}
		defer c.Conn.Close()
		var ready agentproto.Ready
		if err := json.NewDecoder(c.Conn).Decode(&ready); err != nil {
			return fmt.Errorf("read the agent's announcement: %w", err)
		}
	case <-time.After(bootLimit):
		return fmt.Errorf("the parent's agent is not ready after %v", bootLimit)
	}
	return v.confirm(ctx)
}

// restored is how long a restore took, from the request.
type restored struct {
	entered, confirmed time.Duration
	parts              vmmproto.RestoreResult
}

// restore puts s into v, which may have a guest already, and waits until the agent has confirmed.
func (v *vm) restore(ctx context.Context, s *snap) (r restored, err error) {
	top, err := v.lab.newTop()
	if err != nil {
		return r, err
	}
	v.disk = append(append([]*os.File(nil), s.disk...), top)
	start := time.Now()
	r.parts, err = v.Restore(ctx, vmmproto.Restore{
		Extents: s.extents, Disks: v.lab.diskSpec(), VMGenID: newGenID(), Resume: true,
	}, vmmclient.RestoreFiles{State: s.state, Layers: s.layers, Disks: [][]*os.File{v.disk}})
	if err != nil {
		return r, err
	}
	r.entered = time.Since(start)
	err = v.confirm(ctx)
	r.confirmed = time.Since(start)
	return r, err
}

// fork starts a child of s.
func (l *vmLab) fork(ctx context.Context, s *snap) (*vm, restored, error) {
	v, err := l.spawn(ctx)
	if err != nil {
		return nil, restored{}, err
	}
	r, err := v.restore(ctx, s)
	if err != nil {
		return nil, r, errors.Join(fmt.Errorf("%w; %s", err, v.lastWords()), v.Kill())
	}
	return v, r, nil
}

// lastWords says how v ended, if it did, and the end of its console.
func (v *vm) lastWords() string {
	console, _ := vmmclient.Console(v.Dir()) // without it the message says less
	text := "the VM runs"
	select {
	case <-v.Done():
		text = "the VM ended: " + v.Exit().Reason.String() + " " + v.Exit().Detail
	default:
	}
	return text + "; its console ends with:\n" + vmtest.LastLines(console, 5)
}

func (v *vm) confirm(ctx context.Context) error {
	entropy := make([]byte, 32)
	rand.Read(entropy)
	ctx, cancel := context.WithTimeout(ctx, warmLimit)
	defer cancel()
	return v.agent.Forked(ctx, agentproto.Forked{Entropy: entropy, RealtimeNanos: time.Now().UnixNano(), Hostname: "bench"})
}

// branched is one branch and its times.
type branched struct {
	snap   *snap
	result vmmproto.BranchResult
	copied vmmproto.Branched
	begin  time.Time
	ready  time.Duration // from the request until the layer was complete
}

// branch makes a snapshot of the running v, which runs on base.
func (v *vm) branch(ctx context.Context, base *snap, mode vmmproto.BranchMode) (*branched, error) {
	b := &branched{snap: &snap{disk: v.disk}}
	var err error
	if b.snap.state, err = v.lab.file(); err != nil {
		return nil, err
	}
	layer, err := v.lab.file()
	if err != nil {
		return nil, err
	}
	top, err := v.lab.newTop()
	if err != nil {
		return nil, err
	}
	b.begin = time.Now()
	b.result, err = v.Branch(ctx, vmmproto.Branch{Mode: mode, MaxExtents: vmmExtents},
		vmmclient.BranchFiles{State: b.snap.state, Layer: layer, Tops: []*os.File{top}})
	if err != nil {
		return nil, err
	}
	if b.result.Mode != mode {
		return nil, fmt.Errorf("this host cannot branch %v: %s", mode, b.result.Fallback)
	}
	if mode == vmmproto.BranchLive {
		if b.copied, err = v.WaitCopied(ctx); err != nil {
			return nil, err
		}
	}
	b.ready = time.Since(b.begin)
	v.disk = append(append([]*os.File(nil), v.disk...), top)
	b.snap.layers, b.snap.extents = []*os.File{layer}, b.result.Save.Extents
	if mode != vmmproto.BranchFull {
		err = b.snap.overlay(base)
	}
	return b, err
}

// overlay puts s, which has only its own layer, on base.
func (s *snap) overlay(base *snap) error {
	for i := range s.extents {
		s.extents[i].Layer = uint32(len(base.layers))
	}
	fill := memlayer.Coalesce(base.extents, s.extents, mapExtents)
	for _, span := range fill {
		for _, e := range memlayer.Slice(base.extents, span) {
			p := make([]byte, e.Length)
			if _, err := base.layers[e.Layer].ReadAt(p, int64(e.Offset)); err != nil {
				return fmt.Errorf("fill a gap: %w", err)
			}
			if _, err := s.layers[0].WriteAt(p, int64(guestmem.Linear(guestmem.GPA(e.GPA)))); err != nil {
				return fmt.Errorf("fill a gap: %w", err)
			}
		}
	}
	s.extents = memlayer.Overlay(base.extents, memlayer.Fill(s.extents, fill))
	s.layers = append(append([]*os.File(nil), base.layers...), s.layers[0])
	return nil
}

// close gives back the files that only this branch has.
func (b *branched) close() {
	b.snap.state.Close()
	b.snap.layers[len(b.snap.layers)-1].Close()
}

// sh runs a shell command in the guest and returns its output.
func (v *vm) sh(ctx context.Context, script string) (string, error) {
	r, err := v.agent.Exec(ctx, agentclient.ExecRequest{
		Args: []string{"/bin/sh", "-c", script}, Timeout: warmLimit, MaxOutput: 4 << 20,
	})
	if err == nil {
		err = r.Err()
	}
	if err == nil && r.ExitCode != 0 {
		err = fmt.Errorf("exit code %d", r.ExitCode)
	}
	if err != nil {
		return "", fmt.Errorf("in the guest: %s: %w: %s", script, err, r.Stderr)
	}
	return strings.TrimSpace(string(r.Stdout)), nil
}

func newGenID() (id [16]byte) {
	rand.Read(id[:])
	return id
}
