package vmfake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/console"
	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/frame/frametest"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// VMM is a fake VM. Package suite checks that it handles requests like a real VM.
type VMM struct {
	all     *VMMs
	dir     string
	shape   vm.Shape
	conns   chan vmmclient.Conn
	done    chan struct{}
	stalled chan struct{}
	once    sync.Once

	Hurried, Calmed atomic.Int64

	NoFrames atomic.Bool // whether DialFrames fails, as on a host without free descriptors

	// all.Mu guards the fields below.

	exit    vm.Exit
	frames  *os.File // frame socket; may be nil
	waiting *os.File // newest frame socket of DialFrames, which the VM does not use yet; may be nil
	kept    []io.Closer
	console *console.Ring
	limits  vm.Limits
	Swaps   uint64
	Rebases uint64
	Asked   []vmmproto.Branch // all requests for branches

	used    bool     // the VM was booted or restored
	atEntry bool     // the guest has not run since Boot
	ends    *vm.Exit // how the guest ends when it first runs; nil: it becomes ready
	running bool
	full    bool            // the VM has paused itself because the disk is full
	disks   []layers        // numbers of layers, for each disk
	asked   uint64          // number of branches so far, which is the serial of the latest branch
	copies  map[uint64]bool // serials of live branches for which WaitCopied was not called yet
	last    uint64          // serial of the branch that Rebase may use; 0: none
}

// layers counts the layers of a disk above its base image, including the top. It has the number
// after the restore (first) and the present number (now).
type layers struct {
	first, now int
	top        *os.File // top of the disk, open for writing; nil: an empty volume slot
}

// Stall makes the VM pause itself until it is resumed, as if its disk were full.
func (v *VMM) Stall() {
	v.all.Mu.Lock()
	v.full, v.running = true, false
	v.all.Mu.Unlock()
	v.stalled <- struct{}{}
}

// TellOfFullDisk makes the VM report a full disk at most the given number of times, although the
// disk has room. Each report waits until the previous report was received. The result is a function
// that returns the number of received reports.
func (v *VMM) TellOfFullDisk(most int) (heard func() int) {
	var n atomic.Int64
	go func() {
		for range most {
			select {
			case v.stalled <- struct{}{}:
				n.Add(1)
			case <-v.done:
				return
			}
		}
	}()
	return func() int { return int(n.Load()) - len(v.stalled) }
}

// End makes the VM end without a request.
func (v *VMM) End(x vm.Exit) {
	v.once.Do(func() {
		v.all.Mu.Lock()
		defer v.all.Mu.Unlock()
		v.exit = x
		delete(v.all.Live, v.dir)
		open := append(v.kept, v.frames, v.waiting)
		for _, d := range v.disks {
			open = append(open, d.top)
		}
		for _, f := range open {
			f.Close() // Close of a nil file only returns an error
		}
		_ = v.console.Close() // only once, because it unmaps memory
		v.frames, v.waiting, v.disks, v.console = nil, nil, nil, nil
		close(v.done)
		close(v.conns)
	})
}

// request locks all.Mu for a request. It returns an error if ctx or the VM has ended.
func (v *VMM) request(ctx context.Context) (unlock func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	v.all.Mu.Lock()
	select {
	case <-v.done:
		v.all.Mu.Unlock()
		return nil, v.gone()
	default:
		return v.all.Mu.Unlock, nil
	}
}

// gone returns the error of a request to a VM that has ended.
func (v *VMM) gone() error { return fmt.Errorf("%w: %s", vmmclient.ErrGone, v.exit.Detail) }

// PID returns the process id of the test.
func (v *VMM) PID() int { return os.Getpid() }

