package machine

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/uffd"
)

// maxMappings is the maximum number of mappings of a machine's memory after a rebase, without the
// mappings that the next pauses will remove. Including those, there may be twice as many mappings.
//
// There are two reasons for this limit. A process may have at most 65530 mappings
// (vm.max_map_count). And each search for dirty pages walks all mappings while the guest is
// stopped, which takes 0.1 µs for each mapping. Memory is not a reason, because a mapping takes
// about 200 bytes in the kernel and saves at least a page. The extents of a snapshot, which a
// restore maps, have a separate, lower limit.
const maxMappings = 4096

// maxDetach is the maximum number of bytes that are detached from old layers during one pause.
// Detaching this many bytes lengthens the pause by 4 to 16 ms (at 1 to 4 GiB/s). Further bytes wait
// for the next pause.
const maxDetach = 16 << 20

// keepFor is the time for which a machine waits for a Rebase onto a branch. During that time it
// tracks which pages are still equal to the branch's layer, and the first write to each of these
// pages causes a fault.
const keepFor = 30 * time.Second

// kept is a branch whose layer is complete. Each page of the machine that is equal to the layer
// stays write-protected until it is written.
type kept struct {
	capture *uffd.Capture
	serial  uint64
	timer   *time.Timer // calls dropKept after keepFor
}

// keepIf keeps a complete capture if wanted is set, and otherwise releases the capture. It reports
// whether it has kept the capture.
//
// Preconditions: m.mu is held, and nothing is kept.
func (m *Machine) keepIf(wanted bool, capture *uffd.Capture, serial uint64) bool {
	if !wanted {
		// Only the fault handler could have caused an error, and the next freeze returns that
		// error.
		_ = capture.Release()
		return false
	}
	k := &kept{capture: capture, serial: serial}
	k.timer = time.AfterFunc(keepFor, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.kept == k {
			_ = m.dropKept()
		}
	})
	m.kept = k
	return true
}

// dropKept releases the kept branch, if there is one, without a rebase. The machine's next branch
// saves the same pages again.
//
// Preconditions: m.mu is held.
func (m *Machine) dropKept() error {
	k := m.kept
	if k == nil {
		return nil
	}
	m.kept = nil
	k.timer.Stop()
	err := k.capture.Release()
	m.thaw()
	return err
}

// Rebase puts the layer of a branch directly below the machine's private pages; see
// vmmproto.Rebase. It takes ownership of the layer's file. If the error is vm.ErrNotKept, nothing
// has changed. After any other error, the rebase has taken place for some pages, and all other
// pages are private or have the same content as the layer.
func (m *Machine) Rebase(serial uint64, layer *os.File) (result vmmproto.RebaseResult, err error) {
	defer layer.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.kept
	if k == nil || k.serial != serial {
		return result, vm.WithCode(vm.ErrNotKept, fmt.Errorf("rebase onto branch %d: its pages are no longer known", serial))
	}
	if st, err := layer.Stat(); err != nil || uint64(st.Size()) != m.mem.Size() {
		return result, vm.WithCode(vm.ErrNotKept, fmt.Errorf("rebase onto branch %d: the layer is not one of %d bytes (%v)",
			serial, m.mem.Size(), err))
	}
	start := time.Now()
	m.rebases++ // before replacing, because even a rebase that fails halfway must be counted
	replaced, err := replaceUnchanged(k.capture, int(layer.Fd()), m.lower.room())
	err = errors.Join(err, m.dropKept())
	m.lower.rebased(replaced)
	for _, r := range replaced {
		result.Bytes += r.Length
	}
	lasting, _ := m.lower.mappings()
	result.Mappings, result.Took = uint64(lasting), time.Since(start)
	if err != nil {
		return result, fmt.Errorf("rebase onto branch %d: %w", serial, err)
	}
	return result, nil
}

// replaceUnchanged maps a layer over ranges of memory that are equal to the layer, the longest
// ranges first. The caller limits the number of ranges (most), because replacing a range in the
// middle of a mapping adds two mappings. replaceUnchanged returns the replaced ranges in ascending
// order.
func replaceUnchanged(capture *uffd.Capture, layer, most int) (replaced []guestmem.Range, err error) {
	ranges := capture.Unchanged()
	slices.SortFunc(ranges, func(a, b guestmem.Range) int { return cmp.Compare(b.Length, a.Length) })
	for _, r := range ranges {
		if len(replaced) >= most || err != nil {
			break
		}
		var done []guestmem.Range
		done, err = capture.Replace(r, layer, most-len(replaced))
		replaced = append(replaced, done...)
	}
	slices.SortFunc(replaced, func(a, b guestmem.Range) int { return cmp.Compare(a.GPA, b.GPA) })
	return replaced, err
}

// detach makes private pages independent of old layers, so that the files of these layers can be
// deleted. It is called after a branch has saved all written pages. Usually only few private pages
// depend on old layers, namely pages that were written between a branch and the rebase onto that
// branch. If a rebase has reached maxMappings, many private pages depend on old layers, and each
// pause then detaches a part of them.
//
// Preconditions: the machine is stopped and nothing is frozen.
func (m *Machine) detach() error {
	detached, err := m.lower.detach(m.mem, maxDetach)
	if detached && m.freezer != nil {
		err = errors.Join(err, m.freezer.Register())
	}
	return err
}
