package boot

import (
	"encoding/binary"
	"fmt"

	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// Segment is a segment register with its hidden part. Its fields are those of KVM's struct
// kvm_segment.
type Segment struct {
	Base     uint64
	Limit    uint32
	Selector uint16
	Type     uint8 // Intel SDM vol. 3 tables 3-1 and 3-2
	Present  uint8
	DPL      uint8
	DB       uint8 // 1 if the default operand size is 32 bits
	S        uint8 // 1 for code and data, 0 for system segments
	L        uint8 // 1 for 64-bit code
	G        uint8 // 1 if the limit is in units of 4 KiB
	Unusable uint8
}

// Table is a register that holds the address of a descriptor table.
type Table struct {
	Base  uint64
	Limit uint16
}

// MSR is a model-specific register and its value.
type MSR struct {
	Index uint32
	Value uint64
}

// State is the state of the first vCPU at the kernel's first instruction. The vCPU is in 64-bit
// mode with interrupts disabled, as Documentation/arch/x86/boot.rst ("64-bit Boot Protocol")
// requires. Registers that are not in State are zero. The other vCPUs wait for INIT and SIPI, as
// after a reset. EFER.LMA can be set only after KVM_SET_CPUID2.
type State struct {
	RIP, RSI, RSP, RFlags uint64
	CR0, CR3, CR4, EFER   uint64
	CS                    Segment
	DS                    Segment // value of DS, ES, FS, GS and SS
	TR                    Segment
	LDT                   Segment
	GDT, IDT              Table
	MSRs                  []MSR // MSRs to set in every vCPU
}

// Bits of the control registers (Intel SDM vol. 3 §2.5) and of EFER (§2.2.1).
const (
	cr0PE   = 1 << 0
	cr0MP   = 1 << 1
	cr0ET   = 1 << 4
	cr0NE   = 1 << 5
	cr0WP   = 1 << 16
	cr0PG   = 1 << 31
	cr4PAE  = 1 << 5
	eferLME = 1 << 8
	eferLMA = 1 << 10

	rflagsFixed = 1 << 1 // this bit is always one
)

// MSRs that firmware sets on real machines (Intel SDM vol. 4), and bits of page table entries.
const (
	msrMiscEnable    = 0x1a0
	miscFastStrings  = 1 << 0
	msrMTRRDefType   = 0x2ff
	mtrrEnable       = 1 << 11
	mtrrWriteBack    = 6
	pageEntryPresent = 1 << 0
	pageEntryWrite   = 1 << 1
	pageEntryLarge   = 1 << 7
)

// Selectors. The boot protocol requires the selectors of code and data. VT-x requires a valid task
// register.
const (
	bootCS = 0x10
	bootDS = 0x18
	bootTR = 0x20
)

// newState writes page tables and GDT to guest memory, and returns the registers that refer to
// them.
func newState(mem *guestmem.Memory, entry guestmem.GPA) (State, error) {
	if err := writePageTables(mem); err != nil {
		return State{}, fmt.Errorf("write boot page tables: %w", err)
	}
	s := State{
		RIP: uint64(entry), RSI: uint64(ZeroPageAddr), RSP: uint64(StackTop), RFlags: rflagsFixed,
		CR0:  cr0PE | cr0MP | cr0ET | cr0NE | cr0WP | cr0PG,
		CR3:  uint64(PageTableAddr),
		CR4:  cr4PAE,
		EFER: eferLME | eferLMA,
		CS:   Segment{Limit: 0xffffffff, Selector: bootCS, Type: 0xb, Present: 1, S: 1, L: 1, G: 1},
		DS:   Segment{Limit: 0xffffffff, Selector: bootDS, Type: 0x3, Present: 1, S: 1, DB: 1, G: 1},
		TR:   Segment{Limit: 0x67, Selector: bootTR, Type: 0xb, Present: 1},
		LDT:  Segment{Unusable: 1},
		MSRs: []MSR{
			// Enable fast "rep movs", as every firmware does.
			{msrMiscEnable, miscFastStrings},
			// Unless the page tables say otherwise, all memory is write-back. If MTRRs were
			// disabled, Linux would map memory outside its RAM as uncached, such as the ACPI tables
			// and the generation identifier.
			{msrMTRRDefType, mtrrEnable | mtrrWriteBack},
		},
	}
	gdt := []uint64{0, 0, descriptor(s.CS), descriptor(s.DS), descriptor(s.TR), 0} // a 64-bit TSS takes two slots
	var b []byte
	for _, d := range gdt {
		b = binary.LittleEndian.AppendUint64(b, d)
	}
	if err := mem.WriteAt(b, GDTAddr); err != nil {
		return State{}, fmt.Errorf("write boot gdt: %w", err)
	}
	s.GDT = Table{Base: uint64(GDTAddr), Limit: uint16(len(b) - 1)}
	return s, nil
}

// resetVector returns 16-bit code that resets the machine.
func resetVector() []byte {
	return []byte{
		0xba, ResetPort & 0xff, ResetPort >> 8, // mov dx, ResetPort
		0xb0, ResetValue, // mov al, ResetValue
		0xee,       // out dx, al
		0xf4,       // hlt
		0xeb, 0xfd, // jmp to the hlt, in case an interrupt ends it
	}
}

// descriptor returns the descriptor of a segment whose base is zero (Intel SDM vol. 3 §3.4.5).
func descriptor(s Segment) uint64 {
	limit := uint64(s.Limit)
	if s.G == 1 {
		limit >>= 12
	}
	access := uint64(s.Type) | uint64(s.S)<<4 | uint64(s.DPL)<<5 | uint64(s.Present)<<7
	flags := uint64(s.L)<<1 | uint64(s.DB)<<2 | uint64(s.G)<<3
	return limit&0xffff | access<<40 | limit>>16&0xf<<48 | flags<<52
}

// writePageTables maps the first 4 GiB to themselves, writable, in pages of 2 MiB. Through this map
// the kernel's entry code reads its image, the boot parameters and the command line. Then the
// kernel makes its own page tables.
func writePageTables(mem *guestmem.Memory) error {
	const (
		entries   = 512
		table     = guestmem.GPA(entries * 8)
		dirs      = 4 // number of page directories, each for 1 GiB
		large     = 2 << 20
		linkFlags = pageEntryPresent | pageEntryWrite
	)
	pdpt, dir := PageTableAddr+table, PageTableAddr+2*table
	b := binary.LittleEndian.AppendUint64(nil, uint64(pdpt)|linkFlags)
	if err := mem.WriteAt(b, PageTableAddr); err != nil {
		return err
	}
	b = b[:0]
	for i := range dirs {
		b = binary.LittleEndian.AppendUint64(b, uint64(dir+guestmem.GPA(i)*table)|linkFlags)
	}
	if err := mem.WriteAt(b, pdpt); err != nil {
		return err
	}
	b = b[:0]
	for i := range dirs * entries {
		b = binary.LittleEndian.AppendUint64(b, uint64(i)*large|linkFlags|pageEntryLarge)
	}
	return mem.WriteAt(b, dir)
}
