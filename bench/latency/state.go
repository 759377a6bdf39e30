package main

import (
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/vmm/kvm"
)

// machineState is a saved state (internal/vmm/machine/codec.go) whose vCPUs can be set to work: the
// stub has no code that starts more than the first.
type machineState struct {
	bytes  []byte
	vcpus  [][]byte // parts of bytes: from the MP state on
	tscKHz uint32
}

// registers are at the beginning of a vCPU's part.
type registers struct {
	mp    kvm.MPState
	regs  kvm.Regs
	sregs kvm.Sregs
	fpu   kvm.XSave
	xcrs  kvm.XCRs
}

// raw are the parts in their order.
func (r *registers) raw() [][]byte {
	return [][]byte{kvm.Raw(&r.mp), kvm.Raw(&r.regs), kvm.Raw(&r.sregs), kvm.Raw(&r.fpu), kvm.Raw(&r.xcrs)}
}

// parseState takes over p.
func parseState(p []byte) (*machineState, error) {
	const magic, version, sum = 8, 4, 4
	if len(p) < magic+version+sum {
		return nil, errors.New("a machine's state is too short")
	}
	s := &machineState{bytes: p}
	for r := codec.NewReader(p[magic+version : len(p)-sum]); r.Len() > 0; {
		name, section := r.String(), codec.NewReader(r.Blob())
		section.U32() // version
		switch name {
		case "vm":
			section.U64() // clock
			s.tscKHz = section.U32()
		case "vcpu":
			section.Blob() // CPUID
			s.vcpus = append(s.vcpus, section.Raw(section.Len()))
		}
		if err := errors.Join(r.Err(), section.Err()); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// run sets vCPUs to work: those whose address is not 0 go on there as the first one would, the
// others do nothing.
func (s *machineState) run(at []uint64) {
	var first registers
	at0 := s.vcpus[0]
	for _, part := range first.raw() {
		at0 = at0[copy(part, at0):]
	}
	for i, to := range s.vcpus {
		r := first
		switch {
		case i < len(at) && at[i] != 0:
			r.regs.Rip = at[i]
		case i == 0:
			r.mp.State = kvm.MPStateHalted
		default:
			continue // it has not been started
		}
		if i > 0 {
			const bootstrap = 1 << 8
			r.sregs.Apic_base &^= bootstrap
		}
		for _, part := range r.raw() {
			to = to[copy(to, part):]
		}
	}
	body := s.bytes[:len(s.bytes)-4]
	binary.LittleEndian.PutUint32(s.bytes[len(body):], crc32.ChecksumIEEE(body))
}
