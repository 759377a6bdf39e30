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

// maxMappings bounds the mappings that the memory of a machine consists of after a rebase, without
// those that its next pauses take away, which are at most as many. Each
// costs the kernel about 200 bytes and frees a page or more, so that it is never the memory that
// speaks against one. What does: a process has at most 65530 (vm.max_map_count), and every search
// for dirty pages, which the guest stands still for, walks all of them, 0.1 µs each. A restore maps
// what its snapshot says, which is bounded apart from this and more tightly.
const maxMappings = 4096

// maxDetach is how many bytes are taken off old layers in one pause, which they make longer: 4 to
// 16 ms at 1 to 4 GiB/s. The rest waits for the next one.
const maxDetach = 16 << 20

// keepFor is how long a machine keeps in mind which of its pages equal a branch, while nobody
// rebases it. The first write to each of them costs a fault.
const keepFor = 30 * time.Second

// kept is a branch whose layer is complete, and whose pages are protected as long as they equal it.
type kept struct {
	capture *uffd.Capture
	serial  uint64
	timer   *time.Timer // drops it
}

// keepIf keeps a complete capture in mind, or releases it. It reports which.
//
// Preconditions: m.mu is held, and nothing is kept.
func (m *Machine) keepIf(wanted bool, capture *uffd.Capture, serial uint64) bool {
	if !wanted {
		_ = capture.Release() // an error is the fault handler's, and the next freeze says it
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

// dropKept drops the protection of a branch that the machine was not rebased onto: its next branch
// has these pages once more.
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

// Rebase makes the snapshot of a branch the one below the machine's private pages; see
// vmmproto.Rebase. layer is taken over. After an error other than vm.ErrNotKept it is that all the
// same: what was not replaced is private, or equal below.
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
	m.rebases++ // before anything is replaced: what has been is no longer private
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

// replaceUnchanged puts layer in the place of at most so many ranges that equal it, the longest
// first, and returns them ascending. A range in the middle of a mapping makes two more of it.
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

// detach gives up layers that the machine has only private pages over since a branch of all that it
// had written, so that their files can go. As a rule there are few such pages: those that were
// written between the branch and the rebase onto it. Where a rebase had no mappings left there are
// many, and several pauses share the work.
//
// Preconditions: the machine stands still and nothing is frozen.
func (m *Machine) detach() error {
	detached, err := m.lower.detach(m.mem, maxDetach)
	if detached && m.freezer != nil {
		err = errors.Join(err, m.freezer.Register())
	}
	return err
}
