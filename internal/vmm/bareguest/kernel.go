package bareguest

import (
	"encoding/binary"
	"slices"

	"github.com/forkd/forkd/internal/vmm/boot"
)

// Offsets of the guest's parts from loadAddr. The guest runs at CPL 0 with the loader's page
// tables, which map addresses below 4 GiB to themselves.
const (
	loadAddr = uint32(boot.MinKernelAddr)

	handlers   = 0x100 // code for each Kind, at intervals of handlerSize bytes
	faultCode  = 0x800
	idtPointer = 0x900
	noIDT      = 0x910 // pointer to an empty IDT
	idt        = 0x1000
	program    = 0x2000

	handlerSize = 32
	vectors     = 32
)

// Done is the last text that a Kernel guest writes to the serial port.
const Done = "\nbare guest: done\n"

// Kernel returns an ELF file that the machine boots like a Linux kernel. The guest executes p,
// writes Done to the serial port, and halts.
func Kernel(p Program) []byte {
	p = slices.Clone(p)
	for reg := range uint32(4) { // IER, FCR, LCR and MCR: no interrupts, no FIFO, no divisor latch, no loopback
		p = append(p, Op{Out8, boot.SerialPort + 1 + reg, 0})
	}
	for _, c := range []byte(Done) {
		p = append(p, Op{Out8, boot.SerialPort, uint64(c)})
	}
	p = append(p, Op{Kind: End})
	m := make([]byte, program)
	copy(m, entry())
	next := len(entry()) - len(dispatch()) // offset of the dispatcher in the code
	for k, code := range handlerCode() {
		at := handlers + k*handlerSize
		n := copy(m[at:at+handlerSize], code)
		m[at+n] = 0xe9 // jmp dispatcher
		binary.LittleEndian.PutUint32(m[at+n+1:], uint32(next-(at+n+5)))
	}
	copy(m[faultCode:], []byte{
		0x48, 0x83, 0xc4, 0x08, // add $8,%rsp: pop the error code
		0x48, 0x83, 0x04, 0x24, 0x02, // addq $2,(%rsp): skip RDMSR or WRMSR, which have two bytes
		0x48, 0xcf, // iretq
	})
	putIDT(m)
	return ELF(append(m, p.Encode()...), loadAddr)
}

// abs32 appends a 32-bit number to code.
func abs32(code []byte, v uint32) []byte { return binary.LittleEndian.AppendUint32(code, v) }

func entry() []byte {
	c := abs32([]byte{0x0f, 0x01, 0x1c, 0x25}, loadAddr+idtPointer) // lidt idtPointer
	c = append(c, 0x45, 0x31, 0xff)                                 // xor %r15d,%r15d: count of rounds
	c = abs32(append(c, 0xbe), loadAddr+program)                    // mov $program,%esi
	return append(c, dispatch()...)
}

// dispatch returns code that reads the Op at RSI and jumps to the code for its Kind, with Addr in
// RDI and Value in RBX.
func dispatch() []byte {
	c := []byte{
		0x0f, 0xb6, 0x06, // movzbl (%rsi),%eax
		0x8b, 0x7e, 0x04, // mov 4(%rsi),%edi
		0x48, 0x8b, 0x5e, 0x08, // mov 8(%rsi),%rbx
		0x48, 0x83, 0xc6, opSize, // add $opSize,%rsi
		0xc1, 0xe0, 0x05, // shl $5,%eax: times handlerSize
	}
	c = abs32(append(c, 0x05), loadAddr+handlers) // add $handlers,%eax
	return append(c, 0xff, 0xe0)                  // jmp *%rax
}

// handlerCode returns the code for each Kind. The jump back to the dispatcher is not included,
// because Kernel adds it.
func handlerCode() [Kinds][]byte {
	rewind := abs32([]byte{0xbe}, loadAddr+program) // mov $program,%esi
	return [Kinds][]byte{
		End: {0xf4, 0xeb, 0xfd}, // hlt; jmp to the hlt; interrupts are disabled
		// mov %rbx,(%rdi)
		Store8: {0x88, 0x1f}, Store16: {0x66, 0x89, 0x1f}, Store32: {0x89, 0x1f}, Store64: {0x48, 0x89, 0x1f},
		// mov (%rdi),%rax
		Load8: {0x8a, 0x07}, Load16: {0x66, 0x8b, 0x07}, Load32: {0x8b, 0x07}, Load64: {0x48, 0x8b, 0x07},
		// mov %edi,%edx; mov %ebx,%eax; out %eax,(%dx)
		Out8:  {0x89, 0xfa, 0x88, 0xd8, 0xee},
		Out16: {0x89, 0xfa, 0x89, 0xd8, 0x66, 0xef},
		Out32: {0x89, 0xfa, 0x89, 0xd8, 0xef},
		// mov %edi,%edx; in (%dx),%eax
		In8: {0x89, 0xfa, 0xec}, In16: {0x89, 0xfa, 0x66, 0xed}, In32: {0x89, 0xfa, 0xed},
		// push %rsi; mov %edi,%edx; mov %rbx,%rcx; rewind; rep outsb; pop %rsi
		Outs: append(append([]byte{0x56, 0x89, 0xfa, 0x48, 0x89, 0xd9}, rewind...), 0xf3, 0x6e, 0x5e),
		// lea 1(%rbx),%rcx; loop to itself
		Spin: {0x48, 0x8d, 0x4b, 0x01, 0xe2, 0xfe},
		// mov %ebx,%eax; mov %edi,%ecx; cpuid
		CPUID: {0x89, 0xd8, 0x89, 0xf9, 0x0f, 0xa2},
		// mov %edi,%ecx; rdmsr
		ReadMSR: {0x89, 0xf9, 0x0f, 0x32},
		// mov %edi,%ecx; mov %ebx,%eax; mov %rbx,%rdx; shr $32,%rdx; wrmsr
		WriteMSR: {0x89, 0xf9, 0x89, 0xd8, 0x48, 0x89, 0xda, 0x48, 0xc1, 0xea, 0x20, 0x0f, 0x30},
		// lidt noIDT; ud2
		Fault: append(abs32([]byte{0x0f, 0x01, 0x1c, 0x25}, loadAddr+noIDT), 0x0f, 0x0b),
		// jmp *%rdi
		Jump: {0xff, 0xe7},
		// inc %r15; cmp %rbx,%r15; jae over the rewind
		Again: append([]byte{0x49, 0xff, 0xc7, 0x49, 0x39, 0xdf, 0x73, byte(len(rewind))}, rewind...),
	}
}

// putIDT makes one handler serve all exceptions. The handler expects an error code on the stack. A
// guest must survive only one exception, the general protection fault of RDMSR and WRMSR, and the
// processor pushes an error code for it.
func putIDT(m []byte) {
	le := binary.LittleEndian
	const kernelCode = 0x10 // selector in the boot protocol (Linux, Documentation/arch/x86/boot.rst)
	handler := uint64(loadAddr + faultCode)
	for v := range vectors { // interrupt gates, Intel SDM vol. 3 §6.14.1
		le.PutUint64(m[idt+v*16:], handler&0xffff|kernelCode<<16|0x8e00<<32|handler>>16<<48)
	}
	le.PutUint16(m[idtPointer:], vectors*16-1)
	le.PutUint64(m[idtPointer+2:], uint64(loadAddr+idt))
}
