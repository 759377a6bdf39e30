package boot

import "github.com/forkd/forkd/internal/vmm/guestmem"

// The guest physical map. Everything the kernel needs before it has set up its own tables lies
// below 640 KiB, which Linux gives to its allocator late and which no kernel image uses. Snapshots
// carry these addresses in their memory: changing one makes older snapshots unusable, so it needs a
// new snapshot format version.
//
//	0x0000_0000 ┌────────────────────────────┐
//	            │ zero page, GDT, page tables │ read once by the kernel's entry code
//	0x0009_f000 ├────────────────────────────┤
//	            │ VM generation identifier   │ RAM, reserved in e820
//	0x000a_0000 ├────────────────────────────┤
//	            │ nothing                    │ where a PC has its VGA memory and ROMs
//	0x000e_0000 ├────────────────────────────┤
//	            │ ACPI tables, reset vector  │ RAM, "ACPI data" in e820
//	0x0010_0000 ├────────────────────────────┤
//	            │ RAM: kernel … initrd       │
//	0xc000_0000 ├────────────────────────────┤ guestmem.HoleStart
//	            │ virtio-mmio windows, APICs │
//	0x1_0000_0000 ├──────────────────────────┤ guestmem.HoleEnd
//	            │ RAM                        │
//	            └────────────────────────────┘
const (
	// GDTAddr is the global descriptor table that is valid until the kernel loads its own.
	GDTAddr guestmem.GPA = 0x500
	// ZeroPageAddr is the page of boot parameters ("zero page"), passed in RSI.
	ZeroPageAddr guestmem.GPA = 0x7000
	// StackTop is the initial stack pointer. The 64-bit entry needs none; a valid one turns an
	// early fault into a fault and not into a corrupted page.
	StackTop guestmem.GPA = 0x9000
	// PageTableAddr is the PML4, followed by one PDPT and four page directories: 4 GiB in pages of
	// 2 MiB, because not every CPU has 1 GiB pages.
	PageTableAddr guestmem.GPA = 0x9000
	// CmdlineAddr is the kernel command line; up to CmdlineMax bytes and a zero.
	CmdlineAddr guestmem.GPA = 0x20000
	// CmdlineMax is Linux's COMMAND_LINE_SIZE on x86 less its final zero, in bytes.
	CmdlineMax = 2047

	// LowRAMEnd ends the RAM below 640 KiB. Linux takes 0x9f000 as the start of the BIOS area when
	// the BIOS data area does not say otherwise (arch/x86/kernel/ebda.c), so the page above is
	// never its own.
	LowRAMEnd guestmem.GPA = 0x9f000
	// VMGenIDPage is the page that holds nothing but the VM generation identifier: the
	// specification wants it in reserved RAM that shares no page with anything the guest uses.
	VMGenIDPage guestmem.GPA = 0x9f000
	// VMGenIDAddr is the 16-byte generation identifier, 8-byte aligned (Virtual Machine Generation
	// ID, Microsoft 2012). After a fork the machine writes a new one and raises VMGenIDGSI.
	VMGenIDAddr = VMGenIDPage

	// ACPIStart is where the RSDP is: the area that ACPI 6.5 §5.2.5.1 has searched for it. The
	// kernel also gets the address in its boot parameters.
	ACPIStart guestmem.GPA = 0xe0000
	// ACPIEnd ends the area of the ACPI tables.
	ACPIEnd = ResetVectorAddr
	// ResetVectorAddr is where a PC's BIOS begins (F000:FFF0). Kernels configured to reset through
	// the BIOS jump there in real mode. The code there writes to ResetPort.
	ResetVectorAddr guestmem.GPA = 0xffff0

	// HighRAMStart is the 1 MiB boundary, where RAM continues.
	HighRAMStart guestmem.GPA = 0x100000
	// MinKernelAddr is the lowest address a kernel may occupy.
	MinKernelAddr = HighRAMStart
)

