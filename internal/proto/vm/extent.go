package vm

// PageSize is the granularity of memory extents, in bytes.
const PageSize = 4096

// Extent says that Length bytes of guest memory from guest physical address GPA on are at Offset in
// layer file number Layer (0 is the base). GPA, Length and Offset are multiples of PageSize. Guest
// memory in no extent is zero.
//
// A layer has no holes inside an extent. On tmpfs the first access to a hole through a mapping,
// even a load, allocates a page, and kills the VM if there is no room for the page.
type Extent struct {
	GPA    uint64
	Length uint64
	Layer  uint32
	Offset uint64
}

// Range is Length bytes of guest memory from GPA on, in whole pages.
type Range struct{ GPA, Length uint64 }
