package vmmclient

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// BootFiles are the files for a boot. The caller keeps them and must close them.
type BootFiles struct {
	Kernel *os.File
	Initrd *os.File // nil if there is none
	Disks  [][]*os.File
}

// RestoreFiles are the files for a restore. The caller keeps them and must close them.
type RestoreFiles struct {
	State  *os.File
	Layers []*os.File
	Disks  [][]*os.File
}

// Boot loads a kernel into the machine, which stays paused. It sets req.Initrd and the layer counts
// of req.Disks according to the given files. If req.Net is set, DialFrames must have been called.
func (v *VMM) Boot(ctx context.Context, req vmmproto.Boot, files BootFiles) error {
	if err := readOnly(files.Disks, files.Kernel, files.Initrd); err != nil {
		return err
	}
	req.Initrd = files.Initrd != nil
	fds := descriptors(files.Kernel)
	if req.Initrd {
		fds = append(fds, descriptors(files.Initrd)...)
	}
	fds = append(fds, diskDescriptors(req.Disks, files.Disks)...)
	ours, theirs, err := guestStreams()
	for _, s := range theirs {
		defer s.Close()
	}
	if err == nil {
		err = v.call(ctx, vmmproto.KindBoot, &req, append(fds, descriptors(theirs...)...), nil)
	}
	if err != nil {
		closeStreams(ours)
		return err
	}
	v.setStreams(ours)
	return nil
}

// Restore turns the machine into a copy of a snapshot. It sets req.Layers and the layer counts of
// req.Disks according to the given files. If req.Net is set, DialFrames must have been called.
func (v *VMM) Restore(ctx context.Context, req vmmproto.Restore, files RestoreFiles) (result vmmproto.RestoreResult,
	err error) {
	if err := readOnly(files.Disks, append([]*os.File{files.State}, files.Layers...)...); err != nil {
		return result, err
	}
	req.Layers = uint32(len(files.Layers))
	fds := append(descriptors(files.State), descriptors(files.Layers...)...)
	fds = append(fds, diskDescriptors(req.Disks, files.Disks)...)
	err = v.call(ctx, vmmproto.KindRestore, &req, fds, &result)
	return result, err
}

// Resume lets the guest run. It returns when every vCPU is about to enter the guest.
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

// These OOM scores (oom_score_adj) decide in which order the kernel kills processes when the host
// is out of memory: first paused VMMs, then running VMMs, then the daemon, whose score is that of
// other services. The scores are well below 1000, which would outweigh any difference in memory.
const (
	oomScore       = 500
	oomScorePaused = 800
)

// setOOMScore sets the VMM's OOM score. If that fails, the OOM killer chooses processes only by
// their size.
func (v *VMM) setOOMScore(score int) { _ = v.proc.SetOOMScore(score) }

// Limit replaces the limits of the VMM. The second parameter is the size of the guest's memory in
// bytes. A VMM has the default limits from Spawn on.
func (v *VMM) Limit(limits vm.Limits, ram uint64) error { return v.leaf.Set(limits, ram) }

// Hurry removes the limits on disk I/O until done is called.
func (v *VMM) Hurry() (done func()) { return v.leaf.Hurry() }

// Usage returns the present and total usage of the VMM. The result is zero if the host does not
// support limits.
func (v *VMM) Usage() (cgroup.Usage, error) { return v.leaf.Usage() }

// Merge makes the VMM use one layer in place of several. The request names the layers to replace,
// and the given file is the new layer, with their combined content. Without merging, a VMM that is
// branched repeatedly would run out of descriptors, and of memory for bitmaps.
func (v *VMM) Merge(ctx context.Context, req vmmproto.Merge, merged *os.File) error {
	return v.call(ctx, vmmproto.KindMerge, &req, descriptors(merged), nil)
}

