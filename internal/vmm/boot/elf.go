package boot

import (
	"encoding/binary"
	"fmt"

	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// The ELF-64 header and program header, System V ABI (gABI 4.1, chapters 4 and 5). Package
// debug/elf is not used, because it also parses sections, symbols and compressed data, which a boot
// loader does not need.
const (
	elfMagic      = "\x7fELF"
	elfClass64    = 2
	elfDataLSB    = 1
	elfTypeExec   = 2
	elfMachineX86 = 62
	elfTypeLoad   = 1
	elfHeaderSize = 64
	elfProgSize   = 56

	// maxProgHeaders is the maximum number of program headers. The file of a Linux kernel has about
	// 5.
	maxProgHeaders = 64
	// maxInitrdELF permits an initrd anywhere below 4 GiB, because a vmlinux does not name a limit.
	maxInitrdELF = guestmem.HoleEnd
)

type elfSegment struct {
	offset int64
	paddr  guestmem.GPA
	filesz uint64
	memsz  uint64
}

// loadELF loads the segments of a vmlinux to their physical addresses. The entry point is the
// physical address of startup_64. That code expects the same register values as the 64-bit entry of
// a bzImage (arch/x86/kernel/head_64.S).
func loadELF(mem *guestmem.Memory, f file, head []byte) (kernel, error) {
	segs, err := elfSegments(f, head)
	if err != nil {
		return kernel{}, fmt.Errorf("ELF: %w", err)
	}
	entry := guestmem.GPA(binary.LittleEndian.Uint64(head[24:]))
	k := kernel{entry: entry, initrdEnd: maxInitrdELF, cmdlineMax: CmdlineMax}
	entryLoaded := false
	for i, s := range segs {
		if err := checkPlace(mem, s.paddr, s.memsz); err != nil {
			return kernel{}, fmt.Errorf("ELF: segment %d: %w", i, err)
		}
		if err := f.readInto(mem, s.paddr, s.offset, s.filesz); err != nil {
			return kernel{}, fmt.Errorf("ELF: segment %d: %w", i, err)
		}
		// The bytes from filesz to memsz need no clearing, because fresh guest memory is zero.
		k.end = max(k.end, s.paddr+guestmem.GPA(s.memsz))
		if entry >= s.paddr && uint64(entry-s.paddr) < s.filesz {
			entryLoaded = true
		}
	}
	if !entryLoaded {
		return kernel{}, fmt.Errorf("ELF: the entry point %#x is in no loaded segment: is this an uncompressed x86-64 vmlinux?",
			uint64(entry))
	}
	return k, nil
}

// elfSegments returns the loadable segments of f. The parameter head has the first bytes of f.
func elfSegments(f file, head []byte) ([]elfSegment, error) {
	le := binary.LittleEndian
	if head[4] != elfClass64 || head[5] != elfDataLSB || le.Uint16(head[18:]) != elfMachineX86 {
		return nil, fmt.Errorf("not a 64-bit x86 file (class %d, data %d, machine %d)", head[4], head[5],
			le.Uint16(head[18:]))
	}
	if t := le.Uint16(head[16:]); t != elfTypeExec {
		return nil, fmt.Errorf("type %d, want an executable (%d): is this a vmlinux?", t, elfTypeExec)
	}
	off, size, count := le.Uint64(head[32:]), le.Uint16(head[54:]), int(le.Uint16(head[56:]))
	if size != elfProgSize || count == 0 || count > maxProgHeaders {
		return nil, fmt.Errorf("%d program headers of %d bytes: want 1 to %d of %d bytes", count, size, maxProgHeaders,
			elfProgSize)
	}
	if off > uint64(f.size) || uint64(count*elfProgSize) > uint64(f.size)-off {
		return nil, fmt.Errorf("program headers at %d lie beyond the end of the file (%d bytes): it is truncated", off,
			f.size)
	}
	table := make([]byte, count*elfProgSize)
	if n, err := f.r.ReadAt(table, int64(off)); n != len(table) {
		return nil, fmt.Errorf("read program headers: %w", err)
	}
	var segs []elfSegment
	for i := range count {
		p := table[i*elfProgSize:]
		if le.Uint32(p) != elfTypeLoad {
			continue
		}
		s := elfSegment{paddr: guestmem.GPA(le.Uint64(p[24:])), filesz: le.Uint64(p[32:]), memsz: le.Uint64(p[40:])}
		fileOff := le.Uint64(p[8:])
		if fileOff > uint64(f.size) || s.filesz > s.memsz {
			return nil, fmt.Errorf("program header %d: offset %d, %d bytes in the file, %d in memory: the file is damaged",
				i, fileOff, s.filesz, s.memsz)
		}
		s.offset = int64(fileOff)
		segs = append(segs, s)
	}
	return segs, nil
}
