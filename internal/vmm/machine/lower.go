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

// mappings returns how many mappings the memory of a machine consists of: extents, and what lies
// between them. lasting are those without what detach takes away.
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

// room returns how many ranges a rebase may replace, each of which makes two mappings more: of
// those that last there are at most maxMappings then, and of all at most twice as many.
func (l *lower) room() int {
	lasting, all := l.mappings()
	return min(maxMappings-lasting, 2*maxMappings-all) / 2
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

// detach takes private pages off stale layers, which would live as long as the mapping: at most so
// many bytes of them, whole pages. It reports whether there were any.
//
// Preconditions: the machine stands still and nothing is frozen.
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
