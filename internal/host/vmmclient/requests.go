package vmmclient

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// BootFiles are the files that a boot donates; the caller keeps and closes its own descriptors.
type BootFiles struct {
	Kernel *os.File
	Initrd *os.File // nil for none
	Disks  [][]*os.File
	Net    *os.File // frame socket, nil for none
}

// RestoreFiles are the files that a restore donates; the caller keeps and closes its own
// descriptors.
type RestoreFiles struct {
	State  *os.File
	Layers []*os.File
	Disks  [][]*os.File
	Net    *os.File // frame socket, nil for none; the VM's present one is closed in any case
}

// Boot loads a kernel into the machine and leaves it paused. It sets Boot.Initrd, Boot.Net and the
// layer counts of Boot.Disks from files.
func (v *VMM) Boot(ctx context.Context, req vmmproto.Boot, files BootFiles) error {
	req.Initrd = files.Initrd != nil
	fds := descriptors(files.Kernel)
	if req.Initrd {
		fds = append(fds, descriptors(files.Initrd)...)
	}
	fds = append(fds, diskDescriptors(req.Disks, files.Disks)...)
	if req.Net = files.Net != nil; req.Net {
		fds = append(fds, descriptors(files.Net)...)
	}
	return v.call(ctx, vmmproto.KindBoot, &req, fds, nil)
}

// Restore makes the machine a copy of a snapshot. It sets Restore.Layers, Restore.Net and the layer
// counts of Restore.Disks from files.
func (v *VMM) Restore(ctx context.Context, req vmmproto.Restore, files RestoreFiles) (result vmmproto.RestoreResult,
	err error) {
	req.Layers = uint32(len(files.Layers))
	fds := append(descriptors(files.State), descriptors(files.Layers...)...)
	fds = append(fds, diskDescriptors(req.Disks, files.Disks)...)
	if req.Net = files.Net != nil; req.Net {
		fds = append(fds, descriptors(files.Net)...)
	}
	err = v.call(ctx, vmmproto.KindRestore, &req, fds, &result)
	return result, err
}

// Resume starts the guest; it returns when every vCPU is about to enter it.
func (v *VMM) Resume(ctx context.Context) error {
	v.setOOMScore(oomScore)
	return v.call(ctx, vmmproto.KindResume, nil, nil, nil)
}

// Pause stops the guest.
func (v *VMM) Pause(ctx context.Context) error {
	err := v.call(ctx, vmmproto.KindPause, nil, nil, nil)
	if err == nil {
		v.setOOMScore(oomScorePaused)
	}
	return err
}

// The order in which the kernel kills VMMs when the host is out of memory: before the daemon, which
// has the score of other services, and paused ones before running ones. 1000 would outweigh any
// amount of memory.
const (
	oomScore       = 500
	oomScorePaused = 800
)

// setOOMScore sets the score if it can; without it the kernel decides by size alone.
func (v *VMM) setOOMScore(score int) { _ = v.proc.SetOOMScore(score) }

// Limit replaces the limits of the VMM, whose guest has ram bytes of memory. Spawn sets the
// defaults.
func (v *VMM) Limit(limits vm.Limits, ram uint64) error { return v.leaf.Set(limits, ram) }

// Hurry lifts the limits of the disk until done is called.
func (v *VMM) Hurry() (done func()) { return v.leaf.Hurry() }

// Usage returns the present and total usage of the VMM; zero without limits.
func (v *VMM) Usage() (cgroup.Usage, error) { return v.leaf.Usage() }

// Merge replaces the layers that the request names by merged, which has their content. Without
// merging, a VMM that is branched repeatedly would run out of descriptors and memory for bitmaps.
func (v *VMM) Merge(ctx context.Context, req vmmproto.Merge, merged *os.File) error {
	return v.call(ctx, vmmproto.KindMerge, &req, descriptors(merged), nil)
}

// SetNet gives the machine another frame socket, or none if socket is nil. The guest is not
// notified; the new peer resets its connections. The caller keeps and closes its own descriptor.
func (v *VMM) SetNet(ctx context.Context, socket *os.File) error {
	var fds []int
	if socket != nil {
		fds = descriptors(socket)
	}
	return v.call(ctx, vmmproto.KindNet, nil, fds, nil)
}

// Stats returns the VMM's figures of its machine.
func (v *VMM) Stats(ctx context.Context) (result vm.Stats, err error) {
	err = v.call(ctx, vmmproto.KindStats, nil, nil, (*vmmproto.Stats)(&result))
	return result, err
}

// Written returns the pages that the machine has written over its layers, or none if there are more
// than vmmproto.MaxWritten. The machine runs on.
func (v *VMM) Written(ctx context.Context) ([]vm.Range, error) {
	var result vmmproto.Written
	err := v.call(ctx, vmmproto.KindWritten, nil, nil, &result)
	return result.Ranges, err
}

// PID returns the process id of the VMM.
func (v *VMM) PID() int { return v.proc.PID() }

// Dir returns the VMM's directory.
func (v *VMM) Dir() string { return v.dir }

// Conns delivers the streams that the guest opens. It is closed when the VMM ends. Streams that are
// not received soon are refused.
func (v *VMM) Conns() <-chan Conn { return v.conns }

// Stalled receives a value when the VM has paused itself because the host has no room for its
// disks. Stats says whether it is still stalled.
func (v *VMM) Stalled() <-chan struct{} { return v.stalled }

// Done is closed when the process has ended.
func (v *VMM) Done() <-chan struct{} { return v.done }

// Exit returns why the VMM ended. It is valid after Done.
func (v *VMM) Exit() vm.Exit {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.exit
}

// Kill kills the process if it still runs, waits until it has ended, and removes its directory. If
// the kernel does not end the process, the directory stays, and Kill may be called again.
func (v *VMM) Kill() error {
	if err := v.proc.Kill(); err != nil {
		return err
	}
	select {
	case <-v.done:
		return os.RemoveAll(v.dir)
	case <-time.After(v.limits.end):
		return fmt.Errorf("forkd-vmm %s (process %d) has not ended %v after SIGKILL", v.id, v.proc.PID(), v.limits.end)
	}
}

// OpenConsole opens the console ring of the VMM with the directory dir. Package console reads it.
func OpenConsole(dir string) (*os.File, error) {
	f, err := os.Open(filepath.Join(dir, consoleFile))
	if err != nil {
		return nil, fmt.Errorf("read console: %w", err)
	}
	return f, nil
}

func descriptors(files ...*os.File) []int {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	return fds
}

// diskDescriptors returns the descriptors of all disks' files, and sets the counts in specs.
func diskDescriptors(specs []vmmproto.Disk, disks [][]*os.File) []int {
	var fds []int
	for i, files := range disks {
		specs[i].Layers = uint32(len(files))
		fds = append(fds, descriptors(files...)...)
	}
	return fds
}
