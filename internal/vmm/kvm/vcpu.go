package kvm

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// VCPU is one virtual CPU. All calls of Run must be on the same OS thread. State methods must not
// be called during Run.
type VCPU struct {
	id   uint32
	fd   int
	run  []byte
	head *runHead

	// waiting is set until the vCPU has received its start-up IPI. It is still set during the Run
	// that returns because of the IPI.
	waiting bool

	gaveAway time.Time // when Run last gave up the processor of the Go scheduler

	registers []Register
	served    uint64 // number of accesses to registers that Run has handled; accessed atomically
}

// ErrKicked is the error of Run if a signal or SetImmediateExit made it return.
var ErrKicked = errors.New("vCPU kicked")

// Close unmaps and closes the vCPU.
func (c *VCPU) Close() error { return errors.Join(unix.Munmap(c.run), unix.Close(c.fd)) }

// A vCPU gives up its processor of the Go scheduler at most once in giveAwayEvery. If there is only
// one processor, giving it up takes 20 us. This would slow down a guest that writes to its console
// byte by byte.
const giveAwayEvery = time.Millisecond

// SetRegisters sets the registers whose accesses Run handles itself. It must not be called during
// Run.
func (c *VCPU) SetRegisters(all []Register) { c.registers = all }

// Served returns the number of accesses to registers that Run has handled.
func (c *VCPU) Served() uint64 { return atomic.LoadUint64(&c.served) }

// Run enters the guest and returns at its next exit, which ExitReason describes. It first completes
// the I/O of the previous exit.
func (c *VCPU) Run() error {
	now := time.Now()
	block := now.Sub(c.gaveAway) >= giveAwayEvery
	if block {
		c.gaveAway = now
	}
	return c.entered(c.enter(block, nil))
}

// RunAt waits at a gate and then behaves like Run.
func (c *VCPU) RunAt(g *Gate) error {
	if serveNone {
		g.passInGo()
		g = nil
	}
	return c.entered(c.enter(true, g))
}

// entered returns the error of a Run whose last KVM_RUN returned errno.
func (c *VCPU) entered(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return c.runError(errno, c.MPState)
}

// Prepare makes KVM do work that it would otherwise do in the first Run of a VM. For example, Linux
// 6.14 and later start a thread in the first Run. The guest executes nothing. Prepare must be
// called on the same thread as Run, for a vCPU that does not wait for its start-up IPI.
func (c *VCPU) Prepare() error {
	c.SetImmediateExit(true)
	defer c.SetImmediateExit(false)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(c.fd), ioRun, 0); errno != unix.EINTR {
		return c.runError(errno, c.MPState)
	}
	return nil
}

// runError returns the error of a Run. EAGAIN has two meanings. A vCPU that waits for its start-up
// IPI returns EAGAIN when it is woken, and must then be run again. Any other vCPU returns EAGAIN if
// KVM could not start the thread that Linux 6.14 and later need for the first Run of a VM
// (kvm-nx-lpage-recovery). Such a vCPU would return EAGAIN for ever.
func (c *VCPU) runError(errno unix.Errno, mpState func() (MPState, error)) error {
	switch {
	case errno == unix.EINTR:
		return ErrKicked
	case errno == unix.EAGAIN && c.waiting:
		state, err := mpState()
		if err != nil {
			return err
		}
		c.waiting = state.State == MPStateUninitialized
		return ErrKicked
	case errno == unix.EAGAIN:
		return fmt.Errorf("run vCPU %d: KVM cannot start a thread for the VM (%w): raise pids.max of the cgroup, "+
			"or RLIMIT_NPROC of the user", c.id, errno)
	}
	return fmt.Errorf("run vCPU %d: %w", c.id, errno)
}

// SetImmediateExit(true) makes each later Run complete pending I/O and return ErrKicked, until
// SetImmediateExit(false). Together with a signal to the vCPU's thread, it also ends the current
// Run. SetImmediateExit may be called from any thread.
func (c *VCPU) SetImmediateExit(on bool) {
	// immediate_exit is byte 1 of the run area. Storing the whole word is safe, because nothing
	// writes to its other bytes while the vCPU exists: request_interrupt_window is unused with an
	// in-kernel irqchip, and the remaining bytes are padding.
	word := (*uint32)(unsafe.Pointer(c.head))
	var v uint32
	if on {
		v = 1 << 8
	}
	atomic.StoreUint32(word, v)
}

// ExitReason returns the reason of the latest exit, which is one of the Exit constants.
func (c *VCPU) ExitReason() uint32 { return c.head.Exit_reason }

