package boot

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmm/guestmem"
)

const (
	mib         = 1 << 20
	testPref    = 16 * mib
	testInit    = 4 * mib
	testCode    = 8192
	testSects   = 3
	testVMEntry = 0x1000040
)

func newMemory(t testing.TB, size uint64) *guestmem.Memory {
	t.Helper()
	mem, err := guestmem.New(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mem.Close() })
	return mem
}

func put16(b []byte, off int, v uint16) { binary.LittleEndian.PutUint16(b[off:], v) }
func put32(b []byte, off int, v uint32) { binary.LittleEndian.PutUint32(b[off:], v) }
func put64(b []byte, off int, v uint64) { binary.LittleEndian.PutUint64(b[off:], v) }

// bzImage returns a valid image. All bytes of its protected-mode part are 0xc3.
func bzImage() []byte {
	b := make([]byte, (testSects+1)*sectorSize+testCode)
	b[offSetupSects] = testSects
	put32(b, offSysSize, testCode/16)
	put16(b, offBootFlag, bootFlag)
	b[offJump], b[offJump+1] = 0xeb, 0x6a
	put32(b, offMagic, headerMagic)
	put16(b, offVersion, 0x020f)
	b[offLoadFlags] = loadedHigh
	put32(b, offInitrdMax, 0x7fffffff)
	put16(b, offXLoadFlags, xlfKernel64)
	put32(b, offCmdlineSize, 2047)
	put64(b, offPrefAddress, testPref)
	put32(b, offInitSize, testInit)
	for i := (testSects + 1) * sectorSize; i < len(b); i++ {
		b[i] = 0xc3
	}
	return b
}

// vmlinux returns a valid ELF file with a note and one segment to load, which has code and .bss.
func vmlinux() []byte {
	b := make([]byte, 0x1000+testCode)
	copy(b, elfMagic)
	b[4], b[5], b[6] = elfClass64, elfDataLSB, 1
	put16(b, 16, elfTypeExec)
	put16(b, 18, elfMachineX86)
	put64(b, 24, testVMEntry)
	put64(b, 32, elfHeaderSize)
	put16(b, 54, elfProgSize)
	put16(b, 56, 2)
	load := b[elfHeaderSize:]
	put32(load, 0, elfTypeLoad)
	put64(load, 8, 0x1000)
	put64(load, 24, 16*mib)
	put64(load, 32, testCode)
	put64(load, 40, mib)
	put32(load[elfProgSize:], 0, 4) // PT_NOTE
	for i := 0x1000; i < len(b); i++ {
		b[i] = 0xc3
	}
	return b
}

func writeFile(t *testing.T, data []byte) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	return f
}

