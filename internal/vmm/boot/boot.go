// Package boot loads a Linux kernel into guest memory and returns the state in which the first vCPU
// must enter the kernel. It loads the kernel, the initrd, the boot parameters, page tables, a
// descriptor table, and the ACPI tables that describe the machine.
//
// It defines the guest physical map (layout.go) and makes no calls to KVM. Package machine
// registers the memory, sets the returned State, and emulates the devices at the addresses that
// package boot defines. Package boot boots only x86-64 Linux at its 64-bit entry, from a bzImage or
// an ELF vmlinux. The package has no firmware. It does not support 16-bit or 32-bit entries, Xen
// PVH or Windows.
//
// Kernel files are provided by users, so every number in them is checked before it is used.
package boot

import (
	"fmt"
	"io"
	"os"

	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// MMIODevice is a virtio-mmio device in the ACPI tables.
type MMIODevice struct {
	Addr guestmem.GPA // first byte of its register window
	Size uint32       // size of the window, in bytes
	GSI  uint32       // the device's interrupt: edge triggered, active high
}

// Params describes a boot. Load reads the files from offset 0, does not move their offsets, and
// does not close them.
type Params struct {
	Kernel  *os.File // bzImage (boot protocol 2.12 or later) or ELF vmlinux
	Initrd  *os.File // nil for none
	Cmdline string   // kernel command line, without a trailing zero; see vm.Cmdline
	VCPUs   int      // 1 to vm.MaxVCPUs; the local APIC of vCPU i has the identifier i
	Devices []MMIODevice
	VMGenID [16]byte // first value of the VM generation identifier
}

// Load writes to mem everything that the guest needs to start. The memory must contain only zeros.
// It returns the state of the first vCPU.
func Load(mem *guestmem.Memory, p Params) (State, error) {
	if p.VCPUs < 1 || p.VCPUs > vm.MaxVCPUs {
		return State{}, fmt.Errorf("boot: %d vCPUs: want 1 to %d", p.VCPUs, vm.MaxVCPUs)
	}
	kfile, err := openFile("kernel", p.Kernel)
	if err != nil {
		return State{}, err
	}
	kern, err := loadKernel(mem, kfile)
	if err != nil {
		return State{}, fmt.Errorf("load kernel: %w", err)
	}
	zp := newZeroPage(kern.header)
	if err := loadCmdline(mem, zp, p.Cmdline, kern.cmdlineMax); err != nil {
		return State{}, err
	}
	if p.Initrd != nil {
		ifile, err := openFile("initrd", p.Initrd)
		if err != nil {
			return State{}, err
		}
		if err := loadInitrd(mem, zp, ifile, kern); err != nil {
			return State{}, fmt.Errorf("load initrd: %w", err)
		}
	}
	if err := loadACPI(mem, p); err != nil {
		return State{}, fmt.Errorf("write acpi tables: %w", err)
	}
	if err := mem.WriteAt(p.VMGenID[:], VMGenIDAddr); err != nil {
		return State{}, fmt.Errorf("write vm generation id: %w", err)
	}
	if err := mem.WriteAt(resetVector(), ResetVectorAddr); err != nil {
		return State{}, fmt.Errorf("write reset vector: %w", err)
	}
	if err := zp.setE820(e820(mem)); err != nil {
		return State{}, err
	}
	if err := mem.WriteAt(zp.bytes[:], ZeroPageAddr); err != nil {
		return State{}, fmt.Errorf("write boot parameters: %w", err)
	}
	return newState(mem, kern.entry)
}

// file is a file from a client, with its length when it was opened.
type file struct {
	r    io.ReaderAt
	size int64
}

func openFile(what string, f *os.File) (file, error) {
	if f == nil {
		return file{}, fmt.Errorf("boot: no %s file donated", what)
	}
	st, err := f.Stat()
	if err != nil {
		return file{}, fmt.Errorf("stat %s: %w", what, err)
	}
	if !st.Mode().IsRegular() {
		return file{}, fmt.Errorf("%s is not a regular file (%s)", what, st.Mode().Type())
	}
	return file{r: f, size: st.Size()}, nil
}

// readInto reads n bytes, which begin at the offset off in the file, into guest memory at gpa.
func (f file) readInto(mem *guestmem.Memory, gpa guestmem.GPA, off int64, n uint64) error {
	if off < 0 || off > f.size || n > uint64(f.size-off) {
		return fmt.Errorf("%d bytes at offset %d lie beyond the end of the file (%d bytes): it is truncated", n, off, f.size)
	}
	if n == 0 {
		return nil
	}
	view, err := mem.WriteView(gpa, int(n))
	if err != nil {
		return fmt.Errorf("%w: give the VM more memory", err)
	}
	if got, err := f.r.ReadAt(view, off); got != len(view) {
		return fmt.Errorf("read %d bytes at offset %d: %w", n, off, err)
	}
	return nil
}

// loadCmdline writes the command line to guest memory, and its address to the boot parameters.
func loadCmdline(mem *guestmem.Memory, zp *zeroPage, cmdline string, max uint32) error {
	if err := checkCmdline(cmdline, max); err != nil {
		return err
	}
	if err := mem.WriteAt(append([]byte(cmdline), 0), CmdlineAddr); err != nil {
		return fmt.Errorf("write kernel command line: %w", err)
	}
	zp.put32(offCmdLinePtr, uint32(CmdlineAddr))
	return nil
}

// loadInitrd reads the initrd into guest memory, at the highest page-aligned address in low RAM
// that the kernel accepts. The initrd must be far from the kernel, because the kernel needs the
// memory above itself while it unpacks itself.
func loadInitrd(mem *guestmem.Memory, zp *zeroPage, f file, kern kernel) error {
	if f.size <= 0 {
		return fmt.Errorf("the file is empty")
	}
	top := min(lowRAMEnd(mem), kern.initrdEnd)
	size := uint64(f.size)
	if size > uint64(top) || (top-guestmem.GPA(size))&^(guestmem.PageSize-1) < kern.end {
		return fmt.Errorf("%d bytes do not fit between the kernel's end %#x and %#x: give the VM more memory",
			size, uint64(kern.end), uint64(top))
	}
	addr := (top - guestmem.GPA(size)) &^ (guestmem.PageSize - 1)
	if err := f.readInto(mem, addr, 0, size); err != nil {
		return err
	}
	// The address and the size are below 4 GiB, so the ext_ramdisk fields stay zero.
	zp.put32(offRamdiskImage, uint32(addr))
	zp.put32(offRamdiskSize, uint32(size))
	return nil
}

// checkCmdline returns an error if the kernel would truncate or misread s. The parameter max is the
// kernel's own limit, in bytes.
func checkCmdline(s string, max uint32) error {
	if limit := min(int64(max), CmdlineMax); int64(len(s)) > limit {
		return fmt.Errorf("kernel command line has %d bytes, this kernel takes %d: shorten it", len(s), limit)
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return fmt.Errorf("kernel command line: byte %#02x at offset %d: want printable ASCII", s[i], i)
		}
	}
	return nil
}
