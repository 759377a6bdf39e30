package debqemu

import (
	"bytes"
	"fmt"
	"os"
)

// The code in this file works around a fault of QEMU 7.2 and 10.0.2 (helper_vmrun in
// target/i386/tcg/system/svm_helper.c, case SVM_EVTINJ_TYPE_INTR). VMRUN delivers an injected
// interrupt at once, but leaves the interrupt's vector in CPUState.exception_index. The emulator
// may then leave its loop for a reason other than an exit of the guest (accel/tcg/cpu-exec.c,
// cpu_handle_interrupt and cpu_handle_exception). In this case the vector counts as a pending
// exception, and the guest receives the interrupt a second time, at any instruction. A kernel that
// has interrupts disabled panics or hangs. This happens to about one guest in an hour of forks and
// branches, and to the whole machine within a minute of `stop` and `cont` on QEMU's monitor.
//
// These are the instructions with which Debian's build of 10.0.2 stores the fields of an injected
// interrupt. Without the store to exception_index, no vector remains, because exception_index stays
// -1, as for any other interrupt.
var (
	injecting = []byte{
		0x41, 0x0f, 0xb6, 0xf4, // movzbl %r12b,%esi: the vector
		0x44, 0x89, 0xab, 0xe0, 0x33, 0x00, 0x00, // mov %r13d,error_code
		0x89, 0xb3, 0x10, 0xd7, 0xff, 0xff, // mov %esi,exception_index
		0xc7, 0x83, 0xe4, 0x33, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // movl $0,exception_is_int
		0x48, 0xc7, 0x83, 0xe8, 0x33, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff, // movq $-1,exception_next_eip
	}
	store  = []byte{0x89, 0xb3, 0x10, 0xd7, 0xff, 0xff}
	noop   = []byte{0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00} // has the same length as the store
	mended = bytes.Replace(injecting, store, noop, 1)
)

// mend removes the instruction that stores to exception_index from the QEMU program. No other
// process may be using the file. A build with other instructions is not changed.
func mend(program string) error {
	p, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("mend QEMU: %w", err)
	}
	if bytes.Count(p, injecting) != 1 {
		return nil
	}
	if err := os.WriteFile(program, bytes.Replace(p, injecting, mended, 1), 0o755); err != nil {
		return fmt.Errorf("mend QEMU: %w", err)
	}
	return nil
}
