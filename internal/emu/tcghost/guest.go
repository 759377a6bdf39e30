package tcghost

import (
	"fmt"

	"github.com/forkd/forkd/internal/emu/machineapi"
	"github.com/forkd/forkd/internal/proto/vm"
)

// ramDir is the tmpfs in an emulated host that stores hot memory.
const ramDir = "/dev/shm"

// DaemonDirs returns the directories in an emulated host in which the daemon needs space: for its
// state, and for hot memory.
func DaemonDirs() (state, ram string) { return machineapi.StateDir, ramDir }

// DaemonArgs returns the flags of a daemon in an emulated host. They contain everything that
// differs under emulation: the daemon itself knows nothing about it.
func DaemonArgs() []string {
	args := []string{
		"--bind", fmt.Sprintf("0.0.0.0:%d", machineapi.DaemonPort),
		"--state-dir", machineapi.StateDir, "--run-dir", "/run/forkd", "--ram-dir", ramDir + "/forkd",
		// The emulator lets guests change XCR0 without KVM's knowledge, so guests must not see
		// XSAVE (docs/architecture.md).
		"--cpu-template", vm.TemplateV2, "--accel", "tcg",
		"--pool-most", "0", // starting a VMM takes 0.1 s of its only CPU
	}
	for _, param := range GuestCmdline() {
		args = append(args, "--cmdline-extra", param)
	}
	return args
}

// GuestCmdline returns kernel parameters for guests inside an emulated host. They avoid faults of
// older QEMUs; real hosts need neither.
//
//   - norandmaps: with randomized addresses QEMU 7.2 accumulates translated code per page until
//     clearing a page stalls.
//   - clearcpuid=cx16: after cmpxchg16b QEMU 7.2 leaves operands of earlier instructions in RFLAGS,
//     including trap and alignment check bits, and a following exit saves them. Linux's allocator
//     uses the instruction on pages that are write-protected after a fork. Without the instruction
//     it uses another method.
func GuestCmdline() []string { return []string{"norandmaps", "clearcpuid=cx16"} }
