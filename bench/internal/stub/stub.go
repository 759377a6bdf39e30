// Package stub is a guest without an operating system. It is an ELF file that forkd's loader boots
// like a kernel, with about a hundred bytes of code. With it, forks can be measured on a KVM that
// cannot run Linux, such as kvm-pvm.
//
// The code sets up tables and enters user mode (CPL 3). In user mode it reads a register of a
// device repeatedly, until a number in memory changes. With forkd's VMM, that number is the VM
// generation identifier, which a restore changes. So a copy ends the loop and answers: it traps to
// kernel mode, writes the last value of the register to the serial port, once, and halts. The
// parent never answers.
//
// The stub has no agent and no interrupts. So the cost of its forks says nothing about the work of
// a Linux guest after a fork.
package stub

import (
	"encoding/binary"

	"github.com/forkd/forkd/internal/vmm/bareguest"
	"github.com/forkd/forkd/internal/vmm/boot"
)

// Answer is the byte that a forked stub writes to its console. It is the first byte of the magic
// value "virt", which every virtio-mmio device has in its first register (virtio 1.2 §4.2.2).
const Answer = 'v'

// Layout has the guest physical addresses that the stub reads. They differ between VMMs.
type Layout struct {
	Register   uint32 // address of a virtio-mmio device's registers, from 3 to 4 GiB; a read causes an exit to the VMM
	Generation uint32 // address of 8 bytes that are different in a copy; in the first 2 MiB of RAM
}

// Note is used as Layout.Generation for VMMs that restore memory unchanged. It is the address of 8
// bytes of RAM that the stub does not use otherwise. A program that has made a snapshot can write
// another number to this address, so that copies notice that they are copies.
const Note = loadAddr + imageSize

// Guest physical layout, from loadAddr on. Every table has its own page.
const (
	loadAddr = uint32(boot.MinKernelAddr)

	userCode   = 0x100 // after the entry code
	trapCode   = 0x200 // handler of invalid instructions
	bootCode   = 0x280 // entry point for a Multiboot loader
	bootHeader = 0x300
	pml4       = 0x1000
	pdpt       = 0x2000
	dirRAM     = 0x3000 // maps addresses from 0 on
	dirDevices = 0x4000 // maps addresses from 3 GiB on
	gdt        = 0x5000
	gdtPointer = 0x5800
	idtPointer = 0x5810
	idt        = 0x6000
	tss        = 0x7000
	stackTop   = 0x9000
	imageSize  = 0x9000
)

// programAddr is the usual address of x86-64 programs.
const programAddr = 0x400000

// Selectors in the GDT. The selectors of user mode include the requested privilege level.
const (
	selKernelCode = 0x08
	selUserData   = 0x10 | 3
	selUserCode   = 0x18 | 3
	selTSS        = 0x20
	gdtLimit      = 0x2f
)

// Page table bits, Intel SDM vol. 3 §4.5. Device pages are uncached, as in an operating system.
const (
	pagePresent  = 1 << 0
	pageWrite    = 1 << 1
	pageUser     = 1 << 2
	pageUncached = 1 << 4
	pageLarge    = 1 << 7

	dirBits = pagePresent | pageWrite | pageUser
)

const (
	// The user code leaves user mode with an invalid instruction, because on kvm-pvm no other trap
	// works without more preparation. Software interrupts, and port output with IOPL 3, cause a
	// triple fault. SYSCALL returns at the wrong privilege level.
	trapVector = 6
	// userFlags disables interrupts. Bit 1 is always one.
	userFlags = 1 << 1
)

// Kernel returns the ELF file for forkd-vmm.
func Kernel() []byte {
	return Layout{Register: uint32(boot.VirtioBase), Generation: uint32(boot.VMGenIDAddr)}.Kernel()
}

// Kernel returns the ELF file for a VMM that enters it in 64-bit mode, like a Linux kernel.
func (l Layout) Kernel() []byte {
	return bareguest.ELF(l.image(), loadAddr)
}

// Multiboot returns a kernel for a VMM that enters it in 32-bit mode. The file has a header that
// contains the addresses (Multiboot Specification 0.6.96 §3.1).
func (l Layout) Multiboot() []byte {
	const magic, addressesAreValid = 0x1badb002, 1 << 16
	m := l.image()
	copy(m[bootCode:], enter64())
	var sum uint32 // the sum of the first three fields must be 0
	sum -= magic + addressesAreValid
	for i, v := range []uint32{magic, addressesAreValid, sum, loadAddr + bootHeader, loadAddr,
		loadAddr + imageSize, Note + 8, loadAddr + bootCode} { // the loader also clears the Note
		binary.LittleEndian.PutUint32(m[bootHeader+4*i:], v)
	}
	return m
}

// enter64 returns code that switches from 32-bit mode without paging to 64-bit mode, and jumps to
// the entry code (Intel SDM vol. 3 §9.8.5).
func enter64() []byte {
	c := []byte{
		0x0f, 0x20, 0xe0, 0x83, 0xc8, 0x20, 0x0f, 0x22, 0xe0, // CR4 |= PAE
		0xb9, 0x80, 0x00, 0x00, 0xc0, 0x0f, 0x32, // EFER |= LME
		0x0d, 0x00, 0x01, 0x00, 0x00, 0x0f, 0x30,
	}
	c = append(abs32(append(c, 0xb8), loadAddr+pml4), 0x0f, 0x22, 0xd8)    // CR3 = pml4
	c = append(c, 0x0f, 0x20, 0xc0, 0x0d, 0, 0, 0, 0x80, 0x0f, 0x22, 0xc0) // CR0 |= PG
	c = abs32(append(c, 0x0f, 0x01, 0x15), loadAddr+gdtPointer)            // lgdt gdtPointer
	return append(abs32(append(c, 0xea), loadAddr), selKernelCode, 0)      // ljmp to the entry code
}

