package vmpool

import (
	"context"

	"github.com/forkd/forkd/internal/host/vmmclient"
)

// Processes is the VMMs of a real host: forkd-vmm processes.
type Processes struct {
	Bin string // path of forkd-vmm
}

// Spawn implements VMMs.
func (p Processes) Spawn(ctx context.Context, c ShellConfig) (VMM, error) {
	v, err := vmmclient.Spawn(ctx, vmmclient.Config{Bin: p.Bin, Dir: c.Dir, ID: c.ID, Shape: c.Shape})
	if err != nil {
		return nil, err // not v, which would be a VMM that is not nil
	}
	return v, nil
}

// Attach implements VMMs.
func (Processes) Attach(id, dir string) (VMM, error) {
	v, err := vmmclient.Attach(id, dir)
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Console implements VMMs.
func (Processes) Console(dir string) ([]byte, error) { return vmmclient.Console(dir) }
