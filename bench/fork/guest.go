package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/stub"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// tag names the one snapshot of this program.
const tag = "bench"

// guest is what is forked: how its parent becomes a snapshot, and who answers in a child.
type guest struct {
	name   string
	bake   func(ctx context.Context, m *lab.Manager) error
	client func(vsock string) sandbox.Guest // nil: the agent
}

// linuxGuest is an image as `forkd build` bakes it.
func linuxGuest(d *lab.Daemon, recipe string, memoryMiB uint64) *guest {
	return &guest{name: recipe, bake: func(ctx context.Context, m *lab.Manager) error {
		return d.Bake(ctx, m, tag, recipe, memoryMiB)
	}}
}

// stubGuest makes a snapshot of a running stub; nobody in it could announce that it is ready, as
// Bake wants. Its memory map gets so many extents more.
func stubGuest(d *lab.Daemon, memoryMiB uint64, extents int) *guest {
	bake := func(ctx context.Context, m *lab.Manager) error {
		kernel := filepath.Join(d.Dir, "stub.elf")
		if err := os.WriteFile(kernel, stub.Kernel(), 0o600); err != nil {
			return err
		}
		machine := vm.Shape{MemoryBytes: memoryMiB << 20, VCPUs: 1, Template: lab.Template(d.Host)}
		shell := vmpool.ShellConfig{ID: "parent", Dir: filepath.Join(d.Dir, "parent"), Shape: machine}
		vmm, err := d.VMMs.Spawn(ctx, shell)
		if err != nil {
			return err
		}
		defer vmm.Kill()
		if err := runStub(ctx, vmm, kernel); err != nil {
			return err
		}
		return saveStub(ctx, m.Snapshots(), vmm, machine, d.Host.Accel, extents)
	}
	name := "stub"
	if extents > 0 {
		name = fmt.Sprintf("stub with %d extents more", extents)
	}
	return &guest{name: name, bake: bake, client: func(vsock string) sandbox.Guest {
		return stubClient{dir: filepath.Dir(vsock)}
	}}
}

// stubSettle is how long the stub's parent runs until it is surely in its loop: a few dozen
// instructions, which take microseconds on every host, emulated ones included.
const stubSettle = 300 * time.Millisecond

func runStub(ctx context.Context, vmm vmpool.VMM, kernel string) error {
	f, err := os.Open(kernel)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := vmm.Boot(ctx, vmmproto.Boot{}, vmmclient.BootFiles{Kernel: f}); err != nil {
		return err
	}
	if err := vmm.Resume(ctx); err != nil {
		return err
	}
	select {
	case <-time.After(stubSettle):
	case <-vmm.Done():
		return fmt.Errorf("this KVM cannot run the stub guest: %s %s", vmm.Exit().Reason, vmm.Exit().Detail)
	}
	return vmm.Pause(ctx)
}

// Where the extents of -extents lie: above all that the stub uses, each followed by a hole of the
// same length, so that the kernel does not join their mappings.
const (
	extentsFrom = 32 << 20
	extentStep  = 64 << 10
)

func saveStub(ctx context.Context, s *store.Store, vmm vmpool.VMM, machine vm.Shape, accel string,
	more int) error {
	staging, err := s.Stage(tag)
	if err != nil {
		return err
	}
	defer staging.Discard()
	state, err := staging.Create(snapshot.StateFile)
	if err != nil {
		return err
	}
	defer state.Close()
	layer, err := staging.Create(snapshot.MemoryLayerFile)
	if err != nil {
		return err
	}
	defer layer.Close()
	const maxExtents = 64
	saved, err := vmm.Save(ctx, vmmproto.Save{MaxExtents: maxExtents}, vmmclient.SaveFiles{State: state, Layer: layer})
	if err != nil {
		return err
	}
	for i := range more {
		at := uint64(extentsFrom + i*extentStep)
		saved.Extents = append(saved.Extents, vm.Extent{GPA: at, Offset: at, Length: extentStep / 2})
	}
	_, err = staging.Publish(&snapshot.Manifest{
		Machine: snapshot.Machine{
			MemoryBytes: machine.MemoryBytes, VCPUs: machine.VCPUs, Template: machine.Template, Accel: accel,
		},
		Guest: snapshot.Guest{Kernel: "stub", Hostname: "stub"},
	}, saved.Extents)
	return err
}

// stubClient stands for the agent of a stub. Only Forked may be called.
type stubClient struct {
	sandbox.Guest
	dir string // of its VMM
}

// stubPoll is the grain of the stub's clock (ii).
const stubPoll = 200 * time.Microsecond

// Forked waits for the stub's answer on its console.
func (c stubClient) Forked(ctx context.Context, _ agentproto.Forked) error {
	tick := time.NewTicker(stubPoll)
	defer tick.Stop()
	for {
		console, err := vmpool.Console(vmpool.Processes{}, c.dir)
		if err != nil {
			return err
		}
		if bytes.HasPrefix(console.Bytes, []byte{stub.Answer}) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
