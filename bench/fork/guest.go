package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/forkd/forkd/bench/internal/stub"
	"github.com/forkd/forkd/internal/agentclient"
	"github.com/forkd/forkd/internal/agentproto"
	"github.com/forkd/forkd/internal/image"
	"github.com/forkd/forkd/internal/sandbox"
	"github.com/forkd/forkd/internal/snapshot"
	"github.com/forkd/forkd/internal/store"
	"github.com/forkd/forkd/internal/vmm/vmmclient"
	"github.com/forkd/forkd/internal/vmm/vmmproto"
	"github.com/forkd/forkd/internal/vmtest"
)

// tag names the one snapshot of this program.
const tag = "bench"

// guest is what is forked: how its parent becomes a snapshot, and who answers in a child.
type guest struct {
	name   string
	bake   func(ctx context.Context, m *sandbox.Manager) error
	client func(vsock string) sandbox.Guest
}

// linuxGuest bakes an image as `forkd build` does.
func linuxGuest(a *vmtest.Assets, recipe string, memoryMiB uint64) (*guest, error) {
	dir, ok := a.Images[recipe]
	if !ok {
		return nil, fmt.Errorf("-recipe %s: internal/vmtest/prepare makes no image of it", recipe)
	}
	img, err := image.Open(dir)
	if err != nil {
		return nil, err
	}
	bake := func(ctx context.Context, m *sandbox.Manager) error {
		_, err := m.Bake(ctx, sandbox.BakeRequest{
			Tag: tag, Kernel: a.Cloud.VMLinux, Initrd: a.Cloud.Initrd, Rootfs: img.Rootfs(), MemoryMiB: memoryMiB,
			Env: img.Env, Commands: img.Warmup.Commands, Python: img.Warmup.Python,
		})
		return err
	}
	return &guest{
		name: recipe, bake: bake,
		client: func(vsock string) sandbox.Guest { return agentclient.New(agentclient.DialUnix(vsock)) },
	}, nil
}

// stubGuest makes a snapshot of a running stub; nobody in it could announce that it is ready, as Bake wants.
func stubGuest(vmms processes, dir, template, accel string, memoryMiB uint64) *guest {
	bake := func(ctx context.Context, m *sandbox.Manager) error {
		kernel := filepath.Join(dir, "stub.elf")
		if err := os.WriteFile(kernel, stub.Kernel(), 0o600); err != nil {
			return err
		}
		machine := vmmproto.Machine{MemoryBytes: memoryMiB << 20, VCPUs: 1, Template: template}
		vmm, err := vmms.Spawn(ctx, sandbox.ShellConfig{ID: "parent", Dir: filepath.Join(dir, "parent"), Machine: machine})
		if err != nil {
			return err
		}
		defer vmm.Kill()
		if err := runStub(ctx, vmm, kernel); err != nil {
			return err
		}
		return saveStub(ctx, m.Snapshots(), vmm, machine, accel)
	}
	return &guest{name: "stub", bake: bake, client: func(vsock string) sandbox.Guest {
		return stubClient{dir: filepath.Dir(vsock)}
	}}
}

// stubSettle is how long the stub's parent runs until it is surely in its loop: a few dozen instructions, which take
// microseconds on every host, emulated ones included.
const stubSettle = 300 * time.Millisecond

func runStub(ctx context.Context, vmm sandbox.VMM, kernel string) error {
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

func saveStub(ctx context.Context, s *store.Store, vmm sandbox.VMM, machine vmmproto.Machine, accel string) error {
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
		console, err := vmmclient.Console(c.dir)
		if err != nil {
			return err
		}
		if strings.HasPrefix(string(console), string(stub.Answer)) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// processes starts forkd-vmm processes, as the daemon does.
type processes struct{ bin string }

// Spawn implements sandbox.VMMs.
func (p processes) Spawn(ctx context.Context, c sandbox.ShellConfig) (sandbox.VMM, error) {
	v, err := vmmclient.Spawn(ctx, vmmclient.Config{Bin: p.bin, Dir: c.Dir, ID: c.ID, Machine: c.Machine, CgroupFD: -1})
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Attach implements sandbox.VMMs.
func (p processes) Attach(id, dir string) (sandbox.VMM, error) {
	v, err := vmmclient.Attach(id, dir)
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Console implements sandbox.VMMs.
func (p processes) Console(dir string) ([]byte, error) { return vmmclient.Console(dir) }
