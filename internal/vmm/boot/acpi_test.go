package boot

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmm/guestmem"
)

func testDevices(n int) []MMIODevice {
	var d []MMIODevice
	for i := range n {
		d = append(d, VirtioDevice(i))
	}
	return d
}

// sum returns the sum of all bytes, which is zero if the checksum is right.
func sum(b []byte) (s uint8) {
	for _, v := range b {
		s += v
	}
	return s
}

// tableAt returns the table at a guest physical address. It checks the length and the checksum.
func tableAt(t *testing.T, image []byte, addr uint64) []byte {
	t.Helper()
	off := addr - uint64(ACPIStart)
	if addr < uint64(ACPIStart) || off+sdtHeaderSize > uint64(len(image)) {
		t.Fatalf("table address %#x is outside the image", addr)
	}
	n := uint64(binary.LittleEndian.Uint32(image[off+sdtLengthOff:]))
	if n < sdtHeaderSize || off+n > uint64(len(image)) {
		t.Fatalf("table at %#x has length %d", addr, n)
	}
	table := image[off : off+n]
	if sum(table) != 0 {
		t.Errorf("table %q: bad checksum", table[:4])
	}
	return table
}

// walk finds the tables as a guest does.
func walk(t *testing.T, image []byte) map[string][]byte {
	t.Helper()
	le := binary.LittleEndian
	if string(image[:8]) != "RSD PTR " || sum(image[:rsdpV1Size]) != 0 || sum(image[:rsdpSize]) != 0 {
		t.Fatalf("bad RSDP % x", image[:rsdpSize])
	}
	tables := map[string][]byte{}
	xsdt := tableAt(t, image, le.Uint64(image[24:]))
	for p := xsdt[sdtHeaderSize:]; len(p) >= 8; p = p[8:] {
		table := tableAt(t, image, le.Uint64(p))
		tables[string(table[:4])] = table
	}
	tables[string(xsdt[:4])] = xsdt
	fadt := tables["FACP"]
	if fadt == nil {
		t.Fatal("no FADT in the XSDT")
	}
	tables["DSDT"] = tableAt(t, image, le.Uint64(fadt[fadtXDSDT:]))
	return tables
}

func TestACPITablesAreLinked(t *testing.T) {
	tables := walk(t, acpiImage(4, testDevices(3)))
	for _, name := range []string{"XSDT", "FACP", "APIC", "DSDT"} {
		if tables[name] == nil {
			t.Errorf("no %s", name)
		}
	}
	fadt := tables["FACP"]
	if len(fadt) != fadtSize {
		t.Errorf("FADT has %d bytes, want %d", len(fadt), fadtSize)
	}
	if f := binary.LittleEndian.Uint32(fadt[fadtFlags:]); f&flagHWReduced == 0 || f&flagResetReg == 0 {
		t.Errorf("FADT flags %#x", f)
	}
	for off, port := range map[int]uint64{fadtResetReg: ResetPort, fadtSleepCtrl: SleepControlPort,
		fadtSleepStatus: SleepStatusPort} {
		if got := binary.LittleEndian.Uint64(fadt[off+4:]); fadt[off] != gasSystemIO || got != port {
			t.Errorf("FADT register at %d: space %d, port %#x, want %#x", off, fadt[off], got, port)
		}
	}
}

func TestMADTListsEveryProcessorOnce(t *testing.T) {
	for _, vcpus := range []int{1, 3, vm.MaxVCPUs} {
		seen, ioapics := map[uint32]int{}, 0
		for p := madt(vcpus)[sdtHeaderSize+8:]; len(p) > 0; p = p[p[1]:] {
			switch p[0] {
			case madtLAPIC:
				seen[uint32(p[3])]++
			case madtIOAPIC:
				ioapics++
			}
			if p[1] == 0 || int(p[1]) > len(p) {
				t.Fatalf("%d vCPUs: entry of length %d with %d bytes left", vcpus, p[1], len(p))
			}
		}
		if len(seen) != vcpus || ioapics != 1 {
			t.Errorf("%d vCPUs: %d processors, %d I/O APICs", vcpus, len(seen), ioapics)
		}
		for id := range uint32(vcpus) {
			if seen[id] != 1 {
				t.Errorf("%d vCPUs: processor %d is listed %d times", vcpus, id, seen[id])
			}
		}
	}
}

