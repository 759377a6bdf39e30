package vmpool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/forkd/forkd/internal/format/console"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// VMM is a VM process. The methods are documented at *vmmclient.VMM.
type VMM interface {
	PID() int
	Boot(context.Context, vmmproto.Boot, vmmclient.BootFiles) error
	Restore(context.Context, vmmproto.Restore, vmmclient.RestoreFiles) (vmmproto.RestoreResult, error)
	Resume(context.Context) error
	Pause(context.Context) error
	Branch(context.Context, vmmproto.Branch, vmmclient.BranchFiles) (vmmproto.BranchResult, error)
	WaitCopied(ctx context.Context, serial uint64) (vmmproto.Branched, error)
	Rebase(ctx context.Context, serial uint64, layer *os.File) (vmmproto.RebaseResult, error)
	Merge(context.Context, vmmproto.Merge, *os.File) error
	SetVolume(ctx context.Context, disk int, sizeBytes uint64, files []*os.File) error
	DialFrames() (*os.File, error)
	SetNet(ctx context.Context, network bool) error
	Stats(context.Context) (vm.Stats, error)
	Written(context.Context) ([]vm.Range, error)
	Limit(limits vm.Limits, ram uint64) error
	Hurry() (done func())
	Usage() (cgroup.Usage, error)
	Conns() <-chan vmmclient.Conn
	Stalled() <-chan struct{}
	Condemn(why error)
	Done() <-chan struct{}
	Exit() vm.Exit
	Kill() error
	KillSoon() error // is like Kill, but does not wait until the process has ended
}

// ShellConfig describes a VM process to start.
type ShellConfig struct {
	ID    string
	Dir   string // directory for sockets and console of this VM, which Spawn makes
	Shape vm.Shape
}

// VMMs starts and finds VM processes.
type VMMs interface {
	// Node returns the node that the ids of new VMs name.
	Node() snapshot.Node
	// Spawn starts a process and creates its VM, in which nothing runs. Such a process is called a
	// shell.
	Spawn(context.Context, ShellConfig) (VMM, error)
	// Attach finds the process that an earlier daemon has started in dir.
	Attach(id, dir string) (VMM, error)
	// CheckLimits returns an error if the host cannot enforce the limits. The error is an
	// *invalid.Error that names the field, with the given prefix.
	CheckLimits(prefix string, l vm.Limits) error
	// OpenConsole opens the console ring in a VM's directory. It also works after the process has
	// ended.
	OpenConsole(dir string) (*os.File, error)
	// AwaitStarts waits until the processes that are being started have executed their programs,
	// but for at most half a minute. Until then, each of these processes has copies of all
	// descriptors of the daemon.
	AwaitStarts()
}

// Console returns the content of the console ring in a VM's directory.
func Console(vmms VMMs, dir string) (console.Text, error) {
	f, err := vmms.OpenConsole(dir)
	if err != nil {
		return console.Text{}, err
	}
	defer f.Close()
	return console.Tail(f)
}

// Shell is a VMM process whose VM exists but runs nothing.
type Shell struct {
	ID  string
	Dir string
	VMM VMM

	taken chan struct{} // closed when the shell leaves the pool
}

// Spawn starts a shell with a new id. Its directory is below runDir, and has the id as its name.
func Spawn(ctx context.Context, vmms VMMs, runDir string, shape vm.Shape) (*Shell, error) {
	id := newID(vmms.Node())
	s := &Shell{ID: id, Dir: filepath.Join(runDir, id), taken: make(chan struct{})}
	var err error
	if s.VMM, err = vmms.Spawn(ctx, ShellConfig{ID: id, Dir: s.Dir, Shape: shape}); err != nil {
		return nil, fmt.Errorf("start a VMM: %w", err)
	}
	return s, nil
}

func (s *Shell) alive() bool {
	select {
	case <-s.VMM.Done():
		return false
	default:
		return true
	}
}

// WhileRoom returns a context. If the VM pauses itself because a disk is full, the context is
// cancelled, and its cause is the given error. The caller must call the returned function when the
// context is no longer needed.
func WhileRoom(ctx context.Context, v VMM, full error) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-v.Stalled():
			cancel(full)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// WhileAlive returns a context that is cancelled when the VM ends. The cause is then an *ExitError.
// The caller must call the returned function when the context is no longer needed.
func WhileAlive(ctx context.Context, v VMM) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	finished := make(chan struct{})
	go func() {
		select {
		case <-v.Done():
			cancel(&ExitError{v.Exit()})
		case <-finished:
		}
	}()
	return ctx, func() {
		close(finished)
		cancel(nil)
	}
}

// Cause returns err or, if ctx has ended, the cause of ctx. In that case err, such as a broken
// connection, is often only a consequence of that cause. If err is nil, Cause returns nil.
func Cause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// ExitError reports that a VM ended while an operation needed it.
type ExitError struct{ Exit vm.Exit }

func (e *ExitError) Error() string { return "the VM ended (" + DescribeExit(e.Exit) + ")" }

// IsEnd reports whether an error was caused by the end of a VM.
func IsEnd(err error) bool {
	var end *ExitError
	return errors.As(err, &end) || errors.Is(err, vmmclient.ErrGone)
}

// DescribeExit returns in a few words why a VM ended.
func DescribeExit(x vm.Exit) string {
	if x.Detail == "" {
		return x.Reason.String()
	}
	return x.Reason.String() + ": " + x.Detail
}

// IsShortage calls vmmclient.IsShortage.
func IsShortage(err error) bool { return vmmclient.IsShortage(err) }
