package machine

import (
	"slices"

	"github.com/forkd/forkd/internal/format/memlayer"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// lower is what lies below the private pages of a machine: mappings of layers. The layers it was
// restored from have the first numbers, and each rebase gives its layer the next one.
type lower struct {
	mapped   []vm.Extent // none after Boot
	restored uint32      // layers of the restore
	layers   uint32      // layers so far
	owned    uint32      // all pages over layers below this number, but those of the restore, are private
	stale    uint32      // likewise, and what could be replaced of them has been
}

func newLower(extents []vm.Extent, layers int) lower {
	return lower{mapped: slices.Clone(extents), restored: uint32(layers), layers: uint32(layers)}
}

// covered returns the parts of memory that lie in any layer.
func (l *lower) covered() []vm.Extent {
	covered := make([]vm.Extent, len(l.mapped))
	for i, e := range l.mapped {
		covered[i] = anyLayer(e.GPA, e.Length)
	}
	return memlayer.Overlay(nil, covered)
}

// mappings returns how many mappings the memory of a machine consists of, without those that go as
// soon as it stands still: extents, and what lies between them.
func (l *lower) mappings() int {
	n, end := 1, uint64(0)
	for _, e := range l.mapped {
		if e.Layer >= l.restored && e.Layer < l.owned {
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

// rebased notes that ranges, ascending, lie on one more layer now.
func (l *lower) rebased(ranges []guestmem.Range) {
	upper := make([]vm.Extent, len(ranges))
	for i, r := range ranges {
		upper[i] = vm.Extent{GPA: uint64(r.GPA), Length: r.Length, Layer: l.layers, Offset: guestmem.Linear(r.GPA)}
	}
	l.mapped = memlayer.Overlay(l.mapped, upper)
	l.layers++
	l.stale = l.owned
}

// own makes all pages private that lie on layers of rebases.
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

// detach takes private pages off stale layers, which would live as long as the mapping. It reports
// whether there were any.
//
// Preconditions: the machine stands still and nothing is frozen.
func (l *lower) detach(mem *guestmem.Memory) (any bool, err error) {
	for i, e := range l.mapped {
		if e.Layer < l.restored || e.Layer >= l.stale {
			continue
		}
		if err := mem.Detach(guestmem.GPA(e.GPA), e.Length); err != nil {
			return true, err
		}
		any = true
		l.mapped[i].Length = 0
	}
	l.mapped = slices.DeleteFunc(l.mapped, func(e vm.Extent) bool { return e.Length == 0 })
	return any, nil
}
