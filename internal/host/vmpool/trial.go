package vmpool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// Trials checks whether this host can restore saved states.
type Trials struct {
	VMMs   VMMs
	RunDir string // has the directories of the VMs
}

// Try returns an error if this host cannot restore the saved state of a machine. The size of the
// machine's disk is given in bytes; 0 means that the machine has no disk. If the reason is the
// state or the host's CPU, the error has the code of a failed restore (such as vm.ErrCPU), and its
// text names the missing feature.
//
// Try needs neither the memory nor the disks of the machine. It restores the state into a new VM,
// which never runs, with empty memory, an empty disk and empty volume slots. The state may come
// from an attacker. Only the VMM reads it, in its jail.
func (t Trials) Try(ctx context.Context, m snapshot.Machine, disk uint64, state *os.File) (err error) {
	s, err := Spawn(ctx, t.VMMs, t.RunDir, m.Shape())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.VMM.Kill()) }() // also removes the disk
	var undo cleanup.Stack
	defer undo.Run()
	var req vmmproto.Restore
	files := vmmclient.RestoreFiles{State: state}
	if disk > 0 {
		empty, err := emptyDisk(&undo, s.Dir, disk)
		if err != nil {
			return fmt.Errorf("make an empty disk: %w", err)
		}
		req.Disks, files.Disks = []vmmproto.Disk{{SizeBytes: disk}}, [][]*os.File{empty}
	}
	for range m.VolumeSlots {
		req.Disks, files.Disks = append(req.Disks, vmmproto.Disk{Volume: true}), append(files.Disks, nil)
	}
	_, err = s.VMM.Restore(ctx, req, files)
	return err
}

// emptyDisk makes the base image and the top of a disk of the given size in bytes. It adds to the
// stack undo a function that closes both files.
func emptyDisk(undo *cleanup.Stack, dir string, size uint64) ([]*os.File, error) {
	path := filepath.Join(dir, "base")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return nil, err
	}
	base, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	undo.Add(func() { base.Close() })
	top, err := os.OpenFile(filepath.Join(dir, "top"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	undo.Add(func() { top.Close() })
	return []*os.File{base, top}, disklayer.Format(top, size)
}
