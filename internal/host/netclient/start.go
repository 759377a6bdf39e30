package netclient

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/process"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/netproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

// netEnv is forkd-net's whole environment, except for its memory bound. It makes the runtime return
// memory to the host when a sandbox has ended.
var netEnv = []string{"GODEBUG=madvdontneed=1"}

// Leaf is the name of forkd-net's cgroup among those of VMMs.
const Leaf = "net"

// Bounds on forkd-net's memory: a share of the host's memory, and a minimum. A sandbox that has
// sent something takes some 100 KiB, and a connection as much as its data in transit.
const (
	memoryShare = 8
	minMemory   = 512 << 20
)

// oomScore orders the OOM killer's choice: forkd-net comes after sandboxes, whose scores vmmclient
// sets, and before the daemon.
const oomScore = 250

// cpuWeight is the maximum, because all sandboxes wait for this one process. With the default it
// would get the share of a single busy sandbox.
const cpuWeight = 10_000

// memory returns the memory limit of forkd-net, in MiB.
func memory() (uint64, error) {
	var host unix.Sysinfo_t
	if err := unix.Sysinfo(&host); err != nil {
		return 0, fmt.Errorf("find the size of memory: %w", err)
	}
	return max(uint64(host.Totalram)*uint64(host.Unit)/memoryShare, minMemory) >> 20, nil
}

// newLeaf makes forkd-net's cgroup, nil if the host has none. env makes Go collect garbage more
// often before the limit is reached.
func (c *Client) newLeaf() (leaf *cgroup.Leaf, env []string, err error) {
	if leaf, err = c.cfg.Cgroups.New(Leaf, 0); leaf == nil {
		return nil, netEnv, err
	}
	most, err := memory()
	if err == nil {
		err = leaf.Set(vm.Limits{MemoryMiB: most, CPUWeight: cpuWeight}, 0)
	}
	if err != nil {
		return nil, nil, errors.Join(err, leaf.Remove())
	}
	return leaf, append(slices.Clone(netEnv), fmt.Sprintf("GOMEMLIMIT=%dMiB", most-most/8)), nil
}

func (c *Client) path(name string) string { return filepath.Join(c.cfg.Dir, name) }

// start starts a forkd-net.
func (c *Client) start() (*conn, error) {
	for _, name := range []string{socketFile, recordFile} {
		if err := os.Remove(c.path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	listener, err := ctlsock.Listen(c.path(socketFile))
	if err != nil {
		return nil, err
	}
	listenerFile := os.NewFile(uintptr(listener), "control listener")
	defer listenerFile.Close()
	// Connect before the process starts, as with a VMM. If the daemon dies now, the process sees that
	// it has no peer, and exits.
	ctl, err := ctlsock.Dial(c.path(socketFile))
	if err != nil {
		return nil, err
	}
	leaf, env, err := c.newLeaf()
	if err != nil {
		return nil, errors.Join(err, ctl.Close())
	}
	proc, err := startIn(leaf, process.Spec{Name: Name, Bin: c.cfg.Bin,
		Env: env, Record: c.path(recordFile), Listener: listenerFile, Jail: c.cfg.Jail, Online: true})
	_ = listenerFile.Close() // so that the process's exit is noticed before it has accepted the connection
	if err != nil {
		return nil, errors.Join(err, ctl.Close(), leaf.Remove())
	}
	_ = proc.SetOOMScore(oomScore) // optional: without it the kernel decides by size alone
	n := newConn(proc, leaf, ctl, c.cfg.patience)
	if err := n.greet(c.quit, c.cfg.patience); err != nil {
		ended := n.end()
		return nil, errors.Join(fmt.Errorf("start forkd-net: %w; its last words: %s", err, n.lastWords()), ended)
	}
	return n, nil
}

// startIn starts a process in its cgroup.
func startIn(leaf *cgroup.Leaf, spec process.Spec) (*process.Process, error) {
	var err error
	if spec.Cgroup, err = leaf.Open(); err != nil {
		return nil, err
	}
	defer spec.Cgroup.Close() // an error if there is none
	return process.Start(spec)
}

// findTimeout is how long the forkd-net of an earlier daemon may take to answer. After that time
// the daemon starts another forkd-net.
const findTimeout = 5 * time.Second

// find returns the forkd-net that an earlier daemon has left running. It kills a forkd-net of
// another build, or one that does not answer. The error wraps os.ErrNotExist if there was none.
func (c *Client) find() (*conn, error) {
	proc, err := process.Find(Name, c.path(recordFile))
	if err != nil {
		return nil, err
	}
	ctl, err := ctlsock.Dial(c.path(socketFile))
	if err != nil {
		return nil, errors.Join(err, proc.Kill(), proc.Wait())
	}
	n := newConn(proc, c.cfg.Cgroups.Find(Leaf), ctl, c.cfg.patience)
	if err := c.takeOver(n); err != nil {
		return nil, errors.Join(err, n.end())
	}
	return n, nil
}

// takeOver checks that a running forkd-net is of this build, and asks for its attached sandboxes.
func (c *Client) takeOver(n *conn) error {
	running, err := os.Stat(fmt.Sprintf("/proc/%d/exe", n.proc.PID()))
	if err != nil {
		return err
	}
	ours, err := os.Stat(c.cfg.Bin)
	if err != nil {
		return err
	}
	if !os.SameFile(running, ours) {
		return errors.New("it is of another build")
	}
	if err := n.greet(c.quit, findTimeout); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.quit, findTimeout)
	defer cancel()
	var list netproto.List
	if err := n.call(ctx, netproto.KindList, nil, &list); err != nil {
		return err
	}
	n.attached = make(map[string]bool)
	for _, id := range list.IDs {
		n.attached[id] = true
	}
	return nil
}

// greet checks that both sides speak the same version.
func (n *conn) greet(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var welcome netproto.Welcome
	if err := n.call(ctx, netproto.KindHello, &netproto.Hello{Version: netproto.Version}, &welcome); err != nil {
		return err
	}
	if welcome.Version != netproto.Version {
		return fmt.Errorf("it speaks version %d, this daemon %d", welcome.Version, netproto.Version)
	}
	return nil
}
