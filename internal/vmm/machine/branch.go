package machine

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/uffd"
	"github.com/forkd/forkd/internal/vmm/virtio/blk"
)

// BranchConfig holds the files and options of a branch.
type BranchConfig struct {
	Mode        vm.BranchMode
	MaxExtents  int
	Serial      uint64 // identifies the branch in its result, in Copied and in Rebase
	StormFaults uint64 // see vmmproto.Branch
	State       *os.File
	Layer       *os.File   // an empty file; ownership passes to Branch
	Tops        []*os.File // a new, empty top for each disk, except for empty volume slots; ownership passes to Branch
	Frozen      []*os.File // the current top of each of these disks, open for reading; ownership passes to Branch
	Device      int        // an open /dev/userfaultfd; -1 if the host has none

	Keep, SinceRestore bool // see vmmproto.Branch

	// Copied is called once for each live branch, unless Branch returned an error for it. The call
	// is made when the layer is complete, or when the copying of the pages has failed.
	Copied func(vmmproto.Branched)
}

// Branch saves the machine and stops it only for a short time. The steps are always in this order:
//
//  1. stop the vCPUs and quiesce the devices;
//  2. save vCPU and device state;
//  3. freeze the dirty pages (live), copy the dirty pages (diff), or copy all pages (full);
//  4. put new tops on the disks;
//  5. let the machine continue;
//  6. live: copy the frozen pages;
//  7. if requested: keep the unwritten pages frozen, for Rebase.
//
// So state, memory and disks are from the same instant. If one of the first four steps fails, the
// machine continues unchanged. Its disks keep their tops, and its dirty pages stay dirty, because
// every private page counts as dirty.
func (m *Machine) Branch(cfg BranchConfig) (result vmmproto.BranchResult, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var capture *uffd.Capture
	defer func() {
		for _, f := range slices.Concat(cfg.Tops, cfg.Frozen) { // files that swapTops has not taken
			_ = f.Close()
		}
		if capture != nil && result.Mode == vm.BranchLive {
			result.Kept = cfg.Keep
			m.copying = make(chan struct{})
			go m.copyBranch(capture, cfg, err)
			return
		}
		err = errors.Join(err, cfg.Layer.Close())
		if capture != nil { // after a diff branch, every frozen page is in the layer
			result.Kept = m.keepIf(err == nil, capture, cfg.Serial)
		}
		m.thaw()
	}()
	result.Serial, result.Mode = cfg.Serial, cfg.Mode
	if m.copying != nil {
		return result, vm.ErrCopying
	}
	if err := m.dropKept(); err != nil {
		return result, fmt.Errorf("branch: %w", err)
	}
	// Make the layer as long as the memory, so that truncation can be noticed.
	result.Save.LayerBytes = m.mem.Size()
	if err := cfg.Layer.Truncate(int64(result.Save.LayerBytes)); err != nil {
		return result, fmt.Errorf("branch: size memory layer: %w", err)
	}
	if cfg.Mode == vm.BranchLive || cfg.Mode == vm.BranchDiff && cfg.Keep {
		err := m.prepareFreezer(cfg.Device)
		if err != nil && cfg.Mode == vm.BranchLive {
			result.Mode, result.Fallback = vm.BranchDiff, err.Error()
		}
		cfg.Keep = cfg.Keep && err == nil
	}
	if cfg.SinceRestore {
		if err := m.lower.own(m.mem); err != nil {
			return result, fmt.Errorf("branch: %w", err)
		}
	}
	result.Pause, err = m.atRest(func(wasPaused bool) (err error) {
		if wasPaused && len(m.lower.mapped) == 0 { // the machine is the parent of a new snapshot; see verifyMSRs
			if err := m.verifyMSRs(); err != nil {
				return fmt.Errorf("save machine state: %w", err)
			}
		}
		capture, err = m.branchPaused(&cfg, &result)
		return err
	})
	if err != nil {
		return result, fmt.Errorf("branch: %w", err)
	}
	return result, nil
}