func readGuest(t *testing.T, mem *guestmem.Memory, gpa guestmem.GPA, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if err := mem.ReadAt(b, gpa); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestLoad(t *testing.T) {
	initrd := bytes.Repeat([]byte("initrd!"), 1000)
	for name, tc := range map[string]struct {
		image []byte
		rip   uint64
	}{
		"bzImage": {bzImage(), testPref + entry64},
		"vmlinux": {vmlinux(), testVMEntry},
	} {
		t.Run(name, func(t *testing.T) {
			mem := newMemory(t, 64*mib)
			id := [16]byte{1, 2, 3, 15: 16}
			s, err := Load(mem, Params{
				Kernel: writeFile(t, tc.image), Initrd: writeFile(t, initrd), Cmdline: "console=ttyS0 panic=-1",
				VCPUs: 2, Devices: testDevices(2), VMGenID: id,
			})
			if err != nil {
				t.Fatal(err)
			}
			if s.RIP != tc.rip || s.RSI != uint64(ZeroPageAddr) {
				t.Errorf("rip %#x rsi %#x, want %#x %#x", s.RIP, s.RSI, tc.rip, uint64(ZeroPageAddr))
			}
			if b := readGuest(t, mem, guestmem.GPA(s.RIP), 4); !bytes.Equal(b, []byte{0xc3, 0xc3, 0xc3, 0xc3}) {
				t.Errorf("code at the entry: % x", b)
			}
			checkBootParams(t, mem, initrd)
			if b := readGuest(t, mem, VMGenIDAddr, 16); !bytes.Equal(b, id[:]) {
				t.Errorf("vm generation id % x", b)
			}
			if b := readGuest(t, mem, 0xf0000+0xfff0, 6); !bytes.Equal(b, []byte{0xba, 0x02, 0x06, 0xb0, 0x01, 0xee}) {
				t.Errorf("reset vector % x", b) // mov dx, 0x602; mov al, 1; out dx, al
			}
			walk(t, readGuest(t, mem, ACPIStart, int(ACPIEnd-ACPIStart)))
		})
	}
}

func checkBootParams(t *testing.T, mem *guestmem.Memory, initrd []byte) {
	t.Helper()
	le := binary.LittleEndian
	zp := readGuest(t, mem, ZeroPageAddr, guestmem.PageSize)
	if le.Uint16(zp[offBootFlag:]) != bootFlag || le.Uint32(zp[offMagic:]) != headerMagic ||
		zp[offLoader] != loaderUnknown {
		t.Errorf("setup header: flag %#x magic %#x loader %#x", le.Uint16(zp[offBootFlag:]), le.Uint32(zp[offMagic:]),
			zp[offLoader])
	}
	if v := le.Uint64(zp[offACPIRSDP:]); v != uint64(ACPIStart) {
		t.Errorf("acpi_rsdp_addr %#x", v)
	}
	cmdline := readGuest(t, mem, guestmem.GPA(le.Uint32(zp[offCmdLinePtr:])), 23)
	if string(cmdline) != "console=ttyS0 panic=-1\x00" {
		t.Errorf("command line %q", cmdline)
	}
	addr, size := le.Uint32(zp[offRamdiskImage:]), int(le.Uint32(zp[offRamdiskSize:]))
	if size != len(initrd) || addr%guestmem.PageSize != 0 || !bytes.Equal(readGuest(t, mem, guestmem.GPA(addr), size),
		initrd) {
		t.Errorf("initrd: %d bytes at %#x", size, addr)
	}
	if n := zp[offE820Entries]; n != 4 {
		t.Errorf("%d e820 entries for RAM below the hole, want 4", n)
	}
}

// TestE820 checks that the map is sorted and its entries do not overlap. It also checks that the
// map has no RAM at addresses that the kernel must not use.
func TestE820(t *testing.T) {
	mem := newMemory(t, 5<<30)
	var end guestmem.GPA
	var ram uint64
	for _, e := range e820(mem) {
		if e.addr < end {
			t.Errorf("entry at %#x overlaps or precedes the one before", uint64(e.addr))
		}
		end = e.addr + guestmem.GPA(e.size)
		if e.kind != e820RAM {
			continue
		}
		ram += e.size
		for _, keep := range []guestmem.GPA{VMGenIDAddr, ACPIStart, VirtioBase, LocalAPICAddr} {
			if keep >= e.addr && keep < end {
				t.Errorf("%#x is RAM for the kernel", uint64(keep))
			}
		}
	}
	if end != 6<<30 {
		t.Errorf("RAM ends at %#x, want 6 GiB (5 GiB around a hole of 1)", uint64(end))
	}
	if want := uint64(5<<30 - (HighRAMStart - LowRAMEnd)); ram != want {
		t.Errorf("%d bytes of RAM, want %d", ram, want)
	}
}

func TestRefused(t *testing.T) {
	edit := func(image []byte, f func(b []byte)) []byte { f(image); return image }
	for name, tc := range map[string]struct {
		image []byte
		want  string
	}{
		"empty":               {nil, "too few"},
		"text":                {bytes.Repeat([]byte("hello "), 500), "neither"},
		"old protocol":        {edit(bzImage(), func(b []byte) { put16(b, offVersion, 0x020b) }), "too old"},
		"32-bit":              {edit(bzImage(), func(b []byte) { put16(b, offXLoadFlags, 0) }), "64-bit entry"},
		"zImage":              {edit(bzImage(), func(b []byte) { b[offLoadFlags] = 0 }), "zImage"},
		"bzImage truncated":   {bzImage()[:9000], "truncated"},
		"bzImage flag":        {edit(bzImage(), func(b []byte) { b[offBootFlag] = 0 }), "boot_flag"},
		"setup beyond end":    {edit(bzImage(), func(b []byte) { b[offSetupSects] = 255 }), "truncated"},
		"low address":         {edit(bzImage(), func(b []byte) { put64(b, offPrefAddress, 0x7000) }), "below"},
		"high address":        {edit(bzImage(), func(b []byte) { put64(b, offPrefAddress, 1<<63) }), "more memory"},
		"wrapping address":    {edit(bzImage(), func(b []byte) { put64(b, offPrefAddress, ^uint64(0)) }), "more memory"},
		"init_size too large": {edit(bzImage(), func(b []byte) { put32(b, offInitSize, 0xffffffff) }), "more memory"},
		"arm":                 {edit(vmlinux(), func(b []byte) { put16(b, 18, 183) }), "not a 64-bit x86"},
		"shared object":       {edit(vmlinux(), func(b []byte) { put16(b, 16, 3) }), "vmlinux"},
		"no headers":          {edit(vmlinux(), func(b []byte) { put16(b, 56, 0) }), "program headers"},
		"headers beyond end":  {edit(vmlinux(), func(b []byte) { put64(b, 32, ^uint64(0)-8) }), "truncated"},
		"segment beyond end":  {vmlinux()[:5000], "truncated"},
		"filesz over memsz":   {edit(vmlinux(), func(b []byte) { put64(b, elfHeaderSize+40, 1) }), "damaged"},
		"segment too large":   {edit(vmlinux(), func(b []byte) { put64(b, elfHeaderSize+40, 1<<62) }), "more memory"},
		"segment over tables": {edit(vmlinux(), func(b []byte) { put64(b, elfHeaderSize+24, 0x9000) }), "below"},
		"entry outside":       {edit(vmlinux(), func(b []byte) { put64(b, 24, 0xffffffff81000000) }), "entry point"},
	} {
		_, err := Load(newMemory(t, 64*mib), Params{Kernel: writeFile(t, tc.image), VCPUs: 1})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tc.want)
		}
	}
}