// Boot implements vmpool.VMM. Without an initramfs the guest panics.
func (v *VMM) Boot(ctx context.Context, req vmmproto.Boot, files vmmclient.BootFiles) error {
	unlock, err := v.request(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if v.used {
		return errors.New("boot: the machine has a guest already")
	}
	if err := v.setNetLocked(req.Net); err != nil {
		return err
	}
	v.used, v.atEntry, v.ends = true, true, v.all.BootExit
	if files.Initrd == nil {
		v.ends = &vm.Exit{Reason: vm.ExitPanic, Detail: "Kernel panic - not syncing: no initramfs"}
	}
	return v.takeDisksLocked(req.Disks, files.Disks)
}

// Restore implements vmpool.VMM.
func (v *VMM) Restore(ctx context.Context, req vmmproto.Restore, files vmmclient.RestoreFiles) (vmmproto.RestoreResult,
	error) {
	unlock, err := v.request(ctx)
	if err != nil {
		return vmmproto.RestoreResult{}, err
	}
	defer unlock()
	if err := v.setNetLocked(req.Net); err != nil {
		return vmmproto.RestoreResult{}, err
	}
	v.used, v.atEntry, v.running, v.full, v.last = true, false, false, false, 0
	v.all.Restores++
	v.all.Expected = append(v.all.Expected, req.FirstWrites)
	for _, disk := range files.Disks {
		for _, layer := range disk[:max(len(disk)-1, 0)] {
			_, _ = layer.Seek(1, io.SeekStart) // a real VM also moves the offset, when it looks for holes
		}
	}
	if err := v.takeDisksLocked(req.Disks, files.Disks); err != nil {
		return vmmproto.RestoreResult{}, err
	}
	if v.all.RestoreErr != nil {
		if err := v.all.RestoreErr(v.all.Restores); err != nil {
			return vmmproto.RestoreResult{}, err
		}
	}
	state, err := io.ReadAll(io.NewSectionReader(files.State, 0, 4096))
	if err != nil || len(state) == 0 {
		return vmmproto.RestoreResult{}, vm.WithCode(vm.ErrBadState, fmt.Errorf("machine state is empty (%v)", err))
	}
	if v.all.Files != nil {
		if err := v.all.Files.Load(v.dir, string(state)); err != nil {
			return vmmproto.RestoreResult{}, err
		}
	}
	v.running = req.Resume
	return vmmproto.RestoreResult{}, nil
}

// Resume implements vmpool.VMM. At the first call after Boot the guest becomes ready.
func (v *VMM) Resume(ctx context.Context) error {
	unlock, err := v.request(ctx)
	if err != nil {
		return err
	}
	first := v.atEntry
	v.running, v.full, v.atEntry = true, false, false
	if first && v.ends == nil {
		v.announceLocked()
	}
	unlock()
	if first && v.ends != nil {
		v.End(*v.ends)
	}
	return nil
}

// announceLocked makes the guest report that it is ready.
func (v *VMM) announceLocked() {
	ours, theirs := net.Pipe()
	go func() {
		json.NewEncoder(theirs).Encode(agentproto.Ready{Version: agentproto.Version, Kernel: "6.12",
			Warm: []string{"python"}})
		theirs.Close()
	}()
	v.conns <- vmmclient.Conn{Port: agentproto.ReadyPort, Conn: ours}
}

// Pause implements vmpool.VMM.
func (v *VMM) Pause(ctx context.Context) error {
	unlock, err := v.request(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	v.running = false
	return nil
}

// DialFrames implements vmpool.VMM.
func (v *VMM) DialFrames() (*os.File, error) {
	if v.NoFrames.Load() {
		return nil, syscall.EMFILE
	}
	unlock, err := v.request(context.Background())
	if err != nil {
		return nil, err
	}
	defer unlock()
	v.waiting.Close() // Close of a nil file only returns an error
	var other *os.File
	v.waiting, other, err = frametest.Pair()
	return other, err
}

// SetNet implements vmpool.VMM.
func (v *VMM) SetNet(ctx context.Context, network bool) error {
	unlock, err := v.request(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return v.setNetLocked(network)
}

func (v *VMM) setNetLocked(network bool) error {
	next := v.waiting
	v.waiting = nil
	switch {
	case !network:
		next.Close() // Close of a nil file only returns an error
		next = nil
	case next == nil && !v.used:
		return errors.New("no frame socket waits")
	case next == nil:
		return nil
	}
	v.frames.Close()
	v.frames = next
	return nil
}

// Say sends a frame as the guest.
func (v *VMM) Say(message []byte) error {
	v.all.Mu.Lock()
	defer v.all.Mu.Unlock()
	if v.frames == nil {
		return errors.New("the VM has no frame socket")
	}
	_, err := unix.SendmsgN(int(v.frames.Fd()), message, nil, nil, unix.MSG_NOSIGNAL)
	return err
}

// Hear receives a frame as the guest.
func (v *VMM) Hear() ([]byte, error) {
	v.all.Mu.Lock()
	defer v.all.Mu.Unlock()
	if v.frames == nil {
		return nil, errors.New("the VM has no frame socket")
	}
	buf := make([]byte, frame.MaxMessage)
	n, _, err := unix.Recvfrom(int(v.frames.Fd()), buf, unix.MSG_DONTWAIT)
	return buf[:max(n, 0)], err
}

// Stats implements vmpool.VMM.
func (v *VMM) Stats(ctx context.Context) (vm.Stats, error) {
	unlock, err := v.request(ctx)
	if err != nil {
		return vm.Stats{}, err
	}
	defer unlock()
	return vm.Stats{TopSwaps: v.Swaps, Rebases: v.Rebases, GuestDirtyBytes: v.all.GuestDirty, DiskFull: v.full,
		Paused: !v.running, Volumes: v.volumesLocked()}, v.all.StatsErr
}

// Written implements vmpool.VMM.
func (v *VMM) Written(ctx context.Context) ([]vm.Range, error) {
	unlock, err := v.request(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	v.all.WritesRead++
	return v.all.Writes, v.all.WritesErr
}

// Limit records the limits.
func (v *VMM) Limit(l vm.Limits, _ uint64) error {
	v.all.Mu.Lock()
	defer v.all.Mu.Unlock()
	v.limits = l
	return nil
}

// Hurry counts how often the disk's limits were lifted (Hurried) and restored (Calmed).
func (v *VMM) Hurry() (done func()) {
	v.Hurried.Add(1)
	return func() { v.Calmed.Add(1) }
}

// Limits returns the limits that Limit has recorded.
func (v *VMM) Limits() vm.Limits {
	v.all.Mu.Lock()
	defer v.all.Mu.Unlock()
	return v.limits
}

// Usage reports a fixed use of 48 MiB, and the processor time that the field CPU of VMMs returns.
func (v *VMM) Usage() (cgroup.Usage, error) {
	u := cgroup.Usage{MemoryBytes: 48 << 20, OwnBytes: 48 << 20}
	if v.all.CPU != nil {
		u.CPU = v.all.CPU()
	}
	return u, nil
}

func (v *VMM) Conns() <-chan vmmclient.Conn { return v.conns }
func (v *VMM) Stalled() <-chan struct{}     { return v.stalled }
func (v *VMM) Done() <-chan struct{}        { return v.done }
func (v *VMM) Exit() vm.Exit {
	v.all.Mu.Lock()
	defer v.all.Mu.Unlock()
	return v.exit
}

// Condemn implements vmpool.VMM.
func (v *VMM) Condemn(why error) { v.End(vm.Exit{Reason: vm.ExitInternal, Detail: why.Error()}) }

// KillSoon implements vmpool.VMM. If VMMs.Killing is set, the VM ends at the next call of Kill.
func (v *VMM) KillSoon() error {
	if v.all.Killing == nil {
		v.End(killed)
	}
	return os.RemoveAll(v.dir)
}

var killed = vm.Exit{Reason: vm.ExitInternal, Detail: "killed"}

// Kill implements vmpool.VMM.
func (v *VMM) Kill() error {
	if v.all.Killing != nil {
		v.all.Killing()
	}
	v.End(killed)
	return os.RemoveAll(v.dir)
}
