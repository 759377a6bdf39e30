package machine

import (
	"os"

	"github.com/forkd/forkd/internal/format/memlayer"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmm/guestmem"
)

func (m *Machine) saveState() ([]byte, error) {
	w := newStateWriter()
	w.section("machine", m.shape().Save)
	whole, err := saveVM(m.vm, m.cpus.all[0].kvm)
	if err != nil {
		return nil, err
	}
	w.section("vm", whole.Save)
	msrs, err := m.savedMSRs()
	if err != nil {
		return nil, err
	}
	for i, c := range m.cpus.all {
		s, err := saveVCPU(c.kvm, m.cpuid[i], msrs)
		if err != nil {
			return nil, err
		}
		w.section("vcpu", s.Save)
	}
	m.saveDevices(w)
	return w.finish(), nil
}

func (m *Machine) saveDevices(w *stateWriter) {
	w.section("serial", m.serial.Save)
	for i, s := range m.slots {
		if s != nil {
			w.section(s.section(i), s.transport.Save)
		}
	}
}

// saveMemory writes the dirty pages to the given layer.
func (m *Machine) saveMemory(layer *os.File, maxExtents int, result *vmmproto.SaveResult) error {
	dirty, err := m.tracker.Dirty(m.mem)
	if err != nil {
		return err
	}
	return m.writeRanges(layer, m.describe(dirty, maxExtents, result))
}

// saveAllMemory writes all pages that are not zero to the given layer, including pages that come
// from lower layers. It reads only memory that a layer covers or that was written, because all
// other memory is zero. Reading the other memory would add a page table entry for every page, and
// each later search for dirty pages would have to visit all these entries.
func (m *Machine) saveAllMemory(layer *os.File, maxExtents int, result *vmmproto.SaveResult) error {
	dirty, err := m.tracker.Dirty(m.mem)
	if err != nil {
		return err
	}
	upper := make([]vm.Extent, len(dirty))
	for i, r := range dirty {
		upper[i] = anyLayer(uint64(r.GPA), r.Length)
	}
	var filled []guestmem.Range
	for _, e := range memlayer.Overlay(m.lower.covered(), upper) {
		view, err := m.mem.ReadView(guestmem.GPA(e.GPA), int(e.Length))
		if err != nil {
			return err
		}
		for at := uint64(0); at < e.Length; {
			zeros := zero(view[at : at+guestmem.PageSize])
			n := uint64(run(view[at:], zeros))
			if !zeros {
				filled = append(filled, guestmem.Range{GPA: guestmem.GPA(e.GPA + at), Length: n})
			}
			at += n
		}
	}
	return m.writeRanges(layer, m.describe(filled, maxExtents, result))
}

// anyLayer returns a range of guest memory as an extent. The extent's layer and offset have no
// meaning, and are chosen so that adjacent ranges join.
func anyLayer(gpa, length uint64) vm.Extent {
	return vm.Extent{GPA: gpa, Length: length, Offset: gpa}
}

// describe stores ranges of pages in *result, as at most maxExtents extents. It returns the ranges
// that the extents cover, which may include gaps between the given ranges.
func (m *Machine) describe(ranges []guestmem.Range, maxExtents int, result *vmmproto.SaveResult) []guestmem.Range {
	for _, r := range ranges {
		result.DirtyBytes += r.Length
	}
	joined := bound(m.mem, ranges, maxExtents)
	for _, r := range joined {
		result.Extents = append(result.Extents,
			vm.Extent{GPA: uint64(r.GPA), Length: r.Length, Offset: guestmem.Linear(r.GPA)})
	}
	return joined
}

func (m *Machine) writeRanges(layer *os.File, ranges []guestmem.Range) error {
	for _, r := range ranges {
		if err := m.writeRange(layer, r); err != nil {
			return err
		}
	}
	return nil
}

// writeRange writes guest memory to its place in a layer, including pages of zeros. A layer must
// have no holes inside its extents. On tmpfs, if a child of the snapshot accessed a hole, even with
// a load, the first access would allocate a page. If no memory were left, this access would kill
// the child.
func (m *Machine) writeRange(layer *os.File, r guestmem.Range) error {
	view, err := m.mem.ReadView(r.GPA, int(r.Length))
	if err != nil {
		return err
	}
	_, err = layer.WriteAt(view, int64(guestmem.Linear(r.GPA)))
	return err
}

// bound joins ranges that are close to each other until the number of ranges is at most limit. It
// does not join ranges of different regions, so at least one range remains for each region.
func bound(mem *guestmem.Memory, ranges []guestmem.Range, limit int) []guestmem.Range {
	var out []guestmem.Range
	regions := mem.Regions()
	for i := range regions {
		region := &regions[i]
		var spans []memlayer.Span
		for _, r := range ranges {
			if r.GPA >= region.GPA && r.GPA < region.GPA+guestmem.GPA(region.Size) {
				spans = append(spans, memlayer.Span{Start: uint64(r.GPA), Length: r.Length})
			}
		}
		share := max(1, limit*len(spans)/max(1, len(ranges)))
		for _, s := range memlayer.Join(spans, share) {
			out = append(out, guestmem.Range{GPA: guestmem.GPA(s.Start), Length: s.Length})
		}
	}
	return out
}

// run returns the length of the longest prefix of p that consists of zero pages. If zeros is not
// set, it returns the length of the longest prefix without a zero page.
func run(p []byte, zeros bool) int {
	n := guestmem.PageSize
	for n < len(p) && zero(p[n:n+guestmem.PageSize]) == zeros {
		n += guestmem.PageSize
	}
	return n
}

var zeroPage [guestmem.PageSize]byte

func zero(page []byte) bool { return [guestmem.PageSize]byte(page) == zeroPage }
