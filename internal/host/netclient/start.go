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

// netEnv is the environment of forkd-net, without the variable that sets its memory limit. With
// this environment, the Go runtime returns memory to the host when a sandbox has ended.
var netEnv = []string{"GODEBUG=madvdontneed=1"}

// Leaf is the name of forkd-net's cgroup. VMMs have other names.
const Leaf = "net"

// The memory limit of forkd-net is 1/memoryShare of the host's memory, but at least minMemory
// bytes. A sandbox that uses its network takes some 100 KiB, and each connection takes as much
// memory as its data in transit.
const (
	memoryShare = 8
	minMemory   = 512 << 20
)

// oomScore is forkd-net's score: the kernel's OOM killer chooses forkd-net after sandboxes and
// before the daemon. Package vmmclient sets the scores of sandboxes.
const oomScore = 250

// cpuWeight is the highest weight, because all sandboxes wait for forkd-net. With the default
// weight, forkd-net would receive only as much CPU time as one busy sandbox.
const cpuWeight = 10_000

// memory returns the memory limit of forkd-net, in MiB.
func memory() (uint64, error) {
	var host unix.Sysinfo_t
	if err := unix.Sysinfo(&host); err != nil {
		return 0, fmt.Errorf("find the size of memory: %w", err)
	}
	return max(uint64(host.Totalram)*uint64(host.Unit)/memoryShare, minMemory) >> 20, nil
}

// newLeaf makes forkd-net's cgroup. If the host does not support limits, the leaf is nil. The
// returned environment sets a limit for Go's garbage collector, so that the collector runs more
// often before the cgroup's limit is reached.
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
	// Connect before the process starts, as for a VMM. If the daemon is killed now, the process
	// notices that its peer is gone, and exits.
	ctl, err := ctlsock.Dial(c.path(socketFile))
	if err != nil {
		return nil, err
	}
	leaf, env, err := c.newLeaf()
	if err != nil {
		return nil, errors.Join(err, ctl.Close())
	}
	proc, err := startIn(leaf, process.Spec{Name: Name, Bin: c.cfg.Bin,
		Env: env, Record: c.path(recordFile), Files: []*os.File{listenerFile}, Jail: c.cfg.Jail, Online: true})
	_ = listenerFile.Close() // while the daemon has this open, it does not notice if forkd-net exits before it accepts
	if err != nil {
		return nil, errors.Join(err, ctl.Close(), leaf.Remove())
	}
	_ = proc.SetOOMScore(oomScore) // if this fails, the kernel chooses by size only
	n := newConn(proc, leaf, ctl, c.cfg.patience)
	if err := n.greet(c.quit, c.cfg.patience); err != nil {
		ended := n.end()
		return nil, errors.Join(fmt.Errorf("start forkd-net: %w; its last words: %s", err, n.lastWords()), ended)
	}
	return n, nil
}

// startIn starts a process in the cgroup of a leaf.
func startIn(leaf *cgroup.Leaf, spec process.Spec) (*process.Process, error) {
	var err error
	if spec.Cgroup, err = leaf.Open(); err != nil {
		return nil, err
	}
	defer spec.Cgroup.Close() // Close of a nil file only returns an error
	return process.Start(spec)
}

// findTimeout is how long the forkd-net of an earlier daemon may take to answer. If it takes
// longer, the daemon starts a new forkd-net.
const findTimeout = 5 * time.Second

// find returns the forkd-net that an earlier daemon has left running. It kills a forkd-net that
// belongs to another build or does not answer. If there was none, the error wraps os.ErrNotExist.
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

// takeOver checks that a running forkd-net is of this build, and asks which sandboxes are attached
// to it.
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

// greet checks that forkd-net uses the daemon's version of the protocol.
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
