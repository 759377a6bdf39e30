// Package bareguest has guests without an operating system, for tests of the machine. Such a guest
// carries out a list of accesses, by a few instructions in a real VM (Kernel). Tests can also carry
// out the list themselves without KVM, or in the memory of a Linux guest. Attacks returns lists
// that no real driver would produce.
//
// It knows the machine's addresses and the registers of virtio, but not the implementation of
// devices. It is for tests only, which check that an attack does not harm the host.
package bareguest

import "encoding/binary"

// Kind is the kind of an Op. Names of accesses end with their width in bits.
type Kind uint8

// Kinds.
const (
	End      Kind = iota // halt
	Store8               // value to the guest physical address Addr
	Store16              //
	Store32              //
	Store64              //
	Load8                // from Addr; the value is ignored
	Load16               //
	Load32               //
	Load64               //
	Out8                 // value to port Addr
	Out16                //
	Out32                //
	In8                  // from port Addr
	In16                 //
	In32                 //
	Outs                 // one instruction that writes the first Value bytes of the program to port Addr
	Spin                 // turns of an empty loop
	CPUID                // leaf Value, subleaf Addr
	ReadMSR              // number Addr; the guest survives a general protection fault
	WriteMSR             //
	Fault                // three times, so that the processor shuts down
	Jump                 // to Addr
	Again                // jumps to the first Op, until this Op has run Value times

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

// Encode returns the form that the guest's code reads.
func (p Program) Encode() []byte {
	b := make([]byte, 0, len(p)*opSize)
	for _, op := range p {
		b = append(b, byte(op.Kind), 0, 0, 0)
		b = binary.LittleEndian.AppendUint32(b, op.Addr)
		b = binary.LittleEndian.AppendUint64(b, op.Value)
	}
	return b
}

// Decode reads what Encode wrote. Other bytes may yield unknown Kinds.
func Decode(b []byte) Program {
	var p Program
	for ; len(b) >= opSize; b = b[opSize:] {
		p = append(p, Op{Kind(b[0]), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[8:])})
	}
	return p
}

// Width returns the number of bytes of an access of that kind, 0 if it is not an access.
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
