package main

import (
	"encoding/binary"
	"slices"

	"github.com/forkd/forkd/bench/internal/stub"
	"github.com/forkd/forkd/internal/vmm/boot"
)

// Where the stub's program has what, in its RAM. The first 2 MiB are the stub's.
const (
	queueAddr   = 0x400000 // the page of the disk's queue
	requestAddr = 0x401000 // header and status of its one request
	dataAddr    = 0x402000
	resultsAddr = 0x800000 // a word for each sample, cycles, up to the first zero
	resultsSize = 8 << 20
	bufferAddr  = 64 << 20
	bufferPages = 16384 // a power of two: all are written once before any is written again
	stubMiB     = 192

	// Parts of the queue's page, and its one request (virtio 1.2 §2.7, §5.2.6).
	availAddr = queueAddr + 0x400
	usedAddr  = queueAddr + 0x800
	readSize  = 4096
	queueLen  = 8
)

// Lengths of loops, in turns and cycles.
const (
	// A program waits until its vCPUs come after the host, as they do a second after they began to
	// run (headStart in internal/vmm/machine): long enough where the clock has at most 3.7 GHz.
	settleCycles = 7 << 29
	// readTurns are between two reads: the device goes to sleep, as it does between those of most
	// guests.
	readTurns = 100000
	// writeTurns are between two writes. Were writes all that the program does, most of the times
	// when its vCPU loses its CPU would be within one.
	writeTurns = 5000
	// leastCycles is less than the first write to a page after a branch takes. Of such slow writes
	// in a row those from the second to number mostInRow are noted: one alone is of a vCPU that has
	// lost its CPU.
	leastCycles = 5000
	mostInRow   = 512
)

// program is code of the stub and where its parts begin.
type program struct {
	code                     []byte
	spin, leave, block, fill uint64
}

// newProgram returns a program that reads its disk in slot samples times, which it then says, or
// writes pages without an end.
func newProgram(slot, samples int) *program {
	window := uint32(boot.VirtioDevice(slot).Addr)
	p := &program{}
	p.spin = p.add([]byte{0xeb, 0xfe}) // jmp to itself
	p.leave = p.add(
		imm([]byte{0xbe}, window),      // mov $window,%esi
		[]byte{0x8b, 0x06, 0xeb, 0xfc}) // 1: mov (%rsi),%eax; jmp 1b
	const stores uint32 = stub.CustomCode + 0x1000 // behind the code
	p.block = p.add(
		settle(),
		imm([]byte{0xbe}, stores), // mov $stores,%esi
		[]byte{0x8b, 0x3e, 0x85, 0xff, 0x74, 0x0b},                   // 1: mov (%rsi),%edi; test %edi,%edi; jz 2f
		[]byte{0x8b, 0x46, 0x04, 0x89, 0x07},                         // mov 4(%rsi),%eax; mov %eax,(%rdi)
		[]byte{0x48, 0x83, 0xc6, 0x08, 0xeb, 0xef},                   // add $8,%rsi; jmp 1b
		imm([]byte{0xbf}, resultsAddr),                               // 2: mov $results,%edi
		imm([]byte{0xb9}, uint32(samples)),                           // mov $samples,%ecx
		imm([]byte{0xbb}, window+regQueueNotify), []byte{0x31, 0xed}, // mov $notify,%ebx; xor %ebp,%ebp
		[]byte{0xff, 0xc5}, imm([]byte{0x66, 0x89, 0x2c, 0x25}, availAddr+2), // 3: inc %ebp; mov %bp,avail.idx
		[]byte{0x0f, 0xae, 0xf0, 0x0f, 0x31, 0x41, 0x89, 0xc4},              // mfence; rdtsc; mov %eax,%r12d
		imm([]byte{0xc7, 0x03}, 0),                                          // movl $0,(%rbx)
		[]byte{0xf3, 0x90}, imm([]byte{0x66, 0x39, 0x2c, 0x25}, usedAddr+2), // 4: pause; cmp %bp,used.idx
		[]byte{0x75, 0xf4, 0x0f, 0xae, 0xe8, 0x0f, 0x31},             // jne 4b; lfence; rdtsc
		[]byte{0x44, 0x29, 0xe0, 0x89, 0x07, 0x48, 0x83, 0xc7, 0x04}, // sub %r12d,%eax; mov %eax,(%rdi); add $4,%rdi
		imm([]byte{0xb8}, readTurns), []byte{0xff, 0xc8, 0x75, 0xfc}, // mov $readTurns,%eax; 5: dec %eax; jnz 5b
		[]byte{0xff, 0xc9, 0x75, 0xc1, 0x0f, 0x0b}) // dec %ecx; jnz 3b; ud2
	p.fill = p.add(
		imm([]byte{0xbf}, resultsAddr),                  // mov $results,%edi
		imm([]byte{0xb9}, bufferPages),                  // mov $bufferPages,%ecx
		imm([]byte{0xbe}, bufferAddr),                   // mov $buffer,%esi
		imm([]byte{0x89, 0x0e, 0x48, 0x81, 0xc6}, 4096), // 5: mov %ecx,(%rsi); add $4096,%rsi
		[]byte{0xff, 0xc9, 0x75, 0xf3},                  // dec %ecx; jnz 5b
		settle(),
		[]byte{0x8d, 0x5c, 0x9b, 0x33},                           // 6: lea 51(%rbx,%rbx,4),%ebx: the next of a full period
		imm([]byte{0x81, 0xe3}, bufferPages-1),                   // and $(bufferPages-1),%ebx
		[]byte{0x89, 0xde, 0xc1, 0xe6, 0x0c},                     // mov %ebx,%esi; shl $12,%esi
		imm([]byte{0x81, 0xc6}, bufferAddr),                      // add $buffer,%esi
		[]byte{0x0f, 0xae, 0xf0, 0x0f, 0x31, 0x41, 0x89, 0xc4},   // mfence; rdtsc; mov %eax,%r12d
		[]byte{0x89, 0x1e, 0x0f, 0xae, 0xf0, 0x0f, 0x31},         // mov %ebx,(%rsi); mfence; rdtsc
		[]byte{0x44, 0x29, 0xe0}, imm([]byte{0x3d}, leastCycles), // sub %r12d,%eax; cmp $leastCycles,%eax
		[]byte{0x73, 0x05, 0x45, 0x31, 0xff, 0xeb, 0x16},               // jae 9f; xor %r15d,%r15d; jmp 7f
		[]byte{0x41, 0xff, 0xc7, 0x45, 0x8d, 0x57, 0xfe},               // 9: inc %r15d; lea -2(%r15d),%r10d
		imm([]byte{0x41, 0x81, 0xfa}, mostInRow-1), []byte{0x73, 0x06}, // cmp $(mostInRow-1),%r10d; jae 7f
		[]byte{0x89, 0x07, 0x48, 0x83, 0xc7, 0x04}, // mov %eax,(%rdi); add $4,%rdi
		imm([]byte{0xb8}, writeTurns),              // 7: mov $writeTurns,%eax
		[]byte{0xff, 0xc8, 0x75, 0xfc, 0xeb, 0xac}) // 8: dec %eax; jnz 8b; jmp 6b
	p.code = append(p.code, make([]byte, 0x1000-len(p.code))...)
	p.code = append(p.code, diskStores(window)...)
	return p
}

