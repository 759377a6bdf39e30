package vmfake

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/console"
	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/frame"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// VMM is one of them.
type VMM struct {
	all     *VMMs
	dir     string
	conns   chan vmmclient.Conn
	done    chan struct{}
	stalled chan struct{}
	frames  *os.File // frame socket; nil: none
	top     *os.File // of the disk, open for writing; nil: none
	kept    []*os.File
	console *console.Ring
	full    atomic.Bool
	once    sync.Once
	exit    vm.Exit
	Swaps   uint64
	Rebases uint64
	Asked   []vmmproto.Branch // branches
	limits  vm.Limits

	Hurried, Calmed atomic.Int64
	above           int // layers above those of the snapshot, the top included
}

// Stall lets the VM pause itself because the disk is full, until it is resumed.
func (v *VMM) Stall() {
	v.full.Store(true)
	v.stalled <- struct{}{}
}

// TellOfFullDisk lets the VM tell of a full disk so many times, as fast as it is heard, although the
// disk has room. It returns how often it has been heard.
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

// End lets the VM end by itself.
func (v *VMM) End(x vm.Exit) {
	v.once.Do(func() {
		v.exit = x
		v.all.Mu.Lock()
		delete(v.all.Live, v.dir)
		for _, f := range append(v.kept, v.frames, v.top) {
			f.Close() // an error, where there is none
		}
		_ = v.console.Close() // what was mapped once can be unmapped
		v.frames, v.top, v.console = nil, nil, nil
		v.all.Mu.Unlock()
		close(v.done)
		close(v.conns)
	})
}

func (v *VMM) PID() int { return os.Getpid() }
func (v *VMM) Boot(_ context.Context, _ vmmproto.Boot, files vmmclient.BootFiles) error {
	v.keep(files.Net)
	if err := v.takeTops(files.Disks); err != nil {
		return err
	}
	if v.all.BootExit != nil {
		v.End(*v.all.BootExit)
		return nil
	}
	ours, theirs := net.Pipe()
	go func() {
		json.NewEncoder(theirs).Encode(agentproto.Ready{Version: agentproto.Version, Kernel: "6.12",
			Warm: []string{"python"}})
		theirs.Close()
	}()
	v.conns <- vmmclient.Conn{Port: agentproto.ReadyPort, Conn: ours}
	return nil
}

func (v *VMM) Restore(_ context.Context, req vmmproto.Restore, files vmmclient.RestoreFiles) (vmmproto.RestoreResult,
	error) {
	v.keep(files.Net)
	v.all.Mu.Lock()
	defer v.all.Mu.Unlock()
	v.all.Restores++
	v.all.Expected = append(v.all.Expected, req.FirstWrites)
	for _, disk := range files.Disks {
		for _, layer := range disk[:len(disk)-1] {
			_, _ = layer.Seek(1, io.SeekStart) // as VMs do to find holes
		}
		if err := v.swapTop(disk[len(disk)-1]); err != nil {
			return vmmproto.RestoreResult{}, err
		}
	}
	if v.all.RestoreErr != nil {
		return vmmproto.RestoreResult{}, v.all.RestoreErr(v.all.Restores)
	}
	return vmmproto.RestoreResult{}, nil
}

// SetNet replaces the frame socket.
func (v *VMM) SetNet(_ context.Context, frames *os.File) error { v.keep(frames); return nil }

// Say sends a frame from the guest.
func (v *VMM) Say(message []byte) error {
	v.all.Mu.Lock()
	defer v.all.Mu.Unlock()
	if v.frames == nil {
		return errors.New("the VM has no frame socket")
	}
	_, err := unix.SendmsgN(int(v.frames.Fd()), message, nil, nil, unix.MSG_NOSIGNAL)
	return err
}

// Hear returns a frame that came for the guest.
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