// SetVolume puts a disk into an empty volume slot, or empties the slot if there are no files. The
// disk is given by its number among all disks of the VM. The caller keeps the files and must close
// them. First SetVolume permits the VMM to write a top for a disk of sizeBytes. If the daemon lacks
// the right to permit this, the VMM refuses a volume that is too large.
func (v *VMM) SetVolume(ctx context.Context, disk int, sizeBytes uint64, files []*os.File) error {
	if err := readOnly([][]*os.File{files}); err != nil {
		return err
	}
	if _, _, length := disklayer.Layout(sizeBytes); len(files) > 0 {
		_ = v.proc.AllowFiles(length)
	}
	req := vmmproto.SetVolume{Disk: uint32(disk), SizeBytes: sizeBytes, Layers: uint32(len(files))}
	return v.call(ctx, vmmproto.KindVolume, &req, descriptors(files...), nil)
}

// SetNet switches the machine to the newest frame socket of DialFrames or, if network is false, to
// no frame socket. The VMM does not tell the guest about the change. The process at the other end
// of the socket resets the guest's connections.
func (v *VMM) SetNet(ctx context.Context, network bool) error {
	return v.call(ctx, vmmproto.KindNet, &vmmproto.SetNet{Net: network}, nil, nil)
}

// Stats returns the statistics that the VMM has of its machine.
func (v *VMM) Stats(ctx context.Context) (result vm.Stats, err error) {
	err = v.call(ctx, vmmproto.KindStats, nil, nil, (*vmmproto.Stats)(&result))
	return result, err
}

// Written returns the pages that the machine has written since its restore. If there are more than
// vmmproto.MaxWritten ranges, Written returns no ranges. The machine continues to run.
func (v *VMM) Written(ctx context.Context) ([]vm.Range, error) {
	var result vmmproto.Written
	err := v.call(ctx, vmmproto.KindWritten, nil, nil, &result)
	return result.Ranges, err
}

// PID returns the process id of the VMM.
func (v *VMM) PID() int { return v.proc.PID() }

// Dir returns the VMM's directory.
func (v *VMM) Dir() string { return v.dir }

// Conns returns a channel with the streams that the guest opens. The channel is closed when the VMM
// ends. A stream that the caller does not receive soon is closed.
func (v *VMM) Conns() <-chan Conn { return v.conns }

// Stalled returns a channel that receives a value when the VM has paused itself because its disk is
// full. Stats says whether the VM is still paused for this reason.
func (v *VMM) Stalled() <-chan struct{} { return v.stalled }

// Done returns a channel that is closed when the process has ended.
func (v *VMM) Done() <-chan struct{} { return v.done }

// Exit returns why the VMM ended. It may be called when the channel of Done is closed.
func (v *VMM) Exit() vm.Exit {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.exit
}

// Kill kills the process if it still runs, waits until it has ended, and removes its directory. If
// the process does not end, the directory stays, and Kill may be called again.
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

// KillSoon is like Kill, but does not wait until the process has ended. Call Kill to wait.
func (v *VMM) KillSoon() error {
	if err := v.proc.Kill(); err != nil {
		return err
	}
	return os.RemoveAll(v.dir)
}

// OpenConsole opens the console ring in a VMM's directory. Package console reads the ring.
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

// readOnly returns an error if a VMM could write to one of the given files, or to a layer below the
// top of a disk. Other VMs also use these files. Elements of files may be nil.
func readOnly(disks [][]*os.File, files ...*os.File) error {
	for _, d := range disks {
		files = append(files, d[:max(0, len(d)-1)]...)
	}
	for _, f := range files {
		if f == nil {
			continue
		}
		flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name(), err)
		}
		if flags&unix.O_ACCMODE != unix.O_RDONLY {
			return fmt.Errorf("%s is open for writing: a VMM may only read it", f.Name())
		}
	}
	return nil
}

// diskDescriptors returns the descriptors of the files of all disks, and sets the numbers of layers
// in specs.
func diskDescriptors(specs []vmmproto.Disk, disks [][]*os.File) []int {
	var fds []int
	for i, files := range disks {
		specs[i].Layers = uint32(len(files))
		fds = append(fds, descriptors(files...)...)
	}
	return fds
}
