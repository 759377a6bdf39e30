package main

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/vmm/kvm"
)

// savedState is a state of two vCPUs, in the form of internal/vmm/machine, without devices.
func savedState() []byte {
	var w codec.Writer
	w.Raw([]byte("FKDSTATE"))
	w.U32(4)
	section := func(name string, save func(w *codec.Writer)) {
		var s codec.Writer
		s.U32(1)
		save(&s)
		w.String(name)
		w.Blob(s.Bytes())
	}
	section("vm", func(w *codec.Writer) {
		w.U64(7)
		w.U32(2_000_000)
	})
	first := registers{regs: kvm.Regs{Rip: 1, Rbx: 9}, sregs: kvm.Sregs{Apic_base: 0xfee00900}}
	second := registers{mp: kvm.MPState{State: kvm.MPStateUninitialized}}
	for i, r := range []registers{first, second} {
		section("vcpu", func(w *codec.Writer) {
			w.Blob(make([]byte, 40*i))
			w.Raw(slices.Concat(r.raw()...))
			w.Raw([]byte("the rest"))
		})
	}
	return append(w.Bytes(), 0, 0, 0, 0)
}

// vCPUs that are to work go on as the first one, those that are not stay as they are.
func TestRun(t *testing.T) {
	for _, at := range [][]uint64{{0x100, 0x200}, {0x100}, {0, 0x200}, {0}} {
		s, err := parseState(savedState())
		if err != nil {
			t.Fatal(err)
		}
		s.run(at)
		if s, err = parseState(s.bytes); err != nil || s.tscKHz != 2_000_000 || len(s.vcpus) != 2 {
			t.Fatalf("%d vCPUs, %d kHz, %v", len(s.vcpus), s.tscKHz, err)
		}
		end := len(s.bytes) - 4
		if binary.LittleEndian.Uint32(s.bytes[end:]) != crc32.ChecksumIEEE(s.bytes[:end]) {
			t.Error("the checksum does not match")
		}
		for i, p := range s.vcpus {
			var r registers
			for _, part := range r.raw() {
				p = p[copy(part, p):]
			}
			want := registers{mp: kvm.MPState{State: kvm.MPStateUninitialized}}
			switch {
			case i < len(at) && at[i] != 0:
				want = registers{regs: kvm.Regs{Rip: at[i], Rbx: 9}, sregs: kvm.Sregs{Apic_base: 0xfee00900 - uint64(i)<<8}}
			case i == 0:
				want = registers{mp: kvm.MPState{State: kvm.MPStateHalted}, regs: kvm.Regs{Rip: 1, Rbx: 9},
					sregs: kvm.Sregs{Apic_base: 0xfee00900}}
			}
			if r != want || string(p) != "the rest" {
				t.Errorf("%#x: vCPU %d at %#x, state %d, %q", at, i, r.regs.Rip, r.mp.State, p)
			}
		}
	}
	if _, err := parseState(savedState()[:60]); err == nil {
		t.Error("accepted half a state")
	}
}
