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

// maxMappings bounds the number of mappings of a machine's memory after a rebase. It does not count
// the mappings that the next pauses remove, which are at most as many. There are two reasons for
// the bound. A process may have at most 65530 mappings (vm.max_map_count). And every search for
// dirty pages walks all mappings while the guest is stopped, at 0.1 µs each. Memory is no reason: a
// mapping costs the kernel about 200 bytes and frees at least a page. A restore maps the extents of
// its snapshot, which have a separate, tighter bound.
const maxMappings = 4096

// maxDetach bounds the bytes that one pause detaches from old layers. That lengthens the pause by 4
// to 16 ms (at 1 to 4 GiB/s). The rest waits for the next pause.
const maxDetach = 16 << 20

// keepFor is how long a machine waits for a rebase. Until then it tracks which pages still equal
// the branch, so the first write to each such page costs a fault.
const keepFor = 30 * time.Second

// kept is a branch with a complete layer. A page stays protected while it equals the layer.
type kept struct {
	capture *uffd.Capture
	serial  uint64
	timer   *time.Timer // drops the branch
}

// keepIf keeps a complete capture if wanted, and otherwise releases it. It reports whether it was
// kept.
//
// Preconditions: m.mu is held, and nothing is kept.
func (m *Machine) keepIf(wanted bool, capture *uffd.Capture, serial uint64) bool {
	if !wanted {
		_ = capture.Release() // the only possible error is the fault handler's, which the next freeze returns
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

// dropKept drops the protection of a branch that the machine was not rebased onto. The machine's
// next branch saves these pages again.
//
// Preconditions: m.mu is held.
func (m *Machine) dropKept() error {
	k := m.kept
	if k == nil {
		return nil
	}
	m.kept = nil
	k.timer.Stop()
	return k.capture.Release()
}

// Rebase puts the layer of a branch directly below the machine's private pages; see
// vmmproto.Rebase. It takes ownership of layer. After a vm.ErrNotKept nothing has changed. After
// any other error the layer is below the machine nevertheless: pages that were not replaced are
// private, or identical to the layer.
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
	m.rebases++ // before any page is replaced, because replaced pages are no longer private
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

// replaceUnchanged maps layer over ranges that equal it, over the longest first and over no more
// than most. It returns the replaced ranges in ascending order. A range in the middle of a mapping
// adds two mappings.
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

// detach releases layers over which the machine has only private pages, so that their files can be
// deleted. It follows a branch that saved all written pages. Usually few pages remain to detach:
// those written between the branch and the rebase onto it. If a rebase ran out of mappings, many
// remain, and several pauses share the work.
//
// Preconditions: the machine is stopped and nothing is frozen.
func (m *Machine) detach() error {
	detached, err := m.lower.detach(m.mem, maxDetach)
	if detached && m.freezer != nil {
		err = errors.Join(err, m.freezer.Register())
	}
	return err
}