// settle returns code that waits for settleCycles.
func settle() []byte {
	c := []byte{
		0x0f, 0x31, 0x48, 0xc1, 0xe2, 0x20, 0x48, 0x09, 0xd0, // rdtsc; shl $32,%rdx; or %rdx,%rax
		0x49, 0x89, 0xc5, 0x49, 0xbe, // mov %rax,%r13; mov $settleCycles,%r14
	}
	c = binary.LittleEndian.AppendUint64(c, settleCycles)
	return append(c,
		0xf3, 0x90, 0x0f, 0x31, 0x48, 0xc1, 0xe2, 0x20, 0x48, 0x09, 0xd0, // 1: pause; rdtsc; shl $32,%rdx; or %rdx,%rax
		0x4c, 0x29, 0xe8, 0x4c, 0x39, 0xf0, 0x72, 0xed) // sub %r13,%rax; cmp %r14,%rax; jb 1b
}

// add appends code and returns its address.
func (p *program) add(parts ...[]byte) uint64 {
	at := uint64(stub.CustomCode) + uint64(len(p.code))
	p.code = append(p.code, slices.Concat(parts...)...)
	return at
}

// imm appends a 32-bit number to an instruction.
func imm(code []byte, v uint32) []byte { return binary.LittleEndian.AppendUint32(code, v) }

// Registers of virtio-mmio (virtio 1.2 §4.2.2).
const (
	regDriverFeatures    = 0x020
	regDriverFeaturesSel = 0x024
	regQueueSize         = 0x038
	regQueueReady        = 0x044
	regQueueNotify       = 0x050
	regStatus            = 0x070
	regQueueDesc         = 0x080
	regQueueDriver       = 0x090
	regQueueDevice       = 0x0a0
)

// diskStores are the pairs of an address and a word by which a driver sets up a disk and one
// request, which reads from the disk's beginning, again and again: all of the available ring is 0.
func diskStores(window uint32) []byte {
	const next, write = 1, 2 // flags of descriptors
	var p []byte
	store := func(addr, v uint32) { p = imm(imm(p, addr), v) }
	desc := func(i int, addr, length, flags uint32) {
		at := uint32(queueAddr + 16*i)
		store(at, addr)
		store(at+8, length)
		store(at+12, flags|uint32(i+1)<<16)
	}
	desc(0, requestAddr, 16, next) // zeros: to read from sector 0
	desc(1, dataAddr, readSize, next|write)
	desc(2, requestAddr+16, 1, write)
	for _, r := range [][2]uint32{
		{regStatus, 0}, {regStatus, 1}, {regStatus, 3}, // reset, acknowledge, driver
		{regDriverFeaturesSel, 1}, {regDriverFeatures, 1}, // VIRTIO_F_VERSION_1, and no other
		{regStatus, 11}, // features are right
		{regQueueSize, queueLen}, {regQueueDesc, queueAddr}, {regQueueDriver, availAddr}, {regQueueDevice, usedAddr},
		{regQueueReady, 1}, {regStatus, 15},
	} {
		store(window+r[0], r[1])
	}
	return append(p, 0, 0, 0, 0)
}