func TestParamsRefused(t *testing.T) {
	kern := writeFile(t, bzImage())
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for name, p := range map[string]Params{
		"no kernel":        {VCPUs: 1},
		"directory":        {VCPUs: 1, Kernel: dir},
		"no vCPU":          {Kernel: kern},
		"too many vCPUs":   {Kernel: kern, VCPUs: vm.MaxVCPUs + 1},
		"long cmdline":     {Kernel: kern, VCPUs: 1, Cmdline: strings.Repeat("x", CmdlineMax+1)},
		"cmdline with NUL": {Kernel: kern, VCPUs: 1, Cmdline: "a\x00b"},
		"empty initrd":     {Kernel: kern, VCPUs: 1, Initrd: writeFile(t, nil)},
		"initrd too large": {Kernel: kern, VCPUs: 1, Initrd: writeFile(t, make([]byte, 50*mib))},
	} {
		if _, err := Load(newMemory(t, 64*mib), p); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for _, size := range []uint64{guestmem.PageSize, mib, 17 * mib} {
		if _, err := Load(newMemory(t, size), Params{Kernel: kern, VCPUs: 1}); err == nil {
			t.Errorf("%d bytes of memory: accepted", size)
		}
	}
}

// TestState translates addresses with the page tables, and decodes the GDT, as the CPU would.
func TestState(t *testing.T) {
	mem := newMemory(t, 2*mib)
	s, err := newState(mem, testPref)
	if err != nil {
		t.Fatal(err)
	}
	u64 := func(gpa uint64) uint64 { return binary.LittleEndian.Uint64(readGuest(t, mem, guestmem.GPA(gpa), 8)) }
	for _, va := range []uint64{0, testPref, 0xd0000123, 0xffffffff} {
		const addr = 0xffffffffff000
		pml4e := u64(s.CR3 + va>>39&511*8)
		pdpte := u64(pml4e&addr + va>>30&511*8)
		pde := u64(pdpte&addr + va>>21&511*8)
		if pde&(pageEntryPresent|pageEntryWrite|pageEntryLarge) != pageEntryPresent|pageEntryWrite|pageEntryLarge {
			t.Fatalf("pde of %#x is %#x", va, pde)
		}
		if pa := pde&^0x1fffff | va&0x1fffff; pa != va {
			t.Errorf("%#x maps to %#x", va, pa)
		}
	}
	// Flat 64-bit code and flat data, as defined in boot.rst.
	for sel, want := range map[uint16]uint64{bootCS: 0x00af9b000000ffff, bootDS: 0x00cf93000000ffff,
		bootTR: 0x00008b0000000067} {
		if got := u64(s.GDT.Base + uint64(sel)); got != want {
			t.Errorf("descriptor %#x is %#016x, want %#016x", sel, got, want)
		}
	}
	if s.GDT.Limit < bootTR+15 {
		t.Errorf("GDT limit %#x does not reach the task state's descriptor", s.GDT.Limit)
	}
}

func TestCmdline(t *testing.T) {
	s := vm.Cmdline("norandmaps", "root=/dev/vda")
	if err := checkCmdline(s, CmdlineMax); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(s, " norandmaps root=/dev/vda") || !strings.Contains(s, "clocksource=kvm-clock") {
		t.Errorf("command line %q", s)
	}
}

func FuzzLoadKernel(f *testing.F) {
	f.Add(bzImage())
	f.Add(vmlinux())
	mem := newMemory(f, 32*mib)
	f.Fuzz(func(t *testing.T, image []byte) {
		kern, err := loadKernel(mem, file{r: bytes.NewReader(image), size: int64(len(image))})
		if err != nil {
			return
		}
		if kern.end > lowRAMEnd(mem) || kern.entry < MinKernelAddr || kern.entry >= kern.end {
			t.Errorf("entry %#x end %#x outside RAM", uint64(kern.entry), uint64(kern.end))
		}
		if len(kern.header) > offHeaderEnd-offSetupSects {
			t.Errorf("header of %d bytes", len(kern.header))
		}
	})
}
