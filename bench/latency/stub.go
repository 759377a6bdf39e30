package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/stub"
	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// stubGuest is a program of user-mode code (newProgram), with a disk.
type stubGuest struct {
	b       *bench
	program *program
	shape   vm.Shape
	files   vmmclient.RestoreFiles
	disks   []vmmproto.Disk
	extents []vm.Extent
	state   []byte
	runs    int
}

// diskSlot is where a machine has its first disk.
const diskSlot = 3

const diskSize = 1 << 20

// newStub makes a machine of the stub, not running.
func (b *bench) newStub(ctx context.Context, undo *cleanup.Stack) (guest, error) {
	g := &stubGuest{b: b, program: newProgram(diskSlot, b.samples),
		shape: vm.Shape{MemoryBytes: stubMiB << 20, VCPUs: vcpus, Template: lab.Template(b.host.Host)},
		disks: []vmmproto.Disk{{SizeBytes: diskSize}}}
	base, err := g.newFile(undo, "base")
	if err != nil {
		return nil, err
	}
	if _, err := base.Write(bytes.Repeat([]byte{1}, diskSize)); err != nil {
		return nil, err
	}
	top, err := g.newTop(undo)
	if err != nil {
		return nil, err
	}
	g.files.Disks = [][]*os.File{{base, top}}
	kernel, err := g.newFile(undo, "kernel")
	if err != nil {
		return nil, err
	}
	if _, err := kernel.Write(stub.Custom(g.program.code)); err != nil {
		return nil, err
	}
	v, err := g.spawn(ctx, b.builds[0])
	if err != nil {
		return nil, err
	}
	defer v.Kill()
	if err := v.Boot(ctx, vmmproto.Boot{Disks: slices.Clone(g.disks)},
		vmmclient.BootFiles{Kernel: kernel, Disks: g.files.Disks}); err != nil {
		return nil, err
	}
	if err := v.Resume(ctx); err != nil {
		return nil, err
	}
	time.Sleep(lab.StubSettle)
	if err := v.Pause(ctx); err != nil {
		return nil, fmt.Errorf("this KVM cannot run the stub guest: %w", err)
	}
	saved, layer, err := g.save(ctx, v, undo)
	if err != nil {
		return nil, err
	}
	g.extents, g.files.Layers = saved, []*os.File{layer}
	return g, nil
}

func (*stubGuest) name() string { return "stub" }

func (g *stubGuest) newFile(undo *cleanup.Stack, name string) (*os.File, error) {
	f, err := os.CreateTemp(g.b.host.RunDir, name)
	if err == nil {
		undo.Add(func() { _ = errors.Join(f.Close(), os.Remove(f.Name())) })
	}
	return f, err
}

func (g *stubGuest) newTop(undo *cleanup.Stack) (*os.File, error) {
	f, err := g.newFile(undo, "top")
	if err != nil {
		return nil, err
	}
	return f, disklayer.Format(f, diskSize)
}

func (g *stubGuest) spawn(ctx context.Context, of build) (vmpool.VMM, error) {
	g.runs++
	id := fmt.Sprint("stub", g.runs)
	return of.vmms.Spawn(ctx, vmpool.ShellConfig{ID: id, Dir: filepath.Join(g.b.host.RunDir, id), Shape: g.shape})
}

// save saves a paused machine, and keeps its state.
func (g *stubGuest) save(ctx context.Context, v vmpool.VMM, undo *cleanup.Stack) ([]vm.Extent, *os.File, error) {
	state, err := g.newFile(undo, "state")
	if err != nil {
		return nil, nil, err
	}
	layer, err := g.newFile(undo, "layer")
	if err != nil {
		return nil, nil, err
	}
	r, err := v.Save(ctx, vmmproto.Save{MaxExtents: 1024}, vmmclient.SaveFiles{
		MemoryBytes: g.shape.MemoryBytes, State: state, Layer: layer,
	})
	if err == nil {
		g.state, err = os.ReadFile(state.Name())
	}
	return r.Extents, layer, err
}

// measure runs the program once for each kind.
func (g *stubGuest) measure(ctx context.Context, of build, l load) (result, error) {
	all := result{}
	for kind, run := range map[string]func(context.Context, vmpool.VMM) ([]float64, error){
		blockRead: g.readBlocks, writeFault: g.writeFaults, request: g.requests,
	} {
		var err error
		if all[kind], err = g.with(ctx, of, l, kind, run); err != nil {
			return nil, fmt.Errorf("%s, %s, %d procs: %w", kind, l, of.procs, err)
		}
	}
	return all, nil
}

