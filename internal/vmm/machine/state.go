package machine

import (
	"errors"
	"fmt"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/vmm/cpuid"
	"github.com/forkd/forkd/internal/vmm/kvm"
)

// vcpuState is the complete state of a vCPU in KVM.
type vcpuState struct {
	cpuid  []kvm.CPUIDEntry
	mp     kvm.MPState
	regs   kvm.Regs
	sregs  kvm.Sregs
	xsave  kvm.XSave
	xcrs   kvm.XCRs
	debug  kvm.DebugRegs
	lapic  kvm.LAPIC
	msrs   []kvm.MSREntry
	events kvm.VCPUEvents
}

const vcpuVersion = 1

// saveVCPU reads the state of a stopped vCPU. The order matters:
//
//   - The MP state comes first, because reading it makes KVM accept pending INIT and SIPI events,
//     which changes the registers.
//   - Pending events come late, because reading other state can add some events.
//   - Reading pending events changes CR2 and DR6, because KVM stores the address of a pending page
//     fault, or the cause of a debug exception, in these registers. So they are read after the
//     events.
func saveVCPU(c *kvm.VCPU, cpuidEntries []kvm.CPUIDEntry, msrs []uint32) (*vcpuState, error) {
	s := &vcpuState{cpuid: cpuidEntries}
	var err error
	try := func(f func() error) {
		if err == nil {
			err = f()
		}
	}
	try(func() (e error) { s.mp, e = c.MPState(); return })
	try(func() (e error) { s.regs, e = c.Regs(); return })
	try(func() (e error) { s.xsave, e = c.XSave(); return })
	try(func() (e error) { s.xcrs, e = c.XCRs(); return })
	try(func() (e error) { s.lapic, e = c.LAPIC(); return })
	try(func() (e error) { s.msrs, e = readMSRs(c, msrs); return })
	try(func() (e error) { s.events, e = c.Events(); return })
	try(func() (e error) { s.sregs, e = c.Sregs(); return })
	try(func() (e error) { s.debug, e = c.DebugRegs(); return })
	return s, err
}

// restoreVCPU sets the state of a vCPU that is not running. KVM checks the state against the vCPU's
// CPUID entries, so these must be set before. The LAPIC comes after the special registers, which
// contain the APIC base. The MSRs come after the LAPIC, because the TSC-deadline MSR starts the
// LAPIC's timer. Pending events come last, because setting registers drops them.
func restoreVCPU(c *kvm.VCPU, s *vcpuState) error {
	if err := errors.Join(c.SetMPState(&s.mp), c.SetRegs(&s.regs), c.SetSregs(&s.sregs),
		c.SetXSave(&s.xsave), c.SetDebugRegs(&s.debug), c.SetLAPIC(&s.lapic)); err != nil {
		return err
	}
	if s.xcrs.Count() > 0 { // a host without XSAVE has no XCRs and refuses the call
		if err := c.SetXCRs(&s.xcrs); err != nil {
			return err
		}
	}
	if err := writeMSRs(c, s.msrs); err != nil {
		return err
	}
	return c.SetEvents(&s.events)
}

// Save appends the vCPU's state.
func (s *vcpuState) Save(w *codec.Writer) {
	w.U32(vcpuVersion)
	w.Blob(kvm.RawSlice(s.cpuid))
	w.Raw(kvm.Raw(&s.mp))
	w.Raw(kvm.Raw(&s.regs))
	w.Raw(kvm.Raw(&s.sregs))
	w.Raw(kvm.Raw(&s.xsave))
	w.Raw(kvm.Raw(&s.xcrs))
	w.Raw(kvm.Raw(&s.debug))
	w.Raw(kvm.Raw(&s.lapic))
	w.Blob(kvm.RawSlice(s.msrs))
	w.Raw(kvm.Raw(&s.events))
}