// MMIO returns the access that caused an ExitMMIO. For a read, the caller fills data before the
// next Run.
func (c *VCPU) MMIO() (gpa uint64, data []byte, write bool) {
	e := (*mmioExit)(unsafe.Pointer(&c.head.Exit))
	return e.Phys_addr, e.Data[:min(e.Len, uint32(len(e.Data)))], e.Is_write != 0
}

// IO returns the access that caused an ExitIO. The data consists of units of size bytes each. For
// input, the caller fills data before the next Run. If the kernel reports an offset outside the run
// area, data is nil.
func (c *VCPU) IO() (port uint16, size int, data []byte, out bool) {
	e := (*ioExit)(unsafe.Pointer(&c.head.Exit))
	n := uint64(e.Size) * uint64(e.Count)
	if e.Offset > uint64(len(c.run)) || n > uint64(len(c.run))-e.Offset {
		return e.Port, int(e.Size), nil, e.Direction == ioDirectionOut
	}
	return e.Port, int(e.Size), c.run[e.Offset : e.Offset+n], e.Direction == ioDirectionOut
}

// BusLocked reports whether the guest took a bus lock before the latest exit. The exit itself may
// have any reason.
func (c *VCPU) BusLocked() bool { return c.head.Flags&runBusLock != 0 }

// Suberror returns the first word of the data of the latest exit. The meaning of the word depends
// on the exit reason:
//
//   - ExitInternalError: KVM's suberror;
//   - ExitFailEntry: the low half of the hardware's reason;
//   - ExitSystemEvent: the type of the event;
//   - ExitNotify: flags.
func (c *VCPU) Suberror() uint32 { return *(*uint32)(unsafe.Pointer(&c.head.Exit)) }

func (c *VCPU) call(req uintptr, arg unsafe.Pointer, what string) error {
	if _, err := ioctlNow(c.fd, req, arg); err != nil {
		return fmt.Errorf("%s of vCPU %d: %w", what, c.id, err)
	}
	return nil
}

// SetCPUID sets the CPUID leaves that the guest sees. It must be called before other state is set.
func (c *VCPU) SetCPUID(entries []CPUIDEntry) error {
	if len(entries) > maxCPUIDEntries {
		return fmt.Errorf("set CPUID of vCPU %d: %d entries, at most %d", c.id, len(entries), maxCPUIDEntries)
	}
	t := table(cpuidHead{Nent: uint32(len(entries))}, entries)
	return c.call(ioSetCPUID2, unsafe.Pointer(unsafe.SliceData(t)), "set CPUID")
}

// table returns an array in KVM's form: the bytes of head, followed by the bytes of the entries. It
// allocates exactly the needed length. A buffer of the maximum length would be on the stack, and
// would make the stack of every VMM grow.
func table[H cpuidHead | msrsHead, E CPUIDEntry | MSREntry](head H, entries []E) []byte {
	p := unsafe.Slice((*byte)(unsafe.Pointer(&head)), unsafe.Sizeof(head))
	return append(p[:len(p):len(p)], RawSlice(entries)...)
}

// maxMSRs is the maximum number of MSRs in one request. It is Linux's own limit, MAX_IO_MSRS.
const maxMSRs = 256

type msrTable struct {
	head    msrsHead
	entries [maxMSRs]MSREntry
}

// MSRs reads the MSRs whose indices are in entries, and stores their values in the field Data of
// the entries. It returns the number n of MSRs that it has read. If n < len(entries), the host does
// not know the MSR of entries[n].
func (c *VCPU) MSRs(entries []MSREntry) (n int, err error) {
	var t msrTable
	t.head.Nmsrs = uint32(copy(t.entries[:], entries))
	got, err := ioctlNow(c.fd, ioGetMSRs, unsafe.Pointer(&t))
	if err != nil {
		return 0, fmt.Errorf("get MSRs of vCPU %d: %w", c.id, err)
	}
	return copy(entries, t.entries[:got]), nil
}

// SetMSRs sets MSRs in order. It returns the number n of MSRs that it has set. If n < len(entries),
// the host refuses entries[n].
func (c *VCPU) SetMSRs(entries []MSREntry) (n int, err error) {
	if len(entries) > maxMSRs {
		return 0, fmt.Errorf("set MSRs of vCPU %d: %d, at most %d", c.id, len(entries), maxMSRs)
	}
	t := table(msrsHead{Nmsrs: uint32(len(entries))}, entries)
	set, err := ioctlNow(c.fd, ioSetMSRs, unsafe.Pointer(unsafe.SliceData(t)))
	if err != nil {
		return 0, fmt.Errorf("set MSRs of vCPU %d: %w", c.id, err)
	}
	return int(set), nil
}

