package tcghost

import (
	"fmt"

	"github.com/forkd/forkd/internal/emu/machineapi"
	"github.com/forkd/forkd/internal/proto/vm"
)

// ramDir is the tmpfs in an emulated host that holds memory layers.
const ramDir = "/dev/shm"

// DaemonDirs returns the directories of an emulated host in which the daemon needs space: one for
// its state, and one for memory layers.
func DaemonDirs() (state, ram string) { return machineapi.StateDir, ramDir }

// DaemonArgs returns the flags of a daemon in an emulated host. The daemon itself has no code for
// emulation, so these flags contain everything that must be different in an emulated host.
func DaemonArgs() []string {
	args := []string{
		"--bind", fmt.Sprintf("0.0.0.0:%d", machineapi.DaemonPort),
		"--state-dir", machineapi.StateDir, "--run-dir", "/run/forkd", "--ram-dir", ramDir + "/forkd",
		// With this emulator, a guest can change XCR0 without KVM's knowledge, so guests must not
		// see XSAVE (docs/architecture.md).
		"--cpu-template", vm.TemplateV2, "--accel", "tcg",
		"--pool-most", "0", // starting a VMM takes 0.1 s of the only CPU
	}
	for _, param := range GuestCmdline() {
		args = append(args, "--cmdline-extra", param)
	}
	return args
}

// GuestCmdline returns kernel parameters for guests in an emulated host. They work around faults of
// older QEMUs. Guests of a real host do not need them.
//
//   - norandmaps: with randomized addresses QEMU 7.2 accumulates translated code per page until
//     clearing a page stalls.
//   - clearcpuid=cx16: after cmpxchg16b QEMU 7.2 leaves operands of earlier instructions in RFLAGS,
//     including trap and alignment check bits, and the next exit of the guest saves these operands
//     as its flags. Linux's allocator uses cmpxchg16b on pages that are write-protected after a
//     fork. Without cmpxchg16b, the allocator uses another method.
func GuestCmdline() []string { return []string{"norandmaps", "clearcpuid=cx16"} }
