package kvm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// UnfitError says why an existing /dev/kvm cannot run a standard guest kernel.
type UnfitError struct {
	Reason string
	Slow   bool // whether the probe took too long; on a busy host, this proves nothing
}

func (e *UnfitError) Error() string { return "KVM is unfit for a stock guest kernel: " + e.Reason }

// Probe opens /dev/kvm and runs a few guest instructions whose results are known: an exception
// through the guest's IDT, popcnt, xsave, and accesses to privileged registers. A KVM without
// hardware support, such as kvm-pvm, accepts the ioctls but fails this test. If KVM runs the guest
// wrongly, Probe returns an *UnfitError. If KVM cannot be used at all (no device, no permission),
// Probe returns a different error.
func Probe() error {
	sys, err := Open()
	if err != nil {
		return err
	}
	defer sys.Close()
	if err := sys.CheckCapabilities(); err != nil {
		return err
	}
	return probeGuest(sys)
}

// Guest physical layout of the probe.
const (
	probeMemory  = 1 << 21
	probePML4    = 0x1000
	probePDPT    = 0x2000
	probePD      = 0x3000
	probeIDT     = 0x4000
	probeGDT     = 0x5000
	probeStack   = 0x8000
	probeCode    = 0xb000
	probeResult  = 0x9000 // result of popcnt, mark of the #BP handler, EFER, number of the step; 8 bytes each
	probeXSave   = 0xa000
	probePort    = 0x10
	probeDone    = 0x42
	probeHandler = 0x100 // offset in probeCode
)

// probeProgram runs at probeCode in 64-bit mode at CPL 0. Before each step it stores the number of
// the step.
var probeProgram = []byte{
	0xc7, 0x04, 0x25, 0x18, 0x90, 0, 0, 1, 0, 0, 0, // movl $1,0x9018
	0xb8, 0x67, 0x45, 0x23, 0x01, // mov $0x1234567,%eax
	0xf3, 0x48, 0x0f, 0xb8, 0xd8, // popcnt %rax,%rbx
	0x48, 0x89, 0x1c, 0x25, 0x00, 0x90, 0, 0, // mov %rbx,0x9000
	0xc7, 0x04, 0x25, 0x18, 0x90, 0, 0, 2, 0, 0, 0, // movl $2,0x9018
	0xcc,                                           // int3
	0xc7, 0x04, 0x25, 0x18, 0x90, 0, 0, 3, 0, 0, 0, // movl $3,0x9018
	0xdb, 0xe3, // fninit
	0xd9, 0xe8, // fld1
	0xb8, 1, 0, 0, 0, // mov $1,%eax
	0x31, 0xd2, // xor %edx,%edx
	0x48, 0x0f, 0xae, 0x24, 0x25, 0x00, 0xa0, 0, 0, // xsave64 0xa000
	0xc7, 0x04, 0x25, 0x18, 0x90, 0, 0, 4, 0, 0, 0, // movl $4,0x9018
	0x0f, 0x20, 0xd8, // mov %cr3,%rax
	0x0f, 0x22, 0xd8, // mov %rax,%cr3
	0xb9, 0x80, 0, 0, 0xc0, // mov $0xc0000080,%ecx (EFER)
	0x0f, 0x32, // rdmsr
	0x89, 0x04, 0x25, 0x10, 0x90, 0, 0, // mov %eax,0x9010
	0xc7, 0x04, 0x25, 0x18, 0x90, 0, 0, 5, 0, 0, 0, // movl $5,0x9018
	0xb8, probeDone, 0, 0, 0, // mov $0x42,%eax
	0xe6, probePort, // out %al,$0x10
	0xf4, // hlt
}

var probeBreakpoint = []byte{
	0xc7, 0x04, 0x25, 0x08, 0x90, 0, 0, 0x77, 0, 0, 0, // movl $0x77,0x9008
	0x48, 0xcf, // iretq
}

var probeSteps = [...]string{"the first instruction", "popcnt", "int3 and its handler", "xsave",
	"a privileged register access", "port output"}

const probeEFER = 1<<8 | 1<<10 // LME | LMA

