package boot

import (
	"encoding/binary"
	"fmt"

	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// ACPI tables of a hardware-reduced platform (ACPI 6.5 §4.1), which has no PM timer, SCI, fixed
// events or FACS. Section numbers in this file refer to ACPI 6.5.

// Common header of a table, §5.2.6.
const (
	sdtHeaderSize  = 36
	sdtLengthOff   = 4
	sdtChecksumOff = 9

	oemID      = "FORKD "
	oemTableID = "FORKDVM "
	creatorID  = "FRKD"
)

// RSDP, §5.2.5.3.
const (
	rsdpRevision = 2
	rsdpV1Size   = 20 // bytes that the first checksum covers
	rsdpSize     = 36
)

// FADT, §5.2.9.
const (
	fadtRevision    = 6
	fadtMinor       = 5
	fadtSize        = 276
	fadtIAPCBoot    = 109
	fadtFlags       = 112
	fadtResetReg    = 116
	fadtResetValue  = 128
	fadtMinorOff    = 131
	fadtXDSDT       = 140
	fadtSleepCtrl   = 244
	fadtSleepStatus = 256

	// These bits (IAPC_BOOT_ARCH, §5.2.9.3) say that usual hardware of a PC is missing. So Linux
	// does not look for this hardware. The bits for legacy devices and for a keyboard controller
	// mean "present", so they are zero.
	bootNoVGA  = 1 << 2
	bootNoMSI  = 1 << 3
	bootNoASPM = 1 << 4
	bootNoCMOS = 1 << 5

	flagWBINVD    = 1 << 0 // the instruction WBINVD works
	flagNoPwrBtn  = 1 << 4 // there is no fixed power button
	flagNoSlpBtn  = 1 << 5 // there is no fixed sleep button
	flagResetReg  = 1 << 10
	flagHeadless  = 1 << 12
	flagHWReduced = 1 << 20
)

// Generic address structure, §5.2.3.2.
const (
	gasSystemIO   = 1
	gasByteAccess = 1
)

// MADT, §5.2.12.
const (
	madtRevision   = 5
	madtLAPIC      = 0
	madtIOAPIC     = 1
	madtCPUEnabled = 1
	madtIOAPICID   = 0
)

const (
	dsdtRevision = 2 // with this revision, AML integers have 64 bits

	// vmGenIDHID is the ACPI name that this package gives the device of the VM generation
	// identifier. Drivers find the device by its compatible name, vmGenIDCID (Virtual Machine
	// Generation ID, Microsoft 2012).
	vmGenIDHID = "FRKD0001"
	vmGenIDCID = "VM_Gen_Counter"
	// vmGenIDChanged is the notification value that reports a new identifier (Virtual Machine
	// Generation ID).
	vmGenIDChanged = 0x80
	// gedHID is the ACPI name of the Generic Event Device, §5.6.9.
	gedHID = "ACPI0013"
	// virtioMMIOHID is the ACPI name that Linux and all VMMs use for a virtio-mmio transport.
	virtioMMIOHID = "LNRO0005"
)

// loadACPI writes the ACPI tables. The RSDP is at ACPIStart.
func loadACPI(mem *guestmem.Memory, p Params) error {
	if len(p.Devices) > MaxVirtioDevices {
		return fmt.Errorf("%d virtio devices: want at most %d", len(p.Devices), MaxVirtioDevices)
	}
	for i, d := range p.Devices {
		if d.Addr < guestmem.HoleStart || d.Addr > IOAPICAddr || uint64(d.Size) > uint64(IOAPICAddr-d.Addr) ||
			d.GSI >= IOAPICPins {
			return fmt.Errorf("virtio device %d: %d bytes at %#x with gsi %d: want a window between %#x and %#x and a gsi below %d",
				i, d.Size, uint64(d.Addr), d.GSI, uint64(guestmem.HoleStart), uint64(IOAPICAddr), IOAPICPins)
		}
	}
	image := acpiImage(p.VCPUs, p.Devices)
	if room := int(ACPIEnd - ACPIStart); len(image) > room {
		return fmt.Errorf("%d bytes of tables do not fit into %d", len(image), room)
	}
	return mem.WriteAt(image, ACPIStart)
}

// acpiImage returns the RSDP followed by the tables. The result must be loaded at ACPIStart.
func acpiImage(vcpus int, devices []MMIODevice) []byte {
	image := make([]byte, rsdpSize)
	place := func(table []byte) uint64 {
		for len(image)%16 != 0 {
			image = append(image, 0)
		}
		at := uint64(ACPIStart) + uint64(len(image))
		image = append(image, table...)
		return at
	}
	dsdtAt := place(dsdt(devices))
	fadtAt := place(fadt(dsdtAt))
	madtAt := place(madt(vcpus))
	xsdtAt := place(xsdt(fadtAt, madtAt))
	copy(image, rsdp(xsdtAt))
	return image
}

// checksum returns the byte that must be added to the bytes of b to make their sum zero.
func checksum(b []byte) uint8 {
	var sum uint8
	for _, v := range b {
		sum += v
	}
	return -sum
}

// sdt puts the common header before the content of a table.
func sdt(signature string, revision uint8, body []byte) []byte {
	le := binary.LittleEndian
	b := append(make([]byte, 0, sdtHeaderSize+len(body)), signature...)
	b = le.AppendUint32(b, uint32(sdtHeaderSize+len(body)))
	b = append(b, revision, 0)
	b = append(b, oemID...)
	b = append(b, oemTableID...)
	b = le.AppendUint32(b, 1) // OEM revision
	b = append(b, creatorID...)
	b = le.AppendUint32(b, 1) // creator revision
	b = append(b, body...)
	b[sdtChecksumOff] = checksum(b)
	return b
}

// rsdp returns the RSDP, which points to the XSDT.
func rsdp(xsdtAt uint64) []byte {
	b := append(make([]byte, 0, rsdpSize), "RSD PTR "...)
	b = append(b, 0)
	b = append(b, oemID...)
	b = append(b, rsdpRevision, 0, 0, 0, 0) // no RSDT address: a guest of this boot protocol reads the XSDT
	b[8] = checksum(b)
	b = binary.LittleEndian.AppendUint32(b, rsdpSize)
	b = binary.LittleEndian.AppendUint64(b, xsdtAt)
	b = append(b, 0, 0, 0, 0)
	b[rsdpSize-4] = checksum(b)
	return b
}

// xsdt returns the XSDT, the list of the other tables (§5.2.8).
func xsdt(tables ...uint64) []byte {
	var body []byte
	for _, t := range tables {
		body = binary.LittleEndian.AppendUint64(body, t)
	}
	return sdt("XSDT", 1, body)
}

// ioRegister returns the generic address of an 8-bit I/O port register.
func ioRegister(port uint16) []byte {
	return binary.LittleEndian.AppendUint64([]byte{gasSystemIO, 8, 0, gasByteAccess}, uint64(port))
}

// fadt returns the FADT, which lists missing hardware and the registers for sleep and reset.
func fadt(dsdtAt uint64) []byte {
	le := binary.LittleEndian
	b := make([]byte, fadtSize)
	le.PutUint16(b[fadtIAPCBoot:], bootNoVGA|bootNoMSI|bootNoASPM|bootNoCMOS)
	le.PutUint32(b[fadtFlags:], flagWBINVD|flagNoPwrBtn|flagNoSlpBtn|flagResetReg|flagHeadless|flagHWReduced)
	copy(b[fadtResetReg:], ioRegister(ResetPort))
	b[fadtResetValue] = ResetValue
	b[fadtMinorOff] = fadtMinor
	le.PutUint64(b[fadtXDSDT:], dsdtAt)
	copy(b[fadtSleepCtrl:], ioRegister(SleepControlPort))
	copy(b[fadtSleepStatus:], ioRegister(SleepStatusPort))
	return sdt("FACP", fadtRevision, b[sdtHeaderSize:])
}

// madt returns the MADT, which lists the processors and the I/O APIC. The MADT has no interrupt
// overrides, because the default is right: an ISA interrupt has the GSI of the same number, and is
// edge triggered and active high. The flags of the MADT are zero, because there are no 8259s to
// mask.
func madt(vcpus int) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, uint32(LocalAPICAddr))
	b = le.AppendUint32(b, 0)
	for id := range vcpus {
		b = append(b, madtLAPIC, 8, uint8(id), uint8(id)) // ACPI processor UID, APIC identifier
		b = le.AppendUint32(b, madtCPUEnabled)
	}
	b = append(b, madtIOAPIC, 12, madtIOAPICID, 0)
	b = le.AppendUint32(b, uint32(IOAPICAddr))
	b = le.AppendUint32(b, 0) // first GSI
	return sdt("APIC", madtRevision, b)
}

