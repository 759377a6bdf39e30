package vm

// PageSize is the granularity of memory extents, in bytes.
const PageSize = 4096

// Extent describes a part of guest memory that begins at the guest physical address GPA and has
// Length bytes. These bytes are at Offset in the layer file with number Layer (0 is the base). GPA,
// Length and Offset are multiples of PageSize. Guest memory that is in no extent is zero.
//
// Within an extent, a layer has no holes. On tmpfs, even reading from a mapped hole allocates a
// page, and if there is no memory for it, the access kills the VMM.
type Extent struct {
	GPA    uint64
	Length uint64
	Layer  uint32
	Offset uint64
}

// Range is Length bytes of guest memory, beginning at GPA, in whole pages.
type Range struct{ GPA, Length uint64 }
