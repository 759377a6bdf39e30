package boot

import (
	"encoding/binary"
	"fmt"

	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// kernel describes a kernel that is loaded into guest memory.
type kernel struct {
	entry      guestmem.GPA // address of the 64-bit entry
	end        guestmem.GPA // end of the memory that the kernel uses during its start
	initrdEnd  guestmem.GPA // the initrd must end at or below this address
	cmdlineMax uint32       // longest command line in bytes, without the final zero
	header     []byte       // setup header from offSetupSects on; nil for a vmlinux
}

// minBootProtocol is 2.12, the first version whose header has xloadflags. These flags say whether
// the kernel has a 64-bit entry.
const minBootProtocol = 0x020c

// Constants of a bzImage: a bit of xloadflags, the size of a sector in bytes, and an offset.
const (
	xlfKernel64 = 1 << 0
	sectorSize  = 512
	// entry64 is the offset of the 64-bit entry from the load address of the protected-mode kernel.
	entry64 = 0x200
)

// setupHeaderBytes is the number of bytes that loadKernel reads first, to learn how to load the
// rest of a file.
const setupHeaderBytes = offHeaderEnd

// loadKernel loads a kernel file, which is a bzImage or a vmlinux.
func loadKernel(mem *guestmem.Memory, f file) (kernel, error) {
	head := make([]byte, setupHeaderBytes)
	if f.size < int64(len(head)) {
		return kernel{}, fmt.Errorf("%d bytes are too few for a kernel: want a bzImage or an ELF vmlinux", f.size)
	}
	if n, err := f.r.ReadAt(head, 0); n != len(head) {
		return kernel{}, fmt.Errorf("read its header: %w", err)
	}
	switch {
	case string(head[:len(elfMagic)]) == elfMagic:
		return loadELF(mem, f, head)
	case binary.LittleEndian.Uint32(head[offMagic:]) == headerMagic:
		return loadBzImage(mem, f, head)
	}
	return kernel{}, fmt.Errorf("neither a bzImage nor an ELF file (it starts with % x)", head[:4])
}

// loadBzImage loads the protected-mode part of a bzImage to the preferred address in its header.
func loadBzImage(mem *guestmem.Memory, f file, head []byte) (kernel, error) {
	le := binary.LittleEndian
	if v := le.Uint16(head[offBootFlag:]); v != bootFlag {
		return kernel{}, fmt.Errorf("bzImage: boot_flag is %#x, want %#x: the file is damaged", v, bootFlag)
	}
	if v := le.Uint16(head[offVersion:]); v < minBootProtocol {
		return kernel{}, fmt.Errorf("bzImage: boot protocol %d.%02d is too old: use Linux 3.8 or later", v>>8, v&0xff)
	}
	if head[offLoadFlags]&loadedHigh == 0 {
		return kernel{}, fmt.Errorf("bzImage: it is a zImage (loadflags lacks LOADED_HIGH): build a bzImage")
	}
	if le.Uint16(head[offXLoadFlags:])&xlfKernel64 == 0 {
		return kernel{}, fmt.Errorf("bzImage: no 64-bit entry (xloadflags lacks XLF_KERNEL_64): use an x86-64 kernel")
	}
	sects := int64(head[offSetupSects])
	if sects == 0 {
		sects = 4 // 0 means 4 (boot.rst, "setup_sects")
	}
	off := (sects + 1) * sectorSize
	code := int64(le.Uint32(head[offSysSize:])) * 16
	if off+max(code, entry64+1) > f.size {
		return kernel{}, fmt.Errorf("bzImage: the file has %d bytes, its header names %d: it is truncated", f.size, off+code)
	}
	// Load the whole rest of the file, as other boot loaders do, because a checksum may follow the
	// code.
	size := uint64(f.size - off)
	addr := guestmem.GPA(le.Uint64(head[offPrefAddress:]))
	need := max(size, uint64(le.Uint32(head[offInitSize:])))
	if err := checkPlace(mem, addr, need); err != nil {
		return kernel{}, fmt.Errorf("bzImage: %w", err)
	}
	if err := f.readInto(mem, addr, off, size); err != nil {
		return kernel{}, fmt.Errorf("bzImage: %w", err)
	}
	end := min(int(offMagic)+int(head[offJump+1]), offHeaderEnd)
	return kernel{
		entry:      addr + entry64,
		end:        addr + guestmem.GPA(need),
		initrdEnd:  guestmem.GPA(le.Uint32(head[offInitrdMax:])) + 1,
		cmdlineMax: le.Uint32(head[offCmdlineSize:]),
		header:     head[offSetupSects:end],
	}, nil
}

// checkPlace returns an error if a kernel of size bytes cannot be loaded at addr.
func checkPlace(mem *guestmem.Memory, addr guestmem.GPA, size uint64) error {
	top := lowRAMEnd(mem)
	if addr < MinKernelAddr {
		return fmt.Errorf("it wants to be at %#x, below %#x where the boot data is", uint64(addr), uint64(MinKernelAddr))
	}
	if addr > top || size > uint64(top-addr) {
		return fmt.Errorf("it needs %d bytes at %#x, RAM ends at %#x: give the VM more memory", size, uint64(addr),
			uint64(top))
	}
	return nil
}