func probeGuest(sys *System) error {
	vm, err := sys.CreateVM()
	if err != nil {
		return err
	}
	defer vm.Close()
	mem, err := unix.Mmap(-1, 0, probeMemory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("map probe memory: %w", err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	if err := vm.SetMemslot(0, 0, probeMemory, uintptr(unsafe.Pointer(unsafe.SliceData(mem)))); err != nil {
		return err
	}
	vcpu, err := vm.CreateVCPU(0)
	if err != nil {
		return err
	}
	defer vcpu.Close()
	writeProbe(mem)
	if err := setupProbe(sys, vcpu); err != nil {
		return &UnfitError{Reason: err.Error()}
	}
	return runProbe(vcpu, mem)
}

func writeProbe(mem []byte) {
	le := binary.LittleEndian
	le.PutUint64(mem[probePML4:], probePDPT|3) // present, writable
	le.PutUint64(mem[probePDPT:], probePD|3)
	le.PutUint64(mem[probePD:], 0|0x83)                 // one 2 MiB page
	le.PutUint64(mem[probeGDT+8:], 0x00af9b000000ffff)  // 64-bit code
	le.PutUint64(mem[probeGDT+16:], 0x00cf93000000ffff) // data
	// A 64-bit interrupt gate for vector 3, #BP (Intel SDM vol. 3 §6.14.1).
	const handler = probeCode + probeHandler
	le.PutUint64(mem[probeIDT+3*16:], handler&0xffff|8<<16|0x8e00<<32|handler>>16<<48)
	copy(mem[probeCode:], probeProgram)
	copy(mem[probeCode+probeHandler:], probeBreakpoint)
}

func setupProbe(sys *System, vcpu *VCPU) error {
	cpuid, err := sys.SupportedCPUID()
	if err != nil {
		return err
	}
	if err := vcpu.SetCPUID(cpuid); err != nil {
		return err
	}
	s, err := vcpu.Sregs()
	if err != nil {
		return err
	}
	code := Segment{Limit: 0xffffffff, Selector: 8, Type: 11, Present: 1, S: 1, L: 1, G: 1}
	data := Segment{Limit: 0xffffffff, Selector: 16, Type: 3, Present: 1, S: 1, Db: 1, G: 1}
	s.Cs, s.Ds, s.Es, s.Fs, s.Gs, s.Ss = code, data, data, data, data, data
	s.Gdt = DTable{Base: probeGDT, Limit: 23}
	s.Idt = DTable{Base: probeIDT, Limit: 4*16 - 1}
	s.Cr3 = probePML4
	s.Cr0 = 1<<31 | 1<<16 | 1<<5 | 1<<1 | 1<<0 // PG, WP, NE, MP, PE
	s.Cr4 = 1<<18 | 1<<10 | 1<<9 | 1<<5        // OSXSAVE, OSXMMEXCPT, OSFXSR, PAE
	s.Efer = probeEFER
	if err := vcpu.SetSregs(&s); err != nil {
		return err
	}
	return vcpu.SetRegs(&Regs{Rip: probeCode, Rsp: probeStack, Rflags: 2})
}

// probeLimit is the maximum time of the probe, which runs a few hundred instructions.
const probeLimit = 5 * time.Second

func runProbe(vcpu *VCPU, mem []byte) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tid := unix.Gettid()
	var late atomic.Bool
	stop := time.AfterFunc(probeLimit, func() {
		late.Store(true)
		vcpu.SetImmediateExit(true)
		_ = Kick(tid)
	})
	defer stop.Stop()
	err := runUntil(&late, vcpu.Run)
	le := binary.LittleEndian
	step := probeSteps[min(le.Uint64(mem[probeResult+24:]), uint64(len(probeSteps)-1))]
	switch {
	case errors.Is(err, ErrKicked):
		return &UnfitError{Reason: "the probe guest hangs at " + step, Slow: true}
	case err != nil:
		return &UnfitError{Reason: fmt.Sprintf("%s: %v", step, err)}
	case vcpu.ExitReason() != ExitIO:
		return &UnfitError{Reason: fmt.Sprintf("%s ended with KVM exit %d (suberror %d) instead of running",
			step, vcpu.ExitReason(), vcpu.Suberror())}
	}
	if got := le.Uint64(mem[probeResult:]); got != 12 {
		return &UnfitError{Reason: fmt.Sprintf("popcnt gave %d instead of 12", got)}
	}
	if le.Uint32(mem[probeResult+8:]) != 0x77 {
		return &UnfitError{Reason: "int3 did not reach its handler"}
	}
	if mem[probeXSave+512]&1 == 0 {
		return &UnfitError{Reason: "xsave stored no x87 state"}
	}
	if got := le.Uint32(mem[probeResult+16:]); got != probeEFER {
		return &UnfitError{Reason: fmt.Sprintf("rdmsr of EFER gave %#x instead of %#x", got, probeEFER)}
	}
	if port, _, data, out := vcpu.IO(); port != probePort || !out || len(data) != 1 || data[0] != probeDone {
		return &UnfitError{Reason: "port output arrived changed"}
	}
	return nil
}

// runUntil enters the guest with run() until the guest exits or late becomes true. It ignores
// signals that arrive while late is false, such as those of Go's scheduler.
func runUntil(late *atomic.Bool, run func() error) error {
	for {
		if err := run(); !errors.Is(err, ErrKicked) || late.Load() {
			return err
		}
	}
}
