package helpervm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/identity"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

const (
	rehearsalTime  = 3 * time.Minute // time limit of a rehearsal; an emulated host needs most of a minute
	rehearsalBytes = 64 << 20        // maximum bytes of disk that a guest may write in a rehearsal
)

// Guest is the agent of a guest in a rehearsal.
type Guest interface {
	identity.Guest
	Eval(ctx context.Context, code string, opts agentclient.EvalOptions) (agentclient.EvalResult, error)
}

// Rehearser lets saved machines run until their first answer. All fields are required.
type Rehearser struct {
	VMMs   vmpool.VMMs
	RunDir string                       // holds a directory for each VM
	Guest  func(vsockPath string) Guest // returns the agent behind the vsock socket of a VM
}

// Saved is a machine that a Rehearser restores. Except for Top, the files are open for reading only. The
// VM shares their open file descriptions, so nothing else may use them.
type Saved struct {
	Machine   snapshot.Machine
	State     *os.File
	Extents   []vm.Extent
	Layers    []*os.File
	Disk      []*os.File // base image, then layers; empty: the machine has no disk
	DiskBytes uint64     // size of the disk
	Top       *os.File   // an empty file, for what the guest writes to its disk
}

// Run restores a machine as a fork does, and waits for its first answer. The machine has answered
// when the agent has confirmed a new identity, and has evaluated an expression or said why it
// cannot. Then Run kills the VM. The machine has no network and empty volume slots. It may come
// from an attacker.
func (r *Rehearser) Run(ctx context.Context, s Saved) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, rehearsalTime, fmt.Errorf("no answer within %v", rehearsalTime))
	defer cancel()
	shell, err := vmpool.Spawn(ctx, r.VMMs, r.RunDir, s.Machine.Shape())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shell.VMM.Kill()) }() // from here on, nothing writes to the top
	// An error is ignored, because without cgroups the daemon cannot limit sandboxes either.
	_ = shell.VMM.Limit(vm.Limits{}, s.Machine.MemoryBytes)
	running, fail, stop := watched(ctx, shell.VMM)
	defer stop()
	go refuseConns(shell.VMM)
	req := vmmproto.Restore{Extents: s.Extents, VMGenID: identity.NewGenerationID(), Resume: true}
	files := vmmclient.RestoreFiles{State: s.State, Layers: s.Layers}
	if len(s.Disk) > 0 {
		if err := disklayer.Format(s.Top, s.DiskBytes); err != nil {
			return err
		}
		req.Disks = []vmmproto.Disk{{SizeBytes: s.DiskBytes}}
		files.Disks = [][]*os.File{append(slices.Clone(s.Disk), s.Top)}
		go tops{s.Top}.bound(running, fail, &Task{Name: "the rehearsal", MaxWritten: rehearsalBytes})
	}
	for range s.Machine.VolumeSlots {
		req.Disks, files.Disks = append(req.Disks, vmmproto.Disk{Volume: true}), append(files.Disks, nil)
	}
	if _, err = shell.VMM.Restore(running, req, files); err == nil {
		err = firstAnswer(running, r.Guest(filepath.Join(shell.Dir, vmmclient.VsockSocket)), vmpool.Hostname("", shell.ID))
	}
	return vmpool.Cause(running, err)
}

// firstAnswer waits for the first answer of a guest.
func firstAnswer(ctx context.Context, g Guest, hostname string) error {
	if _, err := identity.Give(ctx, g, hostname, nil); err != nil {
		return err
	}
	_, err := g.Eval(ctx, "0", agentclient.EvalOptions{Timeout: rehearsalTime, MaxOutput: 4 << 10})
	if answered := (*agentclient.Error)(nil); errors.As(err, &answered) { // such as: there is no Python
		return nil
	}
	return err
}

// refuseConns closes the connections that a guest opens, until the VM ends.
func refuseConns(v vmpool.VMM) {
	for c := range v.Conns() {
		c.Conn.Close()
	}
}
