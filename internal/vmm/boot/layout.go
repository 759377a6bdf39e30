package boot

import "github.com/forkd/forkd/internal/vmm/guestmem"

// The guest physical map. The tables that the kernel uses until it has set up its own tables are
// below 640 KiB. No kernel image is loaded there, and Linux gives this memory to its allocator
// late. The memory in snapshots contains these addresses, so a change of an address makes older
// snapshots unusable, and needs a new version of the snapshot format.
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
	// GDTAddr is the address of the global descriptor table that is valid until the kernel loads
	// another table.
	GDTAddr guestmem.GPA = 0x500
	// ZeroPageAddr is the address of the page of boot parameters ("zero page"). The kernel receives
	// this address in RSI.
	ZeroPageAddr guestmem.GPA = 0x7000
	// StackTop is the initial stack pointer. The 64-bit entry does not need a stack. But with a
	// valid stack, an early exception is reported, and does not corrupt a page.
	StackTop guestmem.GPA = 0x9000
	// PageTableAddr is the address of the PML4. One PDPT and four page directories follow it. They
	// map 4 GiB in pages of 2 MiB, because not every CPU supports pages of 1 GiB.
	PageTableAddr guestmem.GPA = 0x9000
	// CmdlineAddr is the address of the kernel command line, which has up to CmdlineMax bytes and a
	// final zero.
	CmdlineAddr guestmem.GPA = 0x20000
	// CmdlineMax is the COMMAND_LINE_SIZE of Linux on x86, without the final zero, in bytes.
	CmdlineMax = 2047

	// LowRAMEnd is the end of the RAM below 640 KiB. Unless the BIOS data area names another
	// address, Linux assumes that the BIOS area starts at 0x9f000 (arch/x86/kernel/ebda.c). So
	// Linux never uses the page at this address.
	LowRAMEnd guestmem.GPA = 0x9f000
	// VMGenIDPage is the page that contains only the VM generation identifier. The specification
	// requires reserved RAM, in a page that the guest uses for nothing else.
	VMGenIDPage guestmem.GPA = 0x9f000
	// VMGenIDAddr is the address of the VM generation identifier, which has 16 bytes and is 8-byte
	// aligned (Virtual Machine Generation ID, Microsoft 2012). After a fork the machine writes a
	// new identifier and raises VMGenIDGSI.
	VMGenIDAddr = VMGenIDPage

	// ACPIStart is the address of the RSDP. It is in the area in which guests look for an RSDP
	// (ACPI 6.5 §5.2.5.1). The boot parameters also contain this address.
	ACPIStart guestmem.GPA = 0xe0000
	// ACPIEnd is the end of the area for ACPI tables.
	ACPIEnd = ResetVectorAddr
	// ResetVectorAddr is the address at which a PC's BIOS begins (F000:FFF0). Kernels that reset
	// through the BIOS jump to this address in real mode. The code there writes to ResetPort.
	ResetVectorAddr guestmem.GPA = 0xffff0

	// HighRAMStart is 1 MiB, where RAM continues.
	HighRAMStart guestmem.GPA = 0x100000
	// MinKernelAddr is the lowest address a kernel may occupy.
	MinKernelAddr = HighRAMStart
)

// Addresses of devices, in the hole between guestmem.HoleStart and guestmem.HoleEnd.
const (
	// VirtioBase is the address of the first virtio-mmio window.
	VirtioBase guestmem.GPA = 0xd0000000
	// VirtioStep is the size of a window in bytes, and the distance from one window to the next. It
	// is the size of a page, so that each device has a page of its own.
	VirtioStep = 0x1000

	// IOAPICAddr and LocalAPICAddr are the addresses of KVM's in-kernel interrupt controllers. On a
	// real CPU, the controllers have these addresses after a reset.
	IOAPICAddr    guestmem.GPA = 0xfec00000
	LocalAPICAddr guestmem.GPA = 0xfee00000

	// KVMIdentityMapAddr is the page for KVM_SET_IDENTITY_MAP_ADDR. KVMTSSAddr is the first of
	// three pages for KVM_SET_TSS_ADDR. KVM uses these pages to emulate real mode on Intel CPUs
	// without unrestricted guest mode. The pages must lie below 4 GiB and in no memslot.
	KVMIdentityMapAddr guestmem.GPA = 0xfffbc000
	KVMTSSAddr         guestmem.GPA = 0xfffbd000
)

// Interrupts. They are GSIs of the only I/O APIC, which has 24 pins (Intel 82093AA). All interrupts
// are edge triggered and active high.
const (
	// SerialGSI is the usual interrupt of COM1, which guests without ACPI drivers expect.
	SerialGSI = 4
	// FirstVirtioGSI is the interrupt of the first virtio device. GSI 0 is not used, because KVM
	// routes it like a PC's timer. GSIs 1 to 3 are not used, because Linux assumes that they belong
	// to ISA devices, which do not exist here.
	FirstVirtioGSI = 5
	// VMGenIDGSI is the interrupt of the ACPI event device that reports a new generation
	// identifier.
	VMGenIDGSI = 23
	// IOAPICPins is the number of GSIs.
	IOAPICPins = 24

	// MaxVirtioDevices is the number of GSIs from FirstVirtioGSI to VMGenIDGSI-1.
	MaxVirtioDevices = VMGenIDGSI - FirstVirtioGSI
)

// I/O ports.
const (
	// SerialPort is the first of COM1's 8 ports.
	SerialPort = 0x3f8
	// SerialPorts is the number of COM1's ports.
	SerialPorts = 8

	// SleepControlPort and SleepStatusPort are the 8-bit registers of ACPI 6.5 §4.8.3.7. A guest
	// powers off by writing PowerOffValue to SleepControlPort. SleepStatusPort reads as zero.
	SleepControlPort = 0x600
	SleepStatusPort  = 0x601
	// ResetPort is the RESET_REG of the FADT. A guest resets by writing ResetValue to this port.
	ResetPort  = 0x602
	ResetValue = 0x01

	// A PC without an ACPI reset register resets when I8042Reset is written to I8042Port, or when
	// bits 1 and 2 are set in PCIResetPort. Linux tries both writes if ResetPort did not work. The
	// machine also resets on these writes.
	I8042Port     = 0x64
	I8042Reset    = 0xfe
	PCIResetPort  = 0xcf9
	PCIResetValue = 0x06

	// PowerOffValue has SLP_EN (bit 5) and, in bits 2 to 4, the SLP_TYP of the _S5 package in the
	// DSDT.
	PowerOffValue = slpEnable | s5SleepType<<slpTypeShift
	slpEnable     = 1 << 5
	slpTypeShift  = 2
	s5SleepType   = 5
)

// VirtioDevice returns the window and the interrupt of virtio device i. The number i must be at
// least 0 and below MaxVirtioDevices.
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