// Program returns a Linux program for containers. It prints the same answer as a forked stub, and
// then waits until it is killed. It needs no other files.
func Program() []byte {
	const write, pause = 1, 34 // system calls of x86-64
	c := []byte{
		0xb8, write, 0, 0, 0, // mov $write,%eax
		0xbf, 1, 0, 0, 0, // mov $1,%edi: standard output
		0x48, 0x8d, 0x35, 16, 0, 0, 0, // lea answer(%rip),%rsi
		0xba, 1, 0, 0, 0, // mov $1,%edx: one byte
		0x0f, 0x05, // syscall
		0xb8, pause, 0, 0, 0, // mov $pause,%eax
		0x0f, 0x05, // syscall
		0xeb, 0xf7, // jmp to the mov
		Answer,
	}
	return bareguest.ELF(c, programAddr)
}

// image returns the content of guest memory from loadAddr on.
func (l Layout) image() []byte {
	m := make([]byte, imageSize)
	copy(m, entryCode())
	copy(m[userCode:], l.userLoop())
	copy(m[trapCode:], []byte{
		0x66, 0xba, boot.SerialPort & 0xff, boot.SerialPort >> 8, // mov $SerialPort,%dx
		0xee,       // out %al,(%dx)
		0xf4,       // hlt
		0xeb, 0xfd, // jmp to the hlt
	})
	l.putTables(m)
	return m
}

// abs32 appends a 32-bit number to code.
func abs32(code []byte, v uint32) []byte { return binary.LittleEndian.AppendUint32(code, v) }

// entryCode returns code that runs in 64-bit mode at CPL 0. The code enters user mode and does not
// return.
func entryCode() []byte {
	c := abs32([]byte{0x0f, 0x01, 0x14, 0x25}, loadAddr+gdtPointer)   // lgdt gdtPointer
	c = abs32(append(c, 0x0f, 0x01, 0x1c, 0x25), loadAddr+idtPointer) // lidt idtPointer
	c = abs32(append(c, 0xb8), loadAddr+pml4)                         // mov $pml4,%eax
	c = append(c, 0x0f, 0x22, 0xd8)                                   // mov %rax,%cr3
	c = append(abs32(append(c, 0xb8), selTSS), 0x0f, 0x00, 0xd8)      // mov $selTSS,%eax; ltr %ax
	c = abs32(append(c, 0xbc), loadAddr+stackTop)                     // mov $stackTop,%esp
	for _, v := range []uint32{selUserData, 0, userFlags, selUserCode, loadAddr + userCode} {
		c = abs32(append(c, 0x68), v) // push: ss, rsp, rflags, cs, rip
	}
	return append(c, 0x48, 0xcf) // iretq
}

// userLoop returns the code that runs in user mode (CPL 3).
func (l Layout) userLoop() []byte {
	c := abs32([]byte{0xbe}, l.Register)                       // mov $Register,%esi
	c = abs32(append(c, 0x48, 0x8b, 0x1c, 0x25), l.Generation) // mov Generation,%rbx
	loop := len(c)
	c = append(c, 0x8b, 0x06)                                  // mov (%rsi),%eax
	c = abs32(append(c, 0x48, 0x3b, 0x1c, 0x25), l.Generation) // cmp Generation,%rbx
	c = append(c, 0x74, byte(loop-len(c)-2))                   // je loop
	return append(c, 0x0f, 0x0b)                               // ud2
}

func (l Layout) putTables(m []byte) {
	le := binary.LittleEndian
	link := func(at int, table uint32) { le.PutUint64(m[at:], uint64(loadAddr+table)|dirBits) }
	link(pml4, pdpt)
	link(pdpt, dirRAM)
	link(pdpt+3*8, dirDevices)
	le.PutUint64(m[dirRAM:], dirBits|pageLarge)
	const large = 2 << 20
	window := uint64(l.Register) &^ (large - 1)
	le.PutUint64(m[dirDevices+window>>21%512*8:], window|dirBits|pageLarge|pageUncached)

	// Descriptors: Intel SDM vol. 3 §3.4.5; present, accessed, 4 KiB granularity, no base.
	le.PutUint64(m[gdt+selKernelCode:], 0x00af9b000000ffff)
	le.PutUint64(m[gdt+selUserData&^3:], 0x00cff3000000ffff)
	le.PutUint64(m[gdt+selUserCode&^3:], 0x00affb000000ffff)
	// A 64-bit TSS, §7.2.3. Its only purpose is to define the stack for the trap.
	const limit = 0x67
	base := uint64(loadAddr + tss)
	le.PutUint64(m[gdt+selTSS:], limit|base&0xffffff<<16|0x89<<40|base>>24&0xff<<56)
	le.PutUint64(m[tss+4:], uint64(loadAddr+stackTop)) // RSP0
	le.PutUint16(m[tss+0x66:], limit+1)                // no I/O bitmap

	// An interrupt gate, §6.14.1.
	handler := uint64(loadAddr + trapCode)
	le.PutUint64(m[idt+trapVector*16:], handler&0xffff|selKernelCode<<16|0x8e00<<32|handler>>16<<48)

	pointer := func(at int, table uint32, limit uint16) {
		le.PutUint16(m[at:], limit)
		le.PutUint64(m[at+2:], uint64(loadAddr+table))
	}
	pointer(gdtPointer, gdt, gdtLimit)
	pointer(idtPointer, idt, (trapVector+1)*16-1)
}
