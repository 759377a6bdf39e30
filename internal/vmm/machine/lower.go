package machine

import (
	"slices"

	"github.com/forkd/forkd/internal/format/memlayer"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// lower describes the layer mappings below a machine's private pages. Layers are numbered: first
// the layers of the restore, then one for each rebase.
type lower struct {
	mapped   []vm.Extent // the mappings; empty after Boot
	restored uint32      // number of layers that the restore has mapped
	layers   uint32      // total number of layers, from the restore and from rebases
	// all pages that were mapped from rebase layers with a number below this value have been
	// replaced by private copies
	owned uint32
	// the value of owned just before the latest rebase; rebase layers with a number below this
	// value are stale
	stale uint32
}

func newLower(extents []vm.Extent, layers int) lower {
	return lower{mapped: slices.Clone(extents), restored: uint32(layers), layers: uint32(layers)}
}

// covered returns the ranges of memory that at least one layer covers.
func (l *lower) covered() []vm.Extent {
	covered := make([]vm.Extent, len(l.mapped))
	for i, e := range l.mapped {
		covered[i] = anyLayer(e.GPA, e.Length)
	}
	return memlayer.Overlay(nil, covered)
}

// mappings returns the number of lasting mappings in a machine's memory, and the number of all
// mappings. A mapping is an extent, or a gap between extents. A mapping is lasting if detach will
// not remove it.
func (l *lower) mappings() (lasting, all int) {
	count := func(counts func(e vm.Extent) bool) int {
		n, end := 1, uint64(0)
		for _, e := range l.mapped {
			if !counts(e) {
				continue
			}
			if e.GPA > end {
				n++
			}
			n++
			end = e.GPA + e.Length
		}
		return n
	}
	lasting = count(func(e vm.Extent) bool { return e.Layer < l.restored || e.Layer >= l.owned })
	return lasting, count(func(vm.Extent) bool { return true })
}

// room returns how many ranges the next rebase may replace. Each range adds at most two mappings.
// After the rebase, at most maxMappings mappings may be lasting, and the total may be at most twice
// that number.
func (l *lower) room() int {
	lasting, all := l.mappings()
	return min(maxMappings-lasting, 2*maxMappings-all) / 2
}

// rebased adds a new layer below the given ranges. The ranges must be ascending.
func (l *lower) rebased(ranges []guestmem.Range) {
	upper := make([]vm.Extent, len(ranges))
	for i, r := range ranges {
		upper[i] = vm.Extent{GPA: uint64(r.GPA), Length: r.Length, Layer: l.layers, Offset: guestmem.Linear(r.GPA)}
	}
	l.mapped = memlayer.Overlay(l.mapped, upper)
	l.layers++
	l.stale = l.owned
}

// own makes private copies of all pages that come from the layers of rebases.
func (l *lower) own(mem *guestmem.Memory) error {
	for _, e := range l.mapped {
		if e.Layer >= l.restored {
			if err := mem.Own(guestmem.GPA(e.GPA), e.Length); err != nil {
				return err
			}
		}
	}
	l.owned = l.layers
	return nil
}

// detach makes private pages independent of the stale layers below them. Without this, the pages'
// mappings would keep the files of these layers alive. The caller limits the number of bytes to
// detach (most). The first result reports whether any page was detached.
//
// Preconditions: the machine is stopped and nothing is frozen.
func (l *lower) detach(mem *guestmem.Memory, most uint64) (any bool, err error) {
	for i := range l.mapped {
		e := &l.mapped[i]
		if most == 0 || err != nil {
			break
		}
		if e.Layer < l.restored || e.Layer >= l.stale {
			continue
		}
		any = true
		n := min(e.Length, most)
		if err = mem.Detach(guestmem.GPA(e.GPA), n); err == nil {
			e.GPA, e.Offset, e.Length = e.GPA+n, e.Offset+n, e.Length-n
			most -= n
		}
	}
	l.mapped = slices.DeleteFunc(l.mapped, func(e vm.Extent) bool { return e.Length == 0 })
	return any, err
}
