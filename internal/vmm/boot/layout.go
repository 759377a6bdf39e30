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

	// LowRAMEnd ends the RAM below 640 KiB. Unless the BIOS data area names another address, Linux
	// assumes that the BIOS area starts at 0x9f000 (arch/x86/kernel/ebda.c), so Linux never uses
	// the page at this address.
	LowRAMEnd guestmem.GPA = 0x9f000
	// VMGenIDPage is the page of the VM generation identifier. It holds nothing else: the
	// specification requires reserved RAM that shares no page with anything the guest uses.
	VMGenIDPage guestmem.GPA = 0x9f000
	// VMGenIDAddr is the 16-byte generation identifier, 8-byte aligned (Virtual Machine Generation
	// ID, Microsoft 2012). After a fork the machine writes a new one and raises VMGenIDGSI.
	VMGenIDAddr = VMGenIDPage

	// ACPIStart is the address of the RSDP. It lies in the area that guests search for it (ACPI 6.5
	// §5.2.5.1). The kernel also gets the address in its boot parameters.
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
	// VirtioStep is the size of a window in bytes, and the distance from one window to the next. It
	// is a page, so that no two devices share one.
	VirtioStep = 0x1000

	// IOAPICAddr and LocalAPICAddr are the addresses of KVM's in-kernel interrupt controllers,
	// which are the architecture's reset values.
	IOAPICAddr    guestmem.GPA = 0xfec00000
	LocalAPICAddr guestmem.GPA = 0xfee00000

	// KVMIdentityMapAddr is the page for KVM_SET_IDENTITY_MAP_ADDR, and KVMTSSAddr the first of
	// three pages for KVM_SET_TSS_ADDR. On Intel CPUs without unrestricted guest mode, KVM keeps
	// its real-mode helpers there. The pages must lie below 4 GiB and in no memslot.
	KVMIdentityMapAddr guestmem.GPA = 0xfffbc000
	KVMTSSAddr         guestmem.GPA = 0xfffbd000
)

// Interrupts, as GSIs of the only I/O APIC, which has 24 pins (Intel 82093AA). All are edge
// triggered and active high.
const (
	// SerialGSI is the traditional interrupt of COM1, which guests without ACPI drivers assume.
	SerialGSI = 4
	// FirstVirtioGSI belongs to the first virtio device. GSI 0 is unused because KVM routes it like
	// a PC's timer. GSIs 1 to 3 are unused because Linux takes them for ISA interrupts of devices
	// that do not exist here.
	FirstVirtioGSI = 5
	// VMGenIDGSI is the interrupt of the ACPI event device that reports a new generation
	// identifier.
	VMGenIDGSI = 23
	// IOAPICPins is the number of GSIs.
	IOAPICPins = 24

	// MaxVirtioDevices is the number of GSIs between the fixed ones.
	MaxVirtioDevices = VMGenIDGSI - FirstVirtioGSI
)

// I/O ports.
const (
	// SerialPort is the first of COM1's 8 ports.
	SerialPort = 0x3f8
	// SerialPorts is the number of COM1's ports.
	SerialPorts = 8

	// SleepControlPort and SleepStatusPort are the 8-bit registers of ACPI 6.5 §4.8.3.7. A guest
	// powers off by writing PowerOffValue to the first; the second reads as zero until then.
	SleepControlPort = 0x600
	SleepStatusPort  = 0x601
	// ResetPort is the FADT's RESET_REG: a guest resets by writing ResetValue.
	ResetPort  = 0x602
	ResetValue = 0x01

	// A PC without an ACPI reset register is reset by I8042Reset at I8042Port, or by bits 1 and 2
	// at PCIResetPort. Linux tries both if ResetPort did not work. The machine resets on these
	// writes too.
	I8042Port     = 0x64
	I8042Reset    = 0xfe
	PCIResetPort  = 0xcf9
	PCIResetValue = 0x06

	// PowerOffValue is SLP_EN (bit 5) together with the SLP_TYP (bits 2 to 4) in the _S5 package of
	// our DSDT.
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
