package boot

import (
	"encoding/binary"
	"fmt"

	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// Offsets in struct boot_params, Documentation/arch/x86/zero-page.rst, and in the setup header
// inside it, Documentation/arch/x86/boot.rst ("The Real-Mode Kernel Header").
const (
	offACPIRSDP     = 0x070
	offE820Entries  = 0x1e8
	offSetupSects   = 0x1f1
	offSysSize      = 0x1f4
	offBootFlag     = 0x1fe
	offJump         = 0x200 // a short jump whose displacement, at 0x201, gives the end of the header
	offMagic        = 0x202
	offVersion      = 0x206
	offLoader       = 0x210
	offLoadFlags    = 0x211
	offRamdiskImage = 0x218
	offRamdiskSize  = 0x21c
	offCmdLinePtr   = 0x228
	offInitrdMax    = 0x22c
	offXLoadFlags   = 0x236
	offCmdlineSize  = 0x238
	offPrefAddress  = 0x258
	offInitSize     = 0x260
	offHeaderEnd    = 0x290 // end of the header in boot_params
	offE820Table    = 0x2d0

	bootFlag      = 0xaa55
	headerMagic   = 0x53726448 // "HdrS"
	loadedHigh    = 1 << 0     // the kernel is loaded above 1 MiB
	loaderUnknown = 0xff       // a boot loader without a registered number
)

// Memory types of the E820 map, ACPI 6.5 §15.
const (
	e820RAM      = 1
	e820Reserved = 2
	e820ACPI     = 3

	e820EntrySize  = 20
	e820MaxEntries = 128 // E820_MAX_ENTRIES_ZEROPAGE
)

// zeroPage is the page of boot parameters.
type zeroPage struct{ bytes [guestmem.PageSize]byte }

// newZeroPage returns boot parameters with the setup header of a kernel file. The parameter header
// has the bytes of the file's setup header, from offSetupSects on. For a vmlinux, it is nil, and
// only the header fields that a vmlinux reads are set. In both cases, the fields that a boot loader
// must set are set.
func newZeroPage(header []byte) *zeroPage {
	zp := &zeroPage{}
	if header != nil {
		copy(zp.bytes[offSetupSects:offHeaderEnd], header)
	} else {
		zp.put16(offBootFlag, bootFlag)
		zp.put32(offMagic, headerMagic)
		zp.put16(offVersion, minBootProtocol)
	}
	zp.bytes[offLoader] = loaderUnknown
	zp.bytes[offLoadFlags] |= loadedHigh
	zp.put64(offACPIRSDP, uint64(ACPIStart))
	return zp
}

func (zp *zeroPage) put16(off int, v uint16) { binary.LittleEndian.PutUint16(zp.bytes[off:], v) }
func (zp *zeroPage) put32(off int, v uint32) { binary.LittleEndian.PutUint32(zp.bytes[off:], v) }
func (zp *zeroPage) put64(off int, v uint64) { binary.LittleEndian.PutUint64(zp.bytes[off:], v) }

// e820Entry is a range of addresses in the memory map.
type e820Entry struct {
	addr guestmem.GPA
	size uint64
	kind uint32
}

// e820 returns the memory map of a machine with the RAM mem. The map omits the device hole, because
// guests expect devices only at addresses that are not in the map.
func e820(mem *guestmem.Memory) []e820Entry {
	low := lowRAMEnd(mem)
	m := []e820Entry{
		{0, uint64(LowRAMEnd), e820RAM},
		{VMGenIDPage, guestmem.PageSize, e820Reserved},
		{ACPIStart, uint64(HighRAMStart - ACPIStart), e820ACPI},
		{HighRAMStart, uint64(low - HighRAMStart), e820RAM},
	}
	for _, r := range mem.Regions() {
		if r.GPA >= guestmem.HoleEnd {
			m = append(m, e820Entry{r.GPA, r.Size, e820RAM})
		}
	}
	return m
}

func (zp *zeroPage) setE820(m []e820Entry) error {
	if len(m) > e820MaxEntries {
		return fmt.Errorf("memory map has %d entries, the boot parameters hold %d", len(m), e820MaxEntries)
	}
	zp.bytes[offE820Entries] = uint8(len(m))
	for i, e := range m {
		off := offE820Table + i*e820EntrySize
		zp.put64(off, uint64(e.addr))
		zp.put64(off+8, e.size)
		zp.put32(off+16, e.kind)
	}
	return nil
}
