package hub

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/forkd/forkd/internal/format/artifact"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/proto/vm"
)

// try restores the saved state of a snapshot on trial. It returns an error if this host's CPU lacks
// a feature that the guest has found, or if this forkd cannot read the state. It needs neither the
// memory nor the disk of the snapshot, so a client gets the error before they are fetched. A
// disk-only snapshot has no state.
func (h *Hub) try(ctx context.Context, who string, a *artifact.Artifact, from source) error {
	if a.Snapshot.DiskOnly() {
		return nil
	}
	blob := stateOf(a)
	f, err := from.open(ctx, blob)
	if err != nil {
		return err
	}
	leave, err := h.wait(ctx, who)
	if err != nil {
		return err
	}
	defer leave()
	state, err := h.decodeState(ctx, f, blob)
	if err != nil {
		return err
	}
	defer state.Close()
	disk := uint64(0)
	if d := a.Snapshot.Disk; d != nil {
		disk = d.SizeBytes
	}
	err = h.cfg.Try(ctx, a.Snapshot.Machine, disk, state)
	if errors.Is(err, vm.ErrCPU) || errors.Is(err, vm.ErrBadState) || errors.Is(err, vm.ErrShape) {
		return refuse("%w", err)
	}
	if err != nil {
		return fmt.Errorf("compare the saved state with this host: %w", err)
	}
	return nil
}

// stateOf returns the blob of the saved state.
func stateOf(a *artifact.Artifact) (state artifact.Blob) {
	for _, b := range a.Blobs {
		if b.Part.Name == artifact.StatePart {
			state = b
		}
	}
	return state
}

// decodeState decodes the blob of a saved state, and opens the result for reading.
func (h *Hub) decodeState(ctx context.Context, f *os.File, b artifact.Blob) (*os.File, error) {
	r, err := artifact.Open(f, b)
	if err != nil {
		return nil, err
	}
	// The next daemon removes a file with this prefix.
	out, err := os.CreateTemp(h.cache.path("blobs", ""), tmpPrefix)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	if err := errors.Join(os.Remove(out.Name()), out.Truncate(int64(b.Part.Bytes))); err != nil {
		return nil, err
	}
	err = r.Decode(ctx, func(at uint64, p []byte) error {
		_, err := out.WriteAt(p, int64(at))
		return err
	})
	if err != nil {
		return nil, err
	}
	return disklayer.Reopen(out) // a VMM must not be able to write to the state
}
