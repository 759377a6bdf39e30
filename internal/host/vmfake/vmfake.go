// Package vmfake is VMs and guests that do nothing except what a test tells them to, for tests of
// what is built on them.
//
// No product code imports it. Real VMs run in the machine's tests.
package vmfake

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

// VMMs starts VMs that do nothing, except what a test tells them to. Real ones run in the machine's
// tests.
type VMMs struct {
	Mu      sync.Mutex
	Live    map[string]*VMM // by directory; nil until the first is spawned
	Spawned int

	SpawnErr   error
	RestoreErr func(n int) error // n-th restore, from 1
	Restores   int
	Expected   [][]vm.Range // of every restore: the first writes
	Writes     []vm.Range   // what a VM has written
	WritesErr  error        // instead of that
	WritesRead int          // how often somebody asked
	BootExit   *vm.Exit     // the guest ends like this instead of announcing itself
	ForkedErr  func(n int) error
	Forked     []agentproto.Forked
	Unique     *agentproto.Unique // what guests find; nil: they do not look
	EvalErr    *agentclient.EvalError
	Exec       func(context.Context) agentclient.ExecResult // of every command; nil: it succeeds
	SyncHangs  bool
	Told       func(agentproto.Request) error // what a guest does that is told something; nil: it cannot be reached
	BranchErr  error                          // before the disk tops are swapped
	LateErr    error                          // after that
	CopyErr    error                          // of a live branch
	StatsErr   error
	LimitErr   error                 // no limits can be had
	GuestDirty uint64                // bytes, as Stats says
	Wrap       func(*VMM) vmpool.VMM // what Spawn returns; nil: the VM itself
	Killing    func()                // called by every Kill; nil: nothing
	Most       int                   // layers that a VM has had above those of its snapshot
	Copying    chan struct{}         // closed when a live branch is copied; nil: at once
	// VMs keep what they were to close open for writing: frozen tops, files of a refused branch
	KeepTops   bool
	RebaseErr  error // before anything is replaced
	LateRebase error // after that
}

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
	v := &VMM{all: f, dir: c.Dir, shape: c.Shape, conns: make(chan vmmclient.Conn, 1), done: make(chan struct{}),
		stalled: make(chan struct{}, 1), console: ring, copies: make(map[uint64]bool)}
	ring.WriteString("hello\nKernel panic - not syncing: x\nbye\n")
	if f.Live == nil {
		f.Live = make(map[string]*VMM)
	}
	f.Live[c.Dir] = v
	f.Spawned++
	if f.Wrap != nil {
		return f.Wrap(v), nil
	}
	return v, nil
}

// Attach implements vmpool.VMMs.
func (f *VMMs) Attach(_, dir string) (vmpool.VMM, error) {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	if v := f.Live[dir]; v != nil {
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

// consoleFile is in the directory of each VM.
const consoleFile = "console"

// Count returns how many VMs live.
func (f *VMMs) Count() int {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return len(f.Live)
}

// All returns the VMs that live.
func (f *VMMs) All() []*VMM {
	f.Mu.Lock()
	defer f.Mu.Unlock()
	return slices.Collect(maps.Values(f.Live))
}

// Ended returns a channel that is closed when the VM in a directory has ended, as one has that is
// not there.
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
