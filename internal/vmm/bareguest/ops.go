// Package bareguest is guests without an operating system, for tests of the machine: what such a
// guest does is a list of accesses, which a few instructions carry out in a real VM (Kernel), and
// which the tests can carry out themselves where there is no KVM, or in the memory of a Linux
// guest. Attacks makes lists that no driver would.
//
// It knows the machine's addresses and the registers of virtio, and nothing of how devices are
// made. It is for tests only; what an attack must not do to the host is for them to check.
package bareguest

import "encoding/binary"

// Kind is what an Op does. The widths of accesses are in the name, in bits.
type Kind uint8

// Kinds.
const (
	End      Kind = iota // halt
	Store8               // value to the guest physical address Addr
	Store16              //
	Store32              //
	Store64              //
	Load8                // from Addr; what comes is not looked at
	Load16               //
	Load32               //
	Load64               //
	Out8                 // value to port Addr
	Out16                //
	Out32                //
	In8                  // from port Addr
	In16                 //
	In32                 //
	Outs                 // Value bytes, from the beginning of the list, to port Addr by one instruction
	Spin                 // turns of an empty loop
	CPUID                // leaf Value, subleaf Addr
	ReadMSR              // number Addr; a general protection fault is survived
	WriteMSR             //
	Fault                // three times, so that the processor shuts down
	Jump                 // to Addr
	Again                // from the first Op on, until Value times

	Kinds = iota
)

// Op is one thing that a guest does.
type Op struct {
	Kind  Kind
	Addr  uint32
	Value uint64
}

// opSize is the length of an encoded Op: kind, three bytes of nothing, Addr, Value.
const opSize = 16

// Program is what a guest does, one after another.
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

// Decode reads what Encode wrote. In other bytes there may be Kinds that no guest knows.
func Decode(b []byte) Program {
	var p Program
	for ; len(b) >= opSize; b = b[opSize:] {
		p = append(p, Op{Kind(b[0]), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[8:])})
	}
	return p
}

// Width returns how many bytes an access of that kind moves, 0 for what is none.
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
