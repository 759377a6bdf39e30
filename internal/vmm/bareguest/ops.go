// Package bareguest provides guests without an operating system, for tests of the machine. A guest
// executes a Program, which is a list of accesses to memory, ports and registers. Kernel returns a
// guest for a real VM. This guest executes a Program with a few instructions for each Op. Tests can
// also execute a Program in other ways: on a machine without KVM, or by a script in a Linux guest.
// Attacks returns Programs that no real driver would execute.
//
// The package knows the machine's addresses and the registers of virtio, but not the implementation
// of the devices. Its tests check that attacks do not harm the host.
package bareguest

import "encoding/binary"

// Kind is the kind of an Op. The names of accesses end with the width in bits.
type Kind uint8

// Kinds.
const (
	End      Kind = iota // halt
	Store8               // store Value at the guest physical address Addr
	Store16              //
	Store32              //
	Store64              //
	Load8                // load from Addr; the value is ignored
	Load16               //
	Load32               //
	Load64               //
	Out8                 // write Value to port Addr
	Out16                //
	Out32                //
	In8                  // read from port Addr
	In16                 //
	In32                 //
	Outs                 // write the first Value bytes of the program to port Addr, with one instruction
	Spin                 // run an empty loop Value times
	CPUID                // execute CPUID for leaf Value, subleaf Addr
	ReadMSR              // read MSR Addr; the guest survives a general protection fault
	WriteMSR             // write Value to MSR Addr; the guest survives a general protection fault
	Fault                // cause a triple fault, which shuts the processor down
	Jump                 // jump to Addr
	Again                // jump to the first Op, until this Op has run Value times

	Kinds = iota
)

// Op is one operation of a guest.
type Op struct {
	Kind  Kind
	Addr  uint32
	Value uint64
}

// opSize is the length of an encoded Op: kind, three unused bytes, Addr, Value.
const opSize = 16

// Program is a guest's operations in order.
type Program []Op

// Encode returns the program in the form that the guest's code reads.
func (p Program) Encode() []byte {
	b := make([]byte, 0, len(p)*opSize)
	for _, op := range p {
		b = append(b, byte(op.Kind), 0, 0, 0)
		b = binary.LittleEndian.AppendUint32(b, op.Addr)
		b = binary.LittleEndian.AppendUint64(b, op.Value)
	}
	return b
}

// Decode decodes the bytes that Encode returns. If b does not come from Encode, the result may have
// unknown Kinds.
func Decode(b []byte) Program {
	var p Program
	for ; len(b) >= opSize; b = b[opSize:] {
		p = append(p, Op{Kind(b[0]), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[8:])})
	}
	return p
}

// Width returns the number of bytes that an access of this kind transfers, or 0 if the kind is not
// an access.
func (k Kind) Width() int {
	switch k {
	case Store8, Load8, Out8, In8:
		return 1
	case Store16, Load16, Out16, In16:
		return 2
	case Store32, Load32, Out32, In32:
		return 4
	case Store64, Load64:
		return 8
	}
	return 0
}
