package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/stub"
	"github.com/forkd/forkd/internal/host/sandbox"
)

// guest is the guest of the virtual machines. It makes a snapshot of a parent, in forkd and in
// Firecracker, and says how a child answers.
type guest interface {
	name() string
	note() string    // how Firecracker's children differ from forkd's children
	peers() []string // names of the peers, other than forkd, that can run this guest

	bake(ctx context.Context, d *lab.Daemon, m *lab.Manager) error // makes forkd's snapshot
	client() func(_, vsock string) sandbox.Guest                   // stands in for the agent; nil: the agent itself

	// setUp prepares the directory of a Firecracker VM, which is a parent or a child.
	setUp(f *firecracker, dir string) error
	// configure returns the requests by which Firecracker makes a parent.
	configure(f *firecracker) ([]request, error)
	boot(ctx context.Context, vm *firecrackerVM) error // runs a parent until it can be saved
	saved(f *firecracker) error                        // called after a snapshot of the parent was made
	awaitAnswer(ctx context.Context, vm *firecrackerVM) error
}

// request is a request to Firecracker's API. Its body is an object.
type request struct {
	path string
	body fields
}

type fields map[string]any

// stubGuest is user-mode code without an operating system (package stub).
type stubGuest struct{ memoryMiB uint64 }

func (stubGuest) name() string { return "stub, without an operating system" }

func (stubGuest) note() string { return "no network device" }

func (stubGuest) peers() []string {
	return []string{firecrackerName, memslotsFirstName, qemuName, runcName, gvisorName}
}

func (g stubGuest) bake(ctx context.Context, d *lab.Daemon, m *lab.Manager) error {
	return d.BakeStub(ctx, m, tag, g.memoryMiB, 0, 0)
}

func (stubGuest) client() func(_, vsock string) sandbox.Guest { return lab.StubClient }

func (stubGuest) setUp(*firecracker, string) error { return nil }

// firecrackerLayout is the layout for Firecracker 1.x. The first page of the device hole belongs to
// Firecracker's boot timer, and the next page to the first virtio-mmio device.
var firecrackerLayout = stub.Layout{Register: 0xc0001000, Generation: stub.Note}

func (g stubGuest) configure(f *firecracker) ([]request, error) {
	kernel := filepath.Join(f.dir, "stub.elf")
	if err := os.WriteFile(kernel, firecrackerLayout.Kernel(), 0o600); err != nil {
		return nil, err
	}
	return append(machine(g.memoryMiB),
		// Without a console argument, Firecracker has no serial port.
		request{"/boot-source", fields{"kernel_image_path": kernel, "boot_args": "console=ttyS0"}}), nil
}

// machine configures two of the devices that forkd's sandboxes have. It omits the network device,
// which would need an interface on the host for every child.
func machine(memoryMiB uint64) []request {
	return []request{
		{"/machine-config", fields{"vcpu_count": 1, "mem_size_mib": memoryMiB}},
		{"/vsock", fields{"guest_cid": 3, "uds_path": vsockFile}},
		{"/entropy", fields{}},
	}
}

func (stubGuest) boot(ctx context.Context, vm *firecrackerVM) error {
	err := vm.boot(ctx)
	time.Sleep(lab.StubSettle)
	return err
}

func (stubGuest) saved(f *firecracker) error { return tellCopies(f.memory()) }

func (stubGuest) awaitAnswer(ctx context.Context, vm *firecrackerVM) error {
	return awaitAnswer(ctx, vm.out)
}

// newGuest returns the guest that -guest names.
func (b *bench) newGuest(d *lab.Daemon) (guest, error) {
	switch b.guestName {
	case "stub":
		return stubGuest{b.memoryMiB}, nil
	case "linux":
		return newLinuxGuest(d, b.recipe, b.memoryMiB)
	}
	return nil, fmt.Errorf("-guest %q: want stub or linux", b.guestName)
}