// branchPaused does the steps during which the machine is stopped. If it returns a capture, even
// together with an error, the pages of the capture are write-protected and must be copied.
func (m *Machine) branchPaused(cfg *BranchConfig, result *vmmproto.BranchResult) (*uffd.Capture, error) {
	state, err := m.saveState()
	if err != nil {
		return nil, fmt.Errorf("save machine state: %w", err)
	}
	// First write the state, which takes a few KiB. If this write fails, nothing else has changed.
	if _, err := cfg.State.WriteAt(state, 0); err != nil {
		return nil, fmt.Errorf("write machine state: %w", err)
	}
	result.Save.StateBytes = uint64(len(state))
	arm := time.Now()
	if err := m.detach(); err != nil {
		return nil, err
	}
	var capture *uffd.Capture
	switch result.Mode {
	case vm.BranchLive:
		capture, err = m.freeze(cfg.Layer, cfg.MaxExtents, &result.Save)
	case vm.BranchDiff:
		capture, err = m.saveDirty(cfg, &result.Save)
	default:
		err = m.saveAllMemory(cfg.Layer, cfg.MaxExtents, &result.Save)
	}
	result.Arm = time.Since(arm)
	if err != nil {
		return capture, fmt.Errorf("save guest memory: %w", err)
	}
	return capture, m.swapTops(cfg)
}

// prepareFreezer prepares the write protection of pages. It may fail after a rollback, because
// layers may be mapped from a file system that does not support write protection.
func (m *Machine) prepareFreezer(device int) (err error) {
	if m.freezer == nil {
		if device < 0 {
			return errors.New("the host has no usable /dev/userfaultfd")
		}
		if m.freezer, err = uffd.NewFreezer(device, m.mem); err != nil {
			return err
		}
	}
	return m.freezer.Register() // also registers mappings that were made since the last freeze
}

// saveDirty writes the dirty pages while the machine is stopped. If cfg.Keep is set, it also
// freezes the pages, for Rebase, and returns a capture that is already complete.
func (m *Machine) saveDirty(cfg *BranchConfig, result *vmmproto.SaveResult) (*uffd.Capture, error) {
	if !cfg.Keep {
		return nil, m.saveMemory(cfg.Layer, cfg.MaxExtents, result)
	}
	before := *result
	capture, err := m.freeze(cfg.Layer, cfg.MaxExtents, result)
	if err != nil { // save without freezing, because only Rebase needs frozen pages
		*result = before
		return nil, m.saveMemory(cfg.Layer, cfg.MaxExtents, result)
	}
	if _, err := capture.Copy(func() bool { return false }); err != nil {
		return nil, err // Copy has released the pages
	}
	return capture, nil
}

// freeze write-protects the dirty pages. It calls m.describe, which also adds some gaps between
// dirty ranges to the layer. The pages in these gaps are not dirty, and some kernels cannot protect
// such pages. So freeze copies the pages of the gaps immediately.
//
// Preconditions: the machine is stopped.
func (m *Machine) freeze(layer *os.File, maxExtents int, result *vmmproto.SaveResult) (*uffd.Capture, error) {
	m.frozen.Store(true)
	dirty, err := m.tracker.Dirty(m.mem)
	if err != nil {
		return nil, err
	}
	joined := m.describe(dirty, maxExtents, result)
	for _, gap := range gaps(joined, dirty) {
		if err := m.writeRange(layer, gap); err != nil {
			return nil, err
		}
	}
	return m.freezer.Freeze(dirty, int(layer.Fd()))
}

// gaps returns the parts of the list outer that are not in the list inner. Both lists are ascending
// and have no overlaps, and every range of the list inner lies inside a range of the list outer.
func gaps(outer, inner []guestmem.Range) []guestmem.Range {
	var out []guestmem.Range
	for _, o := range outer {
		at, end := o.GPA, o.GPA+guestmem.GPA(o.Length)
		for len(inner) > 0 && inner[0].GPA < end {
			if inner[0].GPA > at {
				out = append(out, guestmem.Range{GPA: at, Length: uint64(inner[0].GPA - at)})
			}
			at = inner[0].GPA + guestmem.GPA(inner[0].Length)
			inner = inner[1:]
		}
		if at < end {
			out = append(out, guestmem.Range{GPA: at, Length: uint64(end - at)})
		}
	}
	return out
}

// swapTops puts the new tops on the disks. The former tops become immutable. After an error, no disk has
// a new top, because the daemon is only told whether all disks have new tops. swapTops removes from
// cfg the files that the disks now own.
func (m *Machine) swapTops(cfg *BranchConfig) error {
	disks := 0
	for _, d := range m.disks {
		disks += btoi(!d.Empty())
	}
	if len(cfg.Tops) != disks || len(cfg.Frozen) != disks {
		return fmt.Errorf("%d new and %d frozen disk tops for %d disks", len(cfg.Tops), len(cfg.Frozen), disks)
	}
	var swaps []*blk.Swap
	for i, d := range m.disks {
		if d.Empty() {
			continue
		}
		s, err := d.PrepareSwap(cfg.Tops[len(swaps)], cfg.Frozen[len(swaps)])
		if err != nil {
			for _, s := range swaps {
				s.Cancel()
			}
			return fmt.Errorf("disk %d: %w", i, err)
		}
		swaps = append(swaps, s)
	}
	for _, s := range swaps {
		s.Commit()
	}
	cfg.Tops, cfg.Frozen = nil, nil
	m.topSwaps++
	return nil
}