// Devices in the hole between guestmem.HoleStart and guestmem.HoleEnd.
const (
	// VirtioBase is the first virtio-mmio window.
	VirtioBase guestmem.GPA = 0xd0000000
	// VirtioStep is the size of a window and the distance between two, in bytes: a page, so that no
	// two devices share one.
	VirtioStep = 0x1000

	// IOAPICAddr and LocalAPICAddr are where KVM's in-kernel interrupt controllers answer; they are
	// the architecture's reset values.
	IOAPICAddr    guestmem.GPA = 0xfec00000
	LocalAPICAddr guestmem.GPA = 0xfee00000

	// KVMIdentityMapAddr is the page for KVM_SET_IDENTITY_MAP_ADDR and KVMTSSAddr the three pages
	// for KVM_SET_TSS_ADDR: Intel CPUs without unrestricted guest mode keep real-mode helpers
	// there. They must lie in no memslot and below 4 GiB.
	KVMIdentityMapAddr guestmem.GPA = 0xfffbc000
	KVMTSSAddr         guestmem.GPA = 0xfffbd000
)

// Interrupts, as GSIs of the one I/O APIC, which has 24 pins (Intel 82093AA). All are edge
// triggered and active high.
const (
	// SerialGSI is COM1's classic interrupt; guests without ACPI drivers expect it there.
	SerialGSI = 4
	// FirstVirtioGSI belongs to the first virtio device. GSI 0 is not used because KVM routes it
	// like a PC's timer, and 1 to 3 are not used because Linux treats them as ISA interrupts of
	// devices that do not exist here.
	FirstVirtioGSI = 5
	// VMGenIDGSI is the interrupt of the ACPI event device that reports a new generation
	// identifier.
	VMGenIDGSI = 23
	// IOAPICPins is the number of GSIs.
	IOAPICPins = 24

	// MaxVirtioDevices is what fits between the fixed GSIs.
	MaxVirtioDevices = VMGenIDGSI - FirstVirtioGSI
)

// I/O ports.
const (
	// SerialPort is the first of COM1's 8 ports.
	SerialPort = 0x3f8
	// SerialPorts is how many it has.
	SerialPorts = 8

	// SleepControlPort and SleepStatusPort are the 8-bit registers of ACPI 6.5 §4.8.3.7. A guest
	// powers off by writing PowerOffValue to the first; the second reads as zero until then.
	SleepControlPort = 0x600
	SleepStatusPort  = 0x601
	// ResetPort is the FADT's RESET_REG: a guest resets by writing ResetValue.
	ResetPort  = 0x602
	ResetValue = 0x01

	// I8042Port with I8042Reset, and PCIResetPort with bits 1 and 2 set, reset a PC without an ACPI
	// reset register. Linux tries them if ours did not work. The machine treats them as a reset
	// too.
	I8042Port     = 0x64
	I8042Reset    = 0xfe
	PCIResetPort  = 0xcf9
	PCIResetValue = 0x06

	// PowerOffValue is SLP_EN (bit 5) and SLP_TYP (bits 2 to 4) as the _S5 package of our DSDT has
	// it.
	PowerOffValue = slpEnable | s5SleepType<<slpTypeShift
	slpEnable     = 1 << 5
	slpTypeShift  = 2
	s5SleepType   = 5
)

// VirtioDevice returns the window and interrupt of virtio device i, which must be in [0,
// MaxVirtioDevices).
func VirtioDevice(i int) MMIODevice {
	return MMIODevice{
		Addr: VirtioBase + guestmem.GPA(i)*VirtioStep,
		Size: VirtioStep,
		GSI:  FirstVirtioGSI + uint32(i),
	}
}

// lowRAMEnd returns the end of RAM below the device hole.
func lowRAMEnd(mem *guestmem.Memory) guestmem.GPA {
	for _, r := range mem.Regions() {
		if r.GPA == 0 {
			return guestmem.GPA(r.Size)
		}
	}
	return 0
}