func (v *VMM) Resume(context.Context) error { v.full.Store(false); return nil }
func (v *VMM) Pause(context.Context) error  { return nil }
func (v *VMM) Branch(_ context.Context, req vmmproto.Branch, f vmmclient.BranchFiles) (r vmmproto.BranchResult,
	err error) {
	if v.all.BranchErr != nil {
		if v.all.KeepTops {
			own, err := duplicate(cmp.Or(f.State, f.Tops[0]))
			if err != nil {
				return r, err
			}
			v.kept = append(v.kept, own)
		}
		return r, v.all.BranchErr
	}
	if req.Mode != vm.BranchDisk {
		f.State.WriteString("state")
		f.Layer.Write(make([]byte, vm.PageSize))
		r.Save.DirtyBytes, r.Save.Extents = vm.PageSize, []vm.Extent{{Length: vm.PageSize}}
	}
	v.all.Mu.Lock()
	defer v.all.Mu.Unlock()
	for i, top := range f.Tops {
		if !sameFile(v.top, f.Frozen[i]) {
			return r, errors.New("the file to read the former top through is another one")
		}
		if err := v.swapTop(top); err != nil {
			return r, err
		}
	}
	v.Swaps += uint64(len(f.Tops))
	v.Asked = append(v.Asked, req)
	v.above += len(f.Tops)
	v.all.Most = max(v.all.Most, v.above)
	r.Kept = req.Keep
	r.Mode, r.Pause = req.Mode, 3*time.Millisecond
	return r, v.all.LateErr
}
func (v *VMM) WaitCopied(context.Context, uint64) (b vmmproto.Branched, err error) {
	if v.all.Copying != nil {
		<-v.all.Copying
	}
	return b, v.all.CopyErr
}

// Rebase counts.
func (v *VMM) Rebase(context.Context, uint64, *os.File) (vmmproto.RebaseResult, error) {
	v.all.Mu.Lock()
	defer v.all.Mu.Unlock()
	if v.all.RebaseErr != nil {
		return vmmproto.RebaseResult{}, v.all.RebaseErr
	}
	v.Rebases++
	return vmmproto.RebaseResult{Bytes: vm.PageSize, Mappings: 3}, v.all.LateRebase
}
func (v *VMM) Merge(context.Context, vmmproto.Merge, *os.File) error {
	v.above = 2
	return nil
}
func (v *VMM) Stats(context.Context) (vm.Stats, error) {
	return vm.Stats{TopSwaps: v.Swaps, Rebases: v.Rebases, GuestDirtyBytes: v.all.GuestDirty, DiskFull: v.full.Load()},
		v.all.StatsErr
}

// Written implements vmpool.VMM.
func (v *VMM) Written(context.Context) ([]vm.Range, error) {
	v.all.Mu.Lock()
	defer v.all.Mu.Unlock()
	v.all.WritesRead++
	return v.all.Writes, v.all.WritesErr
}

// Limit notes the limits.
func (v *VMM) Limit(l vm.Limits, _ uint64) error {
	v.all.Mu.Lock()
	defer v.all.Mu.Unlock()
	v.limits = l
	return nil
}

// Hurry counts how often the limits of the disk are lifted, and put back.
func (v *VMM) Hurry() (done func()) {
	v.Hurried.Add(1)
	return func() { v.Calmed.Add(1) }
}

// Limits are the ones that the VM has.
func (v *VMM) Limits() vm.Limits {
	v.all.Mu.Lock()
	defer v.all.Mu.Unlock()
	return v.limits
}

// Usage is that of a VM which uses 48 MiB.
func (v *VMM) Usage() (cgroup.Usage, error) {
	return cgroup.Usage{MemoryBytes: 48 << 20, OwnBytes: 48 << 20}, nil
}

func (v *VMM) Conns() <-chan vmmclient.Conn { return v.conns }
func (v *VMM) Stalled() <-chan struct{}     { return v.stalled }
func (v *VMM) Done() <-chan struct{}        { return v.done }
func (v *VMM) Exit() vm.Exit                { return v.exit }
func (v *VMM) Kill() error {
	if v.all.Killing != nil {
		v.all.Killing()
	}
	v.End(vm.Exit{Reason: vm.ExitInternal, Detail: "killed"})
	return os.RemoveAll(v.dir)
}