// BranchDisks puts new tops on the disks while the machine is stopped. It saves neither state nor
// memory, and does not change which pages are dirty. After an error the disks keep their tops.
func (m *Machine) BranchDisks(cfg BranchConfig) (result vmmproto.BranchResult, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer func() {
		for _, f := range slices.Concat(cfg.Tops, cfg.Frozen) { // files that swapTops has not taken
			_ = f.Close()
		}
	}()
	result.Serial, result.Mode = cfg.Serial, cfg.Mode
	if result.Pause, err = m.atRest(func(bool) error { return m.swapTops(&cfg) }); err != nil {
		return result, fmt.Errorf("branch: %w", err)
	}
	return result, nil
}

// atRest calls do() while the vCPUs are stopped, and returns how long the vCPUs were stopped. If
// the machine was already paused, it stays paused.
func (m *Machine) atRest(do func(wasPaused bool) error) (pause time.Duration, err error) {
	start := time.Now()
	wasPaused, _ := m.cpus.stats()
	if !wasPaused {
		m.pause()
	}
	err = do(wasPaused)
	if !wasPaused {
		err = errors.Join(err, m.resume(nil))
	}
	return time.Since(start), err
}

// MergeLayers replaces several layers of a disk with the single layer in the given file (merged).
// The lowest replaced layer has the given number (first), and the highest is just below the top.
// The base image is not counted as a layer. The machine then owns the file. The guest is stopped
// while the file is opened.
func (m *Machine) MergeLayers(disk, first int, merged *os.File) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if disk >= len(m.disks) {
		return errors.Join(fmt.Errorf("merge layers of disk %d: there are %d", disk, len(m.disks)), merged.Close())
	}
	_, err := m.atRest(func(bool) error {
		err := m.disks[disk].Merge(first, merged)
		if err != nil {
			err = errors.Join(fmt.Errorf("disk %d: %w", disk, err), merged.Close())
		}
		return err
	})
	return err
}

// copyBranch copies the frozen pages of a live branch. If the guest writes pages faster than they
// are copied, copyBranch stops the guest until the remaining pages are copied. Such a guest would
// make little progress anyway, and stopping it bounds the time of the copying.
func (m *Machine) copyBranch(capture *uffd.Capture, cfg BranchConfig, failed error) {
	start := time.Now()
	done := vmmproto.Branched{Serial: cfg.Serial}
	complete, err := capture.Copy(func() bool {
		_, captured, faults := capture.Progress()
		return storm(cfg.StormFaults, captured, faults)
	})
	if !complete {
		m.mu.Lock()
		done.Stop, err = m.atRest(func(bool) error {
			_, err := capture.Copy(func() bool { return false })
			return err
		})
		m.mu.Unlock()
	}
	if err != nil {
		done.Failed = vmmproto.ErrorOf(err)
	}
	_, _, done.Faults = capture.Progress()
	done.Copy = time.Since(start)
	_ = cfg.Layer.Close()
	m.mu.Lock()
	if err == nil { // after an error, Copy has released the pages
		m.keepIf(cfg.Keep && failed == nil, capture, cfg.Serial)
	}
	close(m.copying)
	m.copying = nil
	m.thaw()
	m.mu.Unlock()
	if failed == nil {
		cfg.Copied(done)
	}
}

// stormFaults is the number of faults that must have occurred before storm compares the faults with
// the captured pages.
const stormFaults = 2048

// storm reports whether the guest writes faster than its pages are copied. If bound is not 0, the
// result is true once the number of faults has reached bound. If bound is 0, the result is true if
// there were more than stormFaults faults, and faults have captured more than half of the captured
// pages.
func storm(bound, captured, faults uint64) bool {
	if bound > 0 {
		return faults >= bound
	}
	return faults > stormFaults && faults > captured/2
}

// waitCopied waits until no live branch is being copied.
//
// Preconditions: m.mu is held. waitCopied releases m.mu while it waits.
func (m *Machine) waitCopied() {
	for m.copying != nil {
		done := m.copying
		m.mu.Unlock()
		<-done
		m.mu.Lock()
	}
}
