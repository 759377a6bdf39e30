package machine

import (
	"slices"

	"github.com/forkd/forkd/internal/format/memlayer"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// lower describes the mappings of layers below the private pages of a machine. The layers of the
// restore have the first numbers. Each rebase adds one layer, which gets the next number.
type lower struct {
	mapped   []vm.Extent // empty after Boot
	restored uint32      // number of layers in the restore
	layers   uint32      // number of layers so far
	owned    uint32      // all pages over rebase layers with lower numbers are private
	stale    uint32      // likewise, and all of these pages that could be replaced have been
}

func newLower(extents []vm.Extent, layers int) lower {
	return lower{mapped: slices.Clone(extents), restored: uint32(layers), layers: uint32(layers)}
}

// covered returns the parts of memory that are in any layer.
func (l *lower) covered() []vm.Extent {
	covered := make([]vm.Extent, len(l.mapped))
	for i, e := range l.mapped {
		covered[i] = anyLayer(e.GPA, e.Length)
	}
	return memlayer.Overlay(nil, covered)
}

// mappings returns the number of mappings in a machine's memory: extents and the gaps between them.
// lasting excludes the mappings that detach will remove.
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

// room returns how many ranges a rebase may replace. Each of them adds two mappings. Afterwards at
// most maxMappings mappings are lasting, and there are at most twice as many in total.
func (l *lower) room() int {
	lasting, all := l.mappings()
	return min(maxMappings-lasting, 2*maxMappings-all) / 2
}

// rebased records that one more layer lies below the given ranges, which are ascending.
func (l *lower) rebased(ranges []guestmem.Range) {
	upper := make([]vm.Extent, len(ranges))
	for i, r := range ranges {
		upper[i] = vm.Extent{GPA: uint64(r.GPA), Length: r.Length, Layer: l.layers, Offset: guestmem.Linear(r.GPA)}
	}
	l.mapped = memlayer.Overlay(l.mapped, upper)
	l.layers++
	l.stale = l.owned
}

// own makes all pages over the layers of rebases private.
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

// detach makes private pages independent of the stale layers below them, so that the mapping does
// not keep these layers alive. It detaches up to most bytes, in whole pages, and reports whether
// any page had to be detached.
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