func TestPkgLength(t *testing.T) {
	// The encoded length takes 1 to 3 bytes here (ACPI 6.5 §20.2.4). The bodies are the largest for
	// 1 and 2 bytes, and the smallest for 2 and 3 bytes.
	for _, tc := range []struct {
		body int
		want []byte
	}{
		{0, []byte{0x01}},
		{62, []byte{0x3f}},
		{63, []byte{0x41, 0x04}},
		{4093, []byte{0x4f, 0xff}},
		{4094, []byte{0x81, 0x00, 0x01}},
	} {
		got := sized(make([]byte, tc.body))
		if !bytes.HasPrefix(got, tc.want) || len(got) != tc.body+len(tc.want) {
			t.Errorf("body of %d bytes: prefix % x, want % x", tc.body, got[:min(4, len(got))], tc.want)
		}
	}
}

func TestEISAID(t *testing.T) {
	if got, want := eisaID("PNP", 0x0501), []byte{amlDWord, 0x41, 0xd0, 0x05, 0x01}; !bytes.Equal(got, want) {
		t.Errorf("PNP0501 = % x, want % x", got, want)
	}
}

func TestLoadACPIRefusesBadDevices(t *testing.T) {
	mem := newMemory(t, 2<<20)
	for name, devices := range map[string][]MMIODevice{
		"too many":     testDevices(MaxVirtioDevices + 1),
		"in RAM":       {{Addr: 0x1000, Size: 0x1000, GSI: 5}},
		"over IOAPIC":  {{Addr: IOAPICAddr - 0x800, Size: 0x1000, GSI: 5}},
		"gsi too high": {{Addr: VirtioBase, Size: 0x1000, GSI: IOAPICPins}},
		"wraps":        {{Addr: ^guestmem.GPA(0) - 0x7ff, Size: 0x1000, GSI: 5}},
	} {
		if err := loadACPI(mem, Params{VCPUs: 1, Devices: devices}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := loadACPI(mem, Params{VCPUs: vm.MaxVCPUs, Devices: testDevices(MaxVirtioDevices)}); err != nil {
		t.Errorf("largest machine: %v", err)
	}
}

// TestDisassembled disassembles the tables with iasl, the reference compiler. iasl fails on
// malformed AML.
func TestDisassembled(t *testing.T) {
	iasl, err := exec.LookPath("iasl")
	if err != nil {
		t.Skip("iasl is not installed (package acpica-tools)")
	}
	dir := t.TempDir()
	tables := walk(t, acpiImage(3, testDevices(2)))
	texts := map[string]string{}
	for name, table := range tables {
		path := filepath.Join(dir, strings.ToLower(name)+".aml")
		if err := os.WriteFile(path, table, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(iasl, "-d", path)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("disassemble %s: %v\n%s", name, err, out)
		}
		dsl, err := os.ReadFile(strings.TrimSuffix(path, ".aml") + ".dsl")
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = strings.Join(strings.Fields(string(dsl)), " ")
		for _, bad := range []string{"Invalid", "Incorrect checksum", "Unknown", "Error"} {
			if strings.Contains(string(out)+string(dsl), bad) {
				t.Errorf("%s: iasl says %q:\n%s\n%s", name, bad, out, dsl)
			}
		}
	}
	for _, want := range []string{
		`Name (_S5, Package (0x04)`,
		`Device (COM1) { Name (_HID, EisaId ("PNP0501")`,
		`IO (Decode16, 0x03F8, // Range Minimum 0x03F8, // Range Maximum 0x01, // Alignment 0x08, // Length )`,
		`Interrupt (ResourceConsumer, Edge, ActiveHigh, Exclusive, ,, ) { 0x00000004, }`,
		`Name (_HID, "LNRO0005")`,
		`Memory32Fixed (ReadWrite, 0xD0001000, // Address Base 0x00001000, // Address Length )`,
		`Interrupt (ResourceConsumer, Edge, ActiveHigh, Exclusive, ,, ) { 0x00000006, }`,
		`Name (_CID, "VM_Gen_Counter")`,
		`Name (ADDR, Package (0x02) { 0x0009F000, Zero })`,
		`Name (_HID, "ACPI0013"`,
		`Method (_EVT, 1, Serialized)`,
		`If ((Arg0 == 0x17)) { Notify (\_SB.VGEN, 0x80)`,
	} {
		if !strings.Contains(texts["DSDT"], want) {
			t.Errorf("DSDT lacks %q:\n%s", want, texts["DSDT"])
		}
	}
	// Compile the disassembly. The compiler checks names, numbers of arguments and resource
	// buffers.
	cmd := exec.Command(iasl, "-f", "dsdt.dsl")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte(" 0 Errors, 0 Warnings")) {
		t.Errorf("compile the disassembled DSDT: %v\n%s", err, out)
	}
}
