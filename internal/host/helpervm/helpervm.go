// Package helpervm runs a VM that does one task for the daemon, such as unpacking an image, and is
// killed afterwards.
//
// The VM has one vCPU, no network, and one connection to the host, which its init opens. Untrusted
// bytes are decoded in it and not in the daemon. A running VM is considered hostile: it may exit,
// hang, or fill its disks.
package helpervm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/host/excerpt"
	"github.com/forkd/forkd/internal/host/identity"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// MemoryBytes is the memory of a VM, in bytes.
const MemoryBytes = 512 << 20

const (
	cpuWeight = 20          // CPU weight of a VM; a sandbox has 100
	exitTime  = time.Second // time limit from the end of the VM's connection to the VM's exit
	sizeEvery = time.Second // interval at which the sizes of disks are checked
)

// Config is the same for all VMs. All fields are required.
type Config struct {
	VMMs     vmpool.VMMs
	RunDir   string // holds a directory for each VM
	Template string // CPU template
	Cmdline  string // kernel command line
}

// Task describes the work of a VM.
type Task struct {
	Name string // name of the VM in errors, such as "the builder VM"
	Port uint32 // vsock port of the host that the VM's init connects to

	// Boot opens the files that the VM boots from. When undo runs after the boot, it closes these
	// files. No disk should be on a file system in RAM, because a VM can fill its disks.
	Boot func(undo *cleanup.Stack) (vmmproto.Boot, vmmclient.BootFiles, error)

	// Watch returns a context with the time limits of the task, and a function that ends the
	// limits. Run calls Watch before the boot. If Watch is nil, the context given to Run has all
	// limits.
	Watch func(ctx context.Context) (context.Context, func())

	// Talk does the task over the VM's connection, and returns soon after ctx has ended. It returns an
	// *invalid.Error if the VM refuses the task, and an error that wraps ErrLost if the connection has ended.
	Talk func(ctx context.Context, conn net.Conn) error

	// MaxWritten is the maximum size of each disk's top on the host; 0 means the size of the disk.
	MaxWritten int64 // bytes
}

// ErrLost means that the connection to a VM can no longer be used.
var ErrLost = errors.New("the connection to the VM is lost")

// ErrFull means that the host's file system that contains a VM's disk is full. The VM is then
// paused. Run does not wait for space, because the data of the waiting VM fills the disk, and
// sandboxes on this disk are paused too.
var ErrFull = fmt.Errorf("the host's disk is full: %w", syscall.ENOSPC)

// Run boots a VM for a task and waits for the end of the task. No VM is left when it returns. If the VM
// fails, the error has the end of its console.
func (c *Config) Run(ctx context.Context, t Task) (err error) {
	shell, err := vmpool.Spawn(ctx, c.VMMs, c.RunDir, vm.Shape{MemoryBytes: MemoryBytes, VCPUs: 1, Template: c.Template})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && ctx.Err() == nil && !isRefused(err) && !errors.Is(err, ErrFull) {
			console, _ := vmpool.Console(c.VMMs, shell.Dir) // if this fails, the error has no console
			err = fmt.Errorf("%w; the console of %s ends with:\n%s", err, t.Name, excerpt.Console(console.Bytes, 10))
		}
		err = errors.Join(err, shell.VMM.Kill()) // from here on, nothing writes to the disks
	}()
	// An error is ignored, because without cgroups the daemon cannot limit sandboxes either.
	_ = shell.VMM.Limit(vm.Limits{CPUWeight: cpuWeight}, MemoryBytes)
	running, cancel, stop := watched(ctx, shell.VMM)
	defer stop()
	if t.Watch != nil {
		var end func()
		running, end = t.Watch(running)
		defer end()
	}
	tops, err := c.boot(running, shell, &t)
	defer tops.close()
	if err != nil {
		return vmpool.Cause(running, fmt.Errorf("boot %s: %w", t.Name, err))
	}
	if t.MaxWritten > 0 {
		go tops.bound(running, cancel, &t)
	}
	conn, err := dialed(running, t.Port, shell.VMM)
	if err != nil {
		return vmpool.Cause(running, err)
	}
	defer conn.Close()
	if err = t.Talk(running, conn); errors.Is(err, ErrLost) {
		select { // when a VM ends, its connection ends a little earlier
		case <-shell.VMM.Done():
			return &vmpool.ExitError{Exit: shell.VMM.Exit()}
		case <-time.After(exitTime):
		}
	}
	if isRefused(err) {
		return err
	}
	return vmpool.Cause(running, err)
}

// watched returns a context that ends when the VM ends or the host's disk is full. The caller must
// call stop.
func watched(ctx context.Context, v vmpool.VMM) (running context.Context, fail context.CancelCauseFunc, stop func()) {
	alive, forget := vmpool.WhileAlive(ctx, v)
	roomy, unwatch := vmpool.WhileRoom(alive, v, ErrFull)
	running, fail = context.WithCancelCause(roomy)
	return running, fail, func() { fail(nil); unwatch(); forget() }
}

// isRefused reports whether the VM has refused the task. The refusal is then the error to return: a
// later error, such as the end of the client's connection, is only its consequence.
func isRefused(err error) bool {
	var refused *invalid.Error
	return errors.As(err, &refused)
}

// boot boots the VM and lets it run. The tops stay open.
func (c *Config) boot(ctx context.Context, shell *vmpool.Shell, t *Task) (tops, error) {
	var undo cleanup.Stack
	defer undo.Run()
	boot, files, err := t.Boot(&undo)
	if err != nil {
		return nil, err
	}
	var own tops
	for _, d := range files.Disks {
		fd, err := unix.FcntlInt(d[len(d)-1].Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return own, err
		}
		own = append(own, os.NewFile(uintptr(fd), "top"))
	}
	boot.Cmdline, boot.VMGenID = c.Cmdline+boot.Cmdline, identity.NewGenerationID()
	if err := shell.VMM.Boot(ctx, boot, files); err != nil {
		return own, err
	}
	return own, shell.VMM.Resume(ctx)
}

// tops are the files that a VM writes.
type tops []*os.File

func (t tops) close() {
	for _, f := range t {
		_ = f.Close()
	}
}

// bound watches the size of the tops, and cancels ctx when the VM has written more than its limit.
func (t tops) bound(ctx context.Context, cancel context.CancelCauseFunc, task *Task) {
	const blockBytes = 512 // the unit of st_blocks, stat(2)
	tick := time.NewTicker(sizeEvery)
	defer tick.Stop()
	for {
		for _, f := range t {
			var st unix.Stat_t
			if err := unix.Fstat(int(f.Fd()), &st); err == nil && st.Blocks*blockBytes > task.MaxWritten {
				cancel(fmt.Errorf("%s has written more than %d MiB, which its task does not need", task.Name,
					task.MaxWritten>>20))
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// dialed waits until the VM's init connects to the host.
func dialed(ctx context.Context, port uint32, v vmpool.VMM) (net.Conn, error) {
	for {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case c, ok := <-v.Conns():
			switch {
			case !ok:
				<-ctx.Done() // the VM is about to end, and its exit is the cause
			case c.Port == port:
				return c.Conn, nil
			default:
				c.Conn.Close()
			}
		}
	}
}