// dsdt returns the DSDT, which describes the devices and the only sleep state, "off".
func dsdt(devices []MMIODevice) []byte {
	terms := [][]byte{
		// COM1 is listed as a device, so that it has an interrupt. If it were not listed, Linux
		// would assume that COM1 has no interrupt, because there are no legacy interrupt
		// controllers.
		device("COM1",
			named("_HID", eisaID("PNP", 0x0501)),
			named("_UID", integer(0)),
			named("_CRS", resources(ioPorts(SerialPort, SerialPorts), interrupt(SerialGSI)))),
		device("VGEN",
			named("_HID", text(vmGenIDHID)),
			named("_CID", text(vmGenIDCID)),
			named("_DDN", text(vmGenIDCID)),
			named("ADDR", pkg(integer(uint64(VMGenIDAddr)&0xffffffff), integer(uint64(VMGenIDAddr)>>32)))),
		device("GED0",
			named("_HID", text(gedHID)),
			named("_UID", integer(0)),
			named("_CRS", resources(interrupt(VMGenIDGSI))),
			method1("_EVT", ifArg0Is(VMGenIDGSI, notifySB("VGEN", vmGenIDChanged)))),
	}
	for i, d := range devices {
		terms = append(terms, device(fmt.Sprintf("VR%02X", i),
			named("_HID", text(virtioMMIOHID)),
			named("_UID", integer(uint64(i))),
			named("_CRS", resources(memory32(uint32(d.Addr), d.Size), interrupt(d.GSI)))))
	}
	s5 := integer(s5SleepType)
	body := join(
		named("_S5", pkg(s5, s5, integer(0), integer(0))),
		scopeSB(terms...))
	return sdt("DSDT", dsdtRevision, body)
}
