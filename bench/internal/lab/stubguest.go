package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/bench/internal/stub"
	"github.com/forkd/forkd/internal/format/console"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// BakeStub makes a snapshot of a running stub. The stub has the given number of volume slots, and
// its memory map has the given number of additional extents. Bake cannot be used, because it waits
// until the guest says that it is ready.
func (d *Daemon) BakeStub(ctx context.Context, m *Manager, tag string, memoryMiB uint64, extents int,
	slots uint) error {
	kernel := filepath.Join(d.Dir, "stub.elf")
	if err := os.WriteFile(kernel, stub.Kernel(), 0o600); err != nil {
		return err
	}
	machine := vm.Shape{MemoryBytes: memoryMiB << 20, VCPUs: 1, Template: Template(d.Host)}
	shell := vmpool.ShellConfig{ID: "parent", Dir: filepath.Join(d.RunDir, "parent"), Shape: machine}
	vmm, err := d.VMMs.Spawn(ctx, shell)
	if err != nil {
		return err
	}
	defer vmm.Kill()
	if err := runStub(ctx, vmm, kernel, slots); err != nil {
		return err
	}
	return saveStub(ctx, m.Snapshots(), tag, vmm, snapshot.Machine{MemoryBytes: machine.MemoryBytes, VCPUs: machine.VCPUs,
		Template: machine.Template, Accel: d.Host.Accel, VolumeSlots: uint32(slots)}, extents)
}

// StubSettle is how long the parent of stubs runs before it is saved. This time is more than enough
// for the stub to reach its loop: the stub needs only a few dozen instructions, and they take
// microseconds even on emulated hosts.
const StubSettle = 300 * time.Millisecond

func runStub(ctx context.Context, vmm vmpool.VMM, kernel string, slots uint) error {
	f, err := os.Open(kernel)
	if err != nil {
		return err
	}
	defer f.Close()
	boot := vmmproto.Boot{Disks: slices.Repeat([]vmmproto.Disk{{Volume: true}}, int(slots))}
	if err := vmm.Boot(ctx, boot, vmmclient.BootFiles{Kernel: f, Disks: make([][]*os.File, slots)}); err != nil {
		return err
	}
	if err := vmm.Resume(ctx); err != nil {
		return err
	}
	select {
	case <-time.After(StubSettle):
	case <-vmm.Done():
		return fmt.Errorf("this KVM cannot run the stub guest: %s %s", vmm.Exit().Reason, vmm.Exit().Detail)
	}
	return vmm.Pause(ctx)
}

// Addresses of the extents that BakeStub adds. They are above all memory that the stub uses. Each
// extent is followed by a hole of the same length, so that the kernel does not merge the mappings
// of the extents.
const (
	extentsFrom = 32 << 20
	extentStep  = 64 << 10
)

// MaxStubExtents is the number of such extents that fit into a guest with 64 MiB of RAM.
const MaxStubExtents = (64<<20 - extentsFrom) / extentStep

func saveStub(ctx context.Context, s *store.Store, tag string, vmm vmpool.VMM, machine snapshot.Machine,
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
	branched, err := vmm.Branch(ctx, vmmproto.Branch{Mode: vm.BranchDiff, MaxExtents: maxExtents}, vmmclient.BranchFiles{
		MemoryBytes: machine.MemoryBytes, State: state, Layer: layer,
	})
	if err != nil {
		return err
	}
	saved := branched.Save
	for i := range more {
		at := uint64(extentsFrom + i*extentStep)
		saved.Extents = append(saved.Extents, vm.Extent{GPA: at, Offset: at, Length: extentStep / 2})
	}
	staging.DurableFirst()
	_, err = staging.Publish(&snapshot.Manifest{
		Machine: machine,
		Guest:   snapshot.Guest{Kernel: "stub", Hostname: "stub"},
	}, saved.Extents, nil)
	return err
}

// StubClient returns the sandbox.Guest of a stub, for Options.Guest.
func StubClient(_, vsock string) sandbox.Guest { return stubClient{dir: filepath.Dir(vsock)} }

// stubClient is the sandbox.Guest of a stub. Only its method Forked may be called.
type stubClient struct {
	sandbox.Guest
	dir string // directory of the stub's VMM
}

// stubPoll is the interval at which Forked looks for the answer. It is the resolution of the time
// until a stub has answered.
const stubPoll = 200 * time.Microsecond

// Forked waits for the stub's answer on its console. It accepts exactly one byte, because a VMM
// that exits writes more bytes. It checks the number of bytes in an open file, because copying the
// ring buffer of a console would take as long as restoring a vCPU. For other VMMs, the byte is read
// from a pipe.
func (c stubClient) Forked(ctx context.Context, _ agentproto.Forked) (*agentproto.Unique, error) {
	return nil, c.wait(ctx)
}

func (c stubClient) wait(ctx context.Context) error {
	f, err := vmmclient.OpenConsole(c.dir)
	if err != nil {
		return err
	}
	defer f.Close()
	tick, err := NewTicker(stubPoll)
	if err != nil {
		return err
	}
	defer tick.Close()
	for {
		switch said, err := console.Written(f); {
		case err != nil:
			return err
		case said == 1:
			return nil
		case said > 1:
			return fmt.Errorf("the stub of %s says %d bytes", c.dir, said)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := tick.Read(make([]byte, 8)); err != nil {
			return err
		}
	}
}

// NewTicker returns a kernel timer from which eight bytes can be read in every period. A kernel
// timer is used because Go's own timers are late by up to a millisecond in an idle program: Go's
// poller waits for whole milliseconds.
func NewTicker(period time.Duration) (*os.File, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a timer: %w", err)
	}
	f := os.NewFile(uintptr(fd), "timer")
	every := unix.NsecToTimespec(period.Nanoseconds())
	if err := unix.TimerfdSettime(fd, 0, &unix.ItimerSpec{Interval: every, Value: every}, nil); err != nil {
		return nil, errors.Join(fmt.Errorf("set a timer: %w", err), f.Close())
	}
	return f, nil
}