// with calls f with a machine that runs what is measured on its first vCPU, and the load on others.
func (g *stubGuest) with(ctx context.Context, of build, l load, kind string,
	f func(context.Context, vmpool.VMM) ([]float64, error)) (_ []float64, err error) {
	var undo cleanup.Stack
	defer undo.Run()
	s, err := parseState(slices.Clone(g.state))
	if err != nil {
		return nil, err
	}
	at := []uint64{map[string]uint64{blockRead: g.program.block, writeFault: g.program.fill}[kind]}
	for range l.vcpus {
		at = append(at, map[bool]uint64{false: g.program.spin, true: g.program.leave}[l.leaves])
	}
	s.run(at)
	files := g.files
	if files.State, err = g.newFile(&undo, "state"); err != nil {
		return nil, err
	}
	if _, err := files.State.Write(s.bytes); err != nil {
		return nil, err
	}
	v, err := g.spawn(ctx, of)
	if err != nil {
		return nil, err
	}
	undo.Add(func() { _ = v.Kill() })
	ctx, stop := vmpool.WhileAlive(ctx, v)
	defer stop()
	if _, err := v.Restore(ctx, vmmproto.Restore{Extents: g.extents, Disks: slices.Clone(g.disks), Resume: true,
		VMGenID: [16]byte{1}}, files); err != nil {
		return nil, err
	}
	samples, err := f(ctx, v)
	for i := range samples {
		if kind != request {
			samples[i] /= float64(s.tscKHz) / 1000
		}
	}
	return samples, vmpool.Cause(ctx, err)
}

// readBlocks waits until the program has made all its reads.
func (g *stubGuest) readBlocks(ctx context.Context, v vmpool.VMM) ([]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	dir := filepath.Join(g.b.host.RunDir, fmt.Sprint("stub", g.runs))
	if _, err := lab.StubClient(filepath.Join(dir, vmmclient.VsockSocket)).Forked(ctx, agentproto.Forked{}); err != nil {
		return nil, err
	}
	return g.results(ctx, v)
}

// writeFaults branches the machine again and again.
func (g *stubGuest) writeFaults(ctx context.Context, v vmpool.VMM) ([]float64, error) {
	var undo cleanup.Stack
	defer undo.Run()
	if err := g.awaitFill(ctx, v); err != nil {
		return nil, err
	}
	top := g.files.Disks[0][1]
	for range g.b.branches {
		next, err := g.newTop(&undo)
		if err != nil {
			return nil, err
		}
		if err := g.branch(ctx, v, top, next); err != nil {
			return nil, err
		}
		top = next
		time.Sleep(lab.StubSettle) // until every page has been written once more
	}
	return g.results(ctx, v)
}

// awaitFill waits until the program has written every page, and then some.
func (g *stubGuest) awaitFill(ctx context.Context, v vmpool.VMM) error {
	for range time.Tick(10 * time.Millisecond) {
		stats, err := v.Stats(ctx)
		if err != nil {
			return err
		}
		if stats.GuestDirtyBytes >= bufferPages*4096 {
			break
		}
	}
	time.Sleep(headStart + time.Second/2)
	return ctx.Err()
}

// branch branches the machine, whose disk gets another top.
func (g *stubGuest) branch(ctx context.Context, v vmpool.VMM, top, next *os.File) (err error) {
	var undo cleanup.Stack
	defer undo.Run()
	files := vmmclient.BranchFiles{MemoryBytes: g.shape.MemoryBytes}
	if files.State, err = g.newFile(&undo, "state"); err != nil {
		return err
	}
	if files.Layer, err = g.newFile(&undo, "layer"); err != nil {
		return err
	}
	frozen, err := os.Open(top.Name())
	if err != nil {
		return err
	}
	defer frozen.Close()
	files.Tops, files.Frozen = []*os.File{next}, []*os.File{frozen}
	r, err := v.Branch(ctx, vmmproto.Branch{Mode: vm.BranchLive, MaxExtents: 1024}, files)
	if err == nil && r.Mode != vm.BranchLive {
		err = fmt.Errorf("this host cannot branch live: %s", r.Fallback)
	}
	if err != nil {
		return err
	}
	_, err = v.WaitCopied(ctx, r.Serial)
	return err
}

func (g *stubGuest) requests(ctx context.Context, v vmpool.VMM) ([]float64, error) {
	time.Sleep(headStart)
	return timeRequests(ctx, v, g.b.samples)
}

// results stops the machine and returns what the program has noted, in cycles.
func (g *stubGuest) results(ctx context.Context, v vmpool.VMM) ([]float64, error) {
	var undo cleanup.Stack
	defer undo.Run()
	if err := v.Pause(ctx); err != nil {
		return nil, err
	}
	state := g.state
	_, layer, err := g.save(ctx, v, &undo)
	g.state = state
	if err != nil {
		return nil, err
	}
	p := make([]byte, resultsSize)
	if _, err := layer.ReadAt(p, resultsAddr); err != nil {
		return nil, err
	}
	var samples []float64
	for ; len(p) > 0; p = p[4:] {
		n := binary.LittleEndian.Uint32(p)
		if n == 0 {
			return samples, nil
		}
		samples = append(samples, float64(n))
	}
	return nil, errors.New("the program has noted more than there is room for")
}