// Restore reads what Save wrote.
func (s *vcpuState) Restore(r *codec.Reader) error {
	if v := r.U32(); v != vcpuVersion {
		return errors.Join(fmt.Errorf("vCPU state version %d, want %d", v, vcpuVersion), r.Err())
	}
	var err error
	if s.cpuid, err = kvm.SetRawSlice[kvm.CPUIDEntry](r.Blob()); err != nil {
		return err
	}
	takeRaw(r, &s.mp)
	takeRaw(r, &s.regs)
	takeRaw(r, &s.sregs)
	takeRaw(r, &s.xsave)
	takeRaw(r, &s.xcrs)
	takeRaw(r, &s.debug)
	takeRaw(r, &s.lapic)
	if s.msrs, err = kvm.SetRawSlice[kvm.MSREntry](r.Blob()); err != nil {
		return err
	}
	takeRaw(r, &s.events)
	return r.Err()
}

func takeRaw[T kvm.State](r *codec.Reader, v *T) {
	raw := kvm.Raw(v)
	copy(raw, r.Raw(len(raw)))
}

// irqchips are a VM's interrupt controllers, in the order in which a saved state contains them.
var irqchips = [...]uint32{kvm.IRQChipPICMaster, kvm.IRQChipPICSlave, kvm.IRQChipIOAPIC}

const vmVersion = 1

// vmState is the state of the VM apart from its vCPUs.
type vmState struct {
	clock  uint64 // kvm-clock, in nanoseconds
	tscKHz uint32
	chips  [len(irqchips)]kvm.IRQChip
}

func saveVM(vm *kvm.VM, cpu *kvm.VCPU) (*vmState, error) {
	s := &vmState{}
	var err error
	if s.clock, err = vm.Clock(); err != nil {
		return nil, err
	}
	if s.tscKHz, err = cpu.TSCKHz(); err != nil {
		return nil, err
	}
	for i, id := range irqchips {
		c, err := vm.IRQChip(id)
		if err != nil {
			return nil, err
		}
		s.chips[i] = *c
	}
	return s, nil
}

// restoreChips sets the interrupt controllers. The LAPICs must have their state already. If they
// did not, an interrupt that waits in the IOAPIC would be delivered to a LAPIC without state, and
// be lost.
func (s *vmState) restoreChips(vm *kvm.VM) error {
	for i := range s.chips {
		if err := vm.SetIRQChip(&s.chips[i]); err != nil {
			return err
		}
	}
	return nil
}

// Save appends the VM's state.
func (s *vmState) Save(w *codec.Writer) {
	w.U32(vmVersion)
	w.U64(s.clock)
	w.U32(s.tscKHz)
	for i := range s.chips {
		w.Raw(kvm.Raw(&s.chips[i]))
	}
}

// Restore reads what Save wrote.
func (s *vmState) Restore(r *codec.Reader) error {
	if v := r.U32(); v != vmVersion {
		return errors.Join(fmt.Errorf("VM state version %d, want %d", v, vmVersion), r.Err())
	}
	s.clock, s.tscKHz = r.U64(), r.U32()
	for i, id := range irqchips {
		takeRaw(r, &s.chips[i])
		if r.Err() == nil && s.chips[i].Id != id {
			return fmt.Errorf("interrupt controller %d where %d belongs", s.chips[i].Id, id)
		}
	}
	return r.Err()
}

// toTemplate and fromTemplate convert CPUID leaves between the types of package kvm and package
// cpuid.
func toTemplate(entries []kvm.CPUIDEntry) []cpuid.Entry {
	out := make([]cpuid.Entry, len(entries))
	for i, e := range entries {
		out[i] = cpuid.Entry{Function: e.Function, Index: e.Index, Flags: e.Flags, EAX: e.Eax, EBX: e.Ebx, ECX: e.Ecx,
			EDX: e.Edx}
	}
	return out
}

func fromTemplate(entries []cpuid.Entry) []kvm.CPUIDEntry {
	out := make([]kvm.CPUIDEntry, len(entries))
	for i, e := range entries {
		out[i] = kvm.CPUIDEntry{Function: e.Function, Index: e.Index, Flags: e.Flags, Eax: e.EAX, Ebx: e.EBX, Ecx: e.ECX,
			Edx: e.EDX}
	}
	return out
}