// Regs returns the general registers.
func (c *VCPU) Regs() (v Regs, err error) {
	return v, c.call(ioGetRegs, unsafe.Pointer(&v), "get registers")
}

// SetRegs sets the general registers.
func (c *VCPU) SetRegs(v *Regs) error { return c.call(ioSetRegs, unsafe.Pointer(v), "set registers") }

// Sregs returns the special registers.
func (c *VCPU) Sregs() (v Sregs, err error) {
	return v, c.call(ioGetSregs, unsafe.Pointer(&v), "get special registers")
}

// SetSregs sets the special registers.
func (c *VCPU) SetSregs(v *Sregs) error {
	return c.call(ioSetSregs, unsafe.Pointer(v), "set special registers")
}

// XSave returns the FPU and vector state. The legacy 4 KiB form holds everything up to AVX-512 and
// PKRU, but not AMX.
func (c *VCPU) XSave() (v XSave, err error) {
	return v, c.call(ioGetXSave, unsafe.Pointer(&v), "get XSAVE state")
}

// SetXSave sets the FPU and vector state.
func (c *VCPU) SetXSave(v *XSave) error {
	return c.call(ioSetXSave, unsafe.Pointer(v), "set XSAVE state")
}

// XCRs returns the extended control registers.
func (c *VCPU) XCRs() (v XCRs, err error) {
	return v, c.call(ioGetXCRs, unsafe.Pointer(&v), "get XCRs")
}

// SetXCRs sets the extended control registers.
func (c *VCPU) SetXCRs(v *XCRs) error { return c.call(ioSetXCRs, unsafe.Pointer(v), "set XCRs") }

// DebugRegs returns the debug registers.
func (c *VCPU) DebugRegs() (v DebugRegs, err error) {
	return v, c.call(ioGetDebugRegs, unsafe.Pointer(&v), "get debug registers")
}

// SetDebugRegs sets the debug registers.
func (c *VCPU) SetDebugRegs(v *DebugRegs) error {
	return c.call(ioSetDebugRegs, unsafe.Pointer(v), "set debug registers")
}

// Events returns pending exceptions, interrupts and NMIs.
func (c *VCPU) Events() (v VCPUEvents, err error) {
	return v, c.call(ioGetVCPUEvents, unsafe.Pointer(&v), "get events")
}

// SetEvents sets pending exceptions, interrupts and NMIs.
func (c *VCPU) SetEvents(v *VCPUEvents) error {
	return c.call(ioSetVCPUEvents, unsafe.Pointer(v), "set events")
}

// MPState returns whether the vCPU runs, halts or waits for its start-up IPI.
func (c *VCPU) MPState() (v MPState, err error) {
	return v, c.call(ioGetMPState, unsafe.Pointer(&v), "get MP state")
}

// SetMPState sets whether the vCPU runs, halts or waits for its start-up IPI.
func (c *VCPU) SetMPState(v *MPState) error {
	c.waiting = v.State == MPStateUninitialized
	return c.call(ioSetMPState, unsafe.Pointer(v), "set MP state")
}

// LAPIC returns the local APIC's registers.
func (c *VCPU) LAPIC() (v LAPIC, err error) {
	return v, c.call(ioGetLAPIC, unsafe.Pointer(&v), "get LAPIC")
}

// SetLAPIC sets the local APIC's registers.
func (c *VCPU) SetLAPIC(v *LAPIC) error { return c.call(ioSetLAPIC, unsafe.Pointer(v), "set LAPIC") }

// TSCKHz returns the frequency of the guest's TSC in kHz.
func (c *VCPU) TSCKHz() (uint32, error) {
	v, err := ioctlNow(c.fd, ioGetTSCKHz, nil)
	if err != nil {
		return 0, fmt.Errorf("get TSC frequency of vCPU %d: %w", c.id, err)
	}
	return uint32(v), nil
}

// SetTSCKHz sets the frequency of the guest's TSC in kHz. A host without TSC scaling accepts only
// its own frequency.
func (c *VCPU) SetTSCKHz(khz uint32) error {
	if _, err := ioctl(c.fd, ioSetTSCKHz, uintptr(khz)); err != nil {
		return fmt.Errorf("set TSC frequency of vCPU %d to %d kHz: %w", c.id, khz, err)
	}
	return nil
}

// MarkPaused tells the guest, through its kvm-clock page, that the guest was paused. The guest's
// lockup detectors then ignore the pause. In a guest without kvm-clock, MarkPaused has no effect.
func (c *VCPU) MarkPaused() error {
	_, err := ioctlNow(c.fd, ioKVMClockCtrl, nil)
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("mark vCPU %d paused: %w", c.id, err)
	}
	return nil
}
