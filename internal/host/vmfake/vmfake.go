// Package vmfake provides fake VMs and guests for tests. They do only what a test tells them to do.
//
// Product code must not import it. Tests of the machine use real VMs.
package vmfake

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/forkd/forkd/internal/format/console"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// VMMs starts fake VMs. Its exported fields decide what the VMs do.
type VMMs struct {
	Mu      sync.Mutex
	Live    map[string]*VMM // VMs that have not ended, by directory; nil until the first Spawn
	Spawned int

	On         snapshot.Node // see Node
	SpawnErr   error
	RestoreErr func(n int) error // returns the error of the n-th restore; n begins with 1
	Restores   int
	Expected   [][]vm.Range      // the FirstWrites of each restore
	Disks      [][]vmmproto.Disk // the disks of each boot and restore
	Writes     []vm.Range        // result of Written
	WritesErr  error             // error of Written
	WritesRead int               // number of calls of Written
	BootExit   *vm.Exit          // if set, the guest ends in this way and never becomes ready
	ForkedErr  func(n int) error
	Forked     []agentproto.Forked
	Defaults   []agentclient.Defaults // settings that guests have received
	NoUser     string                 // account that guests lack
	Unique     *agentproto.Unique     // what guests find; nil: they do not search
	EvalErr    *agentclient.EvalError
	Exec       func(context.Context) agentclient.ExecResult // returns the result of every command; nil: success
	SyncHangs  bool
	Busy       func() bool                    // answers whether a program in the guest holds the lock; nil: no
	CPU        func() time.Duration           // processor time that Usage reports; nil: none
	Told       func(agentproto.Request) error // called for every control request; nil: see Guest.Dial
	BranchErr  error                          // error of Branch, before the tops are swapped
	LateErr    error                          // error of Branch, after the tops are swapped
	CopyErr    error                          // error of WaitCopied
	StatsErr   error
	LimitErr   error                 // error of CheckLimits
	GuestDirty uint64                // dirty bytes that Stats reports
	Wrap       func(*VMM) vmpool.VMM // wraps the result of Spawn; nil: no wrapping
	Killing    func()                // called by each Kill; may be nil
	Most       int                   // largest number of layers that a VM has had above its snapshot's layers
	Copying    chan struct{}         // closing it ends the copying of a live branch; nil: copying ends at once
	// If KeepTops is set, VMs keep files open for writing that they should close: frozen tops, and
	// files of a refused branch.
	KeepTops bool
	// Keep is called with the state file of each branch. The VM keeps the result until it ends. May
	// be nil.
	Keep       func(*os.File) io.Closer
	Starts     func() // called by AwaitStarts; may be nil
	VolumeErr  error  // error of SetVolume
	RebaseErr  error  // error of Rebase, before pages are replaced
	LateRebase error  // error of Rebase, after pages were replaced

	// Files keeps the files of guests in snapshots; nil: snapshots contain no files.
	Files Files

	// If Outlived is set, Attach also finds a running VM in each directory in which another value
	// of type VMMs has started one. So the VMs outlive a restart of the daemon.
	Outlived bool
}

// Files stores the files of guests, if the guests are processes of this host. The parameter vm is
// the directory of a VM. Save returns a name, which must not be empty. With this name, Load gives
// the same files to another VM.
type Files interface {
	Save(vm string) (name string, err error)
	Load(vm, name string) error
}

// Node implements vmpool.VMMs.
func (h *VMMs) Node() snapshot.Node { return h.On }

// Spawn implements vmpool.VMMs.
func (f *VMMs) Spawn(ctx context.Context, c vmpool.ShellConfig) (vmpool.VMM, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.Mu.Lock()
	defer f.Mu.Unlock()
	if f.SpawnErr != nil {
		return nil, f.SpawnErr
	}
	if err := os.Mkdir(c.Dir, 0o700); err != nil {
		return nil, err
	}
	ring, err := newConsole(filepath.Join(c.Dir, consoleFile))
	if err != nil {
		return nil, err
	}
	ring.WriteString("hello\nKernel panic - not syncing: x\nbye\n")
	v := f.addLocked(c, ring)
	f.Spawned++
	if f.Wrap != nil {
		return f.Wrap(v), nil
	}
	return v, nil
}

// addLocked adds a VM to Live.
func (f *VMMs) addLocked(c vmpool.ShellConfig, ring *console.Ring) *VMM {
	v := &VMM{all: f, dir: c.Dir, shape: c.Shape, conns: make(chan vmmclient.Conn, 1), done: make(chan struct{}),
		stalled: make(chan struct{}, 1), console: ring, copies: make(map[uint64]bool)}
	if f.Live == nil {
		f.Live = make(map[string]*VMM)
	}
	f.Live[c.Dir] = v
	return v
}

// AwaitStarts implements vmpool.VMMs.
func (f *VMMs) AwaitStarts() {
	if f.Starts != nil {
		f.Starts()
	}
}

// Attach implements vmpool.VMMs.
func (f *VMMs) Attach(_, dir string) (vmpool.VMM, error) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	if v := f.Live[dir]; v != nil {
		return v, nil
	}
	if f.Outlived {
		ring, err := openConsole(filepath.Join(dir, consoleFile))
		if err != nil {
			return nil, err
		}
		v := f.addLocked(vmpool.ShellConfig{Dir: dir}, ring)
		v.used, v.running = true, true
		return v, nil
	}
	return nil, errors.New("no such process")
}

// CheckLimits implements vmpool.VMMs.
func (f *VMMs) CheckLimits(prefix string, l vm.Limits) error {
	var wrong *vm.LimitError
	if errors.As(l.Check(), &wrong) {
		return &invalid.Error{Field: prefix + wrong.Field, Reason: wrong.Reason}
	}
	if l == (vm.Limits{}) {
		return nil
	}
	return f.LimitErr
}

// consoleFile is the name of the console ring in the directory of a VM.
const consoleFile = "console"

// Count returns how many VMs have not ended.
func (f *VMMs) Count() int {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return len(f.Live)
}

// All returns the VMs that have not ended.
func (f *VMMs) All() []*VMM {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return slices.Collect(maps.Values(f.Live))
}

// Ended returns a channel that is closed when the VM of a directory has ended. If there is no such
// VM, the channel is already closed.
func (f *VMMs) Ended(dir string) <-chan struct{} {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	if v := f.Live[dir]; v != nil {
		return v.done
	}
	ended := make(chan struct{})
	close(ended)
	return ended
}
