package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/identity"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/vmtest"
)

// linuxGuest is a Linux guest with a recipe's image and forkd's kernel and agent. It is warmed up
// in the same way as by `forkd build`. A child has answered when the agent in it has confirmed the
// child's identity.
type linuxGuest struct {
	recipe    string
	parent    bake.Request
	memoryMiB uint64
	emulated  bool
}

func newLinuxGuest(d *lab.Daemon, recipe string, memoryMiB uint64) (*linuxGuest, error) {
	parent, err := d.Recipe(recipe)
	return &linuxGuest{recipe, parent, memoryMiB, d.Host.Accel == lab.AccelTCG}, err
}

func (g *linuxGuest) name() string { return "Linux with " + g.recipe }

func (*linuxGuest) note() string {
	return "no network device; all children have the parent's disk, in RAM, and none wrote to it"
}

func (*linuxGuest) peers() []string { return []string{firecrackerName, memslotsFirstName} }

func (g *linuxGuest) bake(ctx context.Context, d *lab.Daemon, m *lab.Manager) error {
	return d.Bake(ctx, m, tag, g.recipe, g.memoryMiB)
}

func (*linuxGuest) client() func(_, vsock string) sandbox.Guest { return nil }

// Files in the directory of a Firecracker VM. Snapshots refer to them by paths relative to that
// directory.
const (
	vsockFile = "vsock"
	diskFile  = "disk"
)

// disk returns the path of a copy of the image's disk. All children share this copy. This is
// possible only because no child writes to the disk before the child has answered. If a child wrote
// to the disk earlier, the file's modification time would show it.
func (f *firecracker) disk() string { return filepath.Join(f.snapshots, diskFile) }

func (g *linuxGuest) setUp(f *firecracker, dir string) error {
	if f.baked {
		if written, err := modified(f.disk()); err != nil || written != f.written {
			return errors.Join(errors.New("a child has written to the disk that it shares with others"), err)
		}
	}
	return os.Symlink(f.disk(), filepath.Join(dir, diskFile))
}

func modified(path string) (time.Time, error) {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

func (g *linuxGuest) configure(f *firecracker) ([]request, error) {
	if err := copySparse(f.disk(), g.parent.Rootfs); err != nil {
		return nil, err
	}
	all := append(machine(g.memoryMiB),
		request{"/boot-source", fields{"kernel_image_path": g.parent.Kernel, "initrd_path": g.parent.Initrd,
			"boot_args": vmtest.Cmdline()}},
		// The disk is not a root device for Firecracker, because the agent itself mounts it as the
		// root file system.
		request{"/drives/root", fields{"drive_id": "root", "path_on_host": diskFile,
			"is_root_device": false, "is_read_only": false}})
	if g.emulated {
		all = append(all, request{"/cpu-config", withoutXSAVE()})
	}
	return all, nil
}

// withoutXSAVE returns a CPU template that hides the same features as vm.TemplateV2. An emulated
// host needs it, because it does not preserve the register XCR0 of its guests.
func withoutXSAVE() fields {
	clear := func(register string, bits ...int) fields {
		mask := []byte("0bxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx")
		for _, bit := range bits {
			mask[len(mask)-1-bit] = '0'
		}
		return fields{"register": register, "bitmap": string(mask)}
	}
	const significantIndex = 1 // KVM_CPUID_FLAG_SIGNIFCANT_INDEX
	return fields{"cpuid_modifiers": []fields{
		{"leaf": "0x1", "subleaf": "0x0", "flags": 0,
			"modifiers": []fields{clear("ecx", 12, 26, 27, 28, 29)}}, // fma xsave osxsave avx f16c
		{"leaf": "0x7", "subleaf": "0x0", "flags": significantIndex,
			"modifiers": []fields{clear("ebx", 3, 5, 8)}}, // bmi1 avx2 bmi2
	}}
}

// bakeLimit bounds the time for making a parent. It is long because an emulated host may be busy.
const bakeLimit = 10 * time.Minute

// boot boots and prepares a parent in the same way as package bake.
func (g *linuxGuest) boot(ctx context.Context, vm *firecrackerVM) error {
	ctx, cancel := context.WithTimeout(ctx, bakeLimit)
	defer cancel()
	// Firecracker connects streams of a guest to sockets whose names end with the number of the
	// port.
	dials, err := net.Listen("unix", filepath.Join(vm.dir, fmt.Sprintf("%s_%d", vsockFile, agentproto.ReadyPort)))
	if err != nil {
		return err
	}
	defer dials.Close()
	if err := vm.boot(ctx); err != nil {
		return err
	}
	if err := awaitAnnouncement(ctx, dials); err != nil {
		return fmt.Errorf("wait for the agent's announcement: %w", err)
	}
	agent := vm.agent()
	if _, err := identity.Give(ctx, agent, "forkd", g.parent.Env); err != nil {
		return err
	}
	for _, command := range g.parent.Commands {
		r, err := agent.Exec(ctx, agentclient.ExecRequest{Args: []string{"/bin/sh", "-c", command}})
		if err == nil {
			err = r.Err()
		}
		if err != nil || r.ExitCode != 0 {
			return fmt.Errorf("warm-up %q: code %d, %s%s: %w", command, r.ExitCode, r.Stdout, r.Stderr, err)
		}
	}
	if g.parent.Python != "" {
		r, err := agent.Eval(ctx, g.parent.Python, agentclient.EvalOptions{})
		if err == nil && r.Error != nil {
			err = r.Error
		}
		if err != nil {
			return fmt.Errorf("warm-up code: %w", err)
		}
	}
	return agent.Sync(ctx)
}

// awaitAnnouncement waits until the agent of a parent says that it is ready.
func awaitAnnouncement(ctx context.Context, dials net.Listener) error {
	stop := context.AfterFunc(ctx, func() { dials.Close() })
	defer stop()
	conn, err := dials.Accept()
	if err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	var ready agentproto.Ready
	if err := json.NewDecoder(conn).Decode(&ready); err != nil {
		return err
	}
	if len(ready.Errors) > 0 {
		return fmt.Errorf("it lacks something: %q", ready.Errors)
	}
	return nil
}

// agent returns a client of the agent in a VM.
func (v *firecrackerVM) agent() *agentclient.Client {
	return agentclient.New(agentclient.DialUnix(filepath.Join(v.dir, vsockFile)))
}

// saved records the time of the parent's last write to its disk.
func (g *linuxGuest) saved(f *firecracker) (err error) {
	f.written, err = modified(f.disk())
	return err
}

// awaitAnswer waits for the confirmation of a child, like the sandbox manager. Firecracker accepts
// connections to the guest before the guest has dropped the connections of its parent, and the
// guest may drop a new connection together with the old connections. Such a connection ends without
// an answer, and awaitAnswer makes another connection.
func (g *linuxGuest) awaitAnswer(ctx context.Context, vm *firecrackerVM) error {
	dial := agentclient.DialUnix(filepath.Join(vm.dir, vsockFile))
	agent := agentclient.New(func(ctx context.Context, port uint32) (net.Conn, error) {
		conn, err := dial(ctx, port)
		if err != nil {
			return nil, err
		}
		return &prodding{Conn: conn, closed: make(chan struct{})}, nil
	})
	for {
		_, err := identity.Give(ctx, agent, filepath.Base(vm.dir), nil)
		if !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
			return err
		}
		select {
		case <-time.After(apiPoll):
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		}
	}
}
