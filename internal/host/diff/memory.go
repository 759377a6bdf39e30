package diff

import (
	"slices"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/proto/vm"
)

// MemoryBytes returns the size of the guest memory for which two snapshots refer to different data, that is,
// to different layers or offsets. All other memory is equal. MemoryBytes reads no page. So it also counts a
// page that was written but has its old content again.
func MemoryBytes(a, b *store.Lease) uint64 {
	return apartBytes(a.Extents(), b.Extents(), a.Manifest().Memory, b.Manifest().Memory)
}

func apartBytes(listA, listB []vm.Extent, layersA, layersB []snapshot.File) (bytes uint64) {
	a, b := slices.Clone(listA), slices.Clone(listB)
	for len(a)+len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].GPA < b[0].GPA:
			n := a[0].Length
			if len(b) > 0 {
				n = min(n, b[0].GPA-a[0].GPA)
			}
			bytes, a = bytes+n, pass(a, n)
		case len(a) == 0 || b[0].GPA < a[0].GPA:
			n := b[0].Length
			if len(a) > 0 {
				n = min(n, a[0].GPA-b[0].GPA)
			}
			bytes, b = bytes+n, pass(b, n)
		default:
			n := min(a[0].Length, b[0].Length)
			if layersA[a[0].Layer].Owner != layersB[b[0].Layer].Owner || a[0].Offset != b[0].Offset {
				bytes += n
			}
			a, b = pass(a, n), pass(b, n)
		}
	}
	return bytes
}

// pass removes n bytes from the beginning of the first extent. It changes the list.
func pass(list []vm.Extent, n uint64) []vm.Extent {
	if n == list[0].Length {
		return list[1:]
	}
	list[0].GPA, list[0].Offset, list[0].Length = list[0].GPA+n, list[0].Offset+n, list[0].Length-n
	return list
}
