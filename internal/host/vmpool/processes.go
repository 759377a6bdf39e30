package vmpool

import (
	"context"
	"os"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Processes implements VMMs with forkd-vmm processes.
type Processes struct {
	Bin     string       // path of forkd-vmm
	Cgroups *cgroup.Tree // makes the VMMs' cgroups; nil: no limits
	Jail    *jail.Starter
	KVM     *vmmclient.KVM // state that the VMMs share; nil: nothing is shared
	On      snapshot.Node  // this host's node; zero: the host has no name
}

// Node implements VMMs.
func (p Processes) Node() snapshot.Node { return p.On }

// Spawn implements VMMs.
func (p Processes) Spawn(ctx context.Context, c ShellConfig) (VMM, error) {
	v, err := vmmclient.Spawn(ctx, vmmclient.Config{Bin: p.Bin, Dir: c.Dir, ID: c.ID, Shape: c.Shape, Cgroups: p.Cgroups,
		Jail: p.Jail, KVM: p.KVM})
	if err != nil {
		return nil, err // returning v would make an interface that is not nil, but contains a nil *vmmclient.VMM
	}
	return v, nil
}

// Attach implements VMMs.
func (p Processes) Attach(id, dir string) (VMM, error) {
	v, err := vmmclient.Attach(p.Cgroups, id, dir)
	if err != nil {
		return nil, err
	}
	return v, nil
}

// CheckLimits implements VMMs.
func (p Processes) CheckLimits(prefix string, l vm.Limits) error { return p.Cgroups.Check(prefix, l) }

// OpenConsole implements VMMs.
func (Processes) OpenConsole(dir string) (*os.File, error) { return vmmclient.OpenConsole(dir) }

// AwaitStarts implements VMMs.
func (p Processes) AwaitStarts() { p.Jail.AwaitStarts() }
