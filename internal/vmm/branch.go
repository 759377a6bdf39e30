package vmm

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmm/machine"
)

func (s *server) branch(r *codec.Reader, files *donated, w *codec.Writer) error {
	var req vmmproto.Branch
	if err := errors.Join(req.Parse(r), r.Done()); err != nil {
		return fmt.Errorf("parse branch: %w", err)
	}
	cfg := machine.BranchConfig{Mode: req.Mode, MaxExtents: int(req.MaxExtents), Serial: req.Serial,
		StormFaults: req.StormFaults, Keep: req.Keep, SinceRestore: req.SinceRestore, Device: -1, Copied: s.branched}
	if req.Mode == vm.BranchDisk {
		return s.branchDisks(&req, files, w)
	}
	device := len(files.fds) - 2 - 2*int(req.Disks)
	if device != 0 && device != 1 {
		return fmt.Errorf("branch of %d disks came with %d descriptors", req.Disks, len(files.fds))
	}
	cfg.State, cfg.Layer = files.take(), files.take()
	defer cfg.State.Close()
	if device == 1 {
		cfg.Device = files.takeFD()
		defer unix.Close(cfg.Device)
	}
	if err := takeTops(&cfg, int(req.Disks), files); err != nil {
		return err
	}
	result, err := s.machine.Branch(cfg)
	result.Append(w)
	return err
}

// branchDisks branches the disks, without the state and the memory.
func (s *server) branchDisks(req *vmmproto.Branch, files *donated, w *codec.Writer) error {
	if len(files.fds) != 2*int(req.Disks) {
		return fmt.Errorf("branch of the tops of %d disks came with %d descriptors", req.Disks, len(files.fds))
	}
	cfg := machine.BranchConfig{Mode: req.Mode, Serial: req.Serial}
	if err := takeTops(&cfg, int(req.Disks), files); err != nil {
		return err
	}
	result, err := s.machine.BranchDisks(cfg)
	result.Append(w)
	return err
}

func takeTops(cfg *machine.BranchConfig, disks int, files *donated) (err error) {
	if cfg.Tops, err = files.takeN(disks); err != nil {
		return err
	}
	cfg.Frozen, err = files.takeN(disks)
	return err
}

func (s *server) merge(r *codec.Reader, files *donated) error {
	var req vmmproto.Merge
	if err := errors.Join(req.Parse(r), r.Done()); err != nil {
		return fmt.Errorf("parse merge: %w", err)
	}
	merged := files.take()
	if merged == nil {
		return errors.New("merge wants a descriptor: the merged layer")
	}
	return s.machine.MergeLayers(int(req.Disk), int(req.First), merged)
}

func (s *server) rebase(r *codec.Reader, files *donated, w *codec.Writer) error {
	var req vmmproto.Rebase
	if err := errors.Join(req.Parse(r), r.Done()); err != nil {
		return fmt.Errorf("parse rebase: %w", err)
	}
	layer := files.take()
	if layer == nil {
		return errors.New("rebase wants a descriptor: the memory layer")
	}
	result, err := s.machine.Rebase(req.Serial, layer)
	result.Append(w)
	return err
}

// When a live branch has ended, branched reports this to the daemon. Without a daemon, the report
// is dropped.
func (s *server) branched(b vmmproto.Branched) {
	var w codec.Writer
	b.Append(&w)
	_ = s.event(vmmproto.KindBranched, w.Bytes())
}
