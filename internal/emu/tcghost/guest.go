package tcghost

import (
	"fmt"

	"github.com/forkd/forkd/internal/emu/machineapi"
	"github.com/forkd/forkd/internal/proto/vm"
)

// ramDir is the file system in an emulated host on which hot memory lies.
const ramDir = "/dev/shm"

// DaemonDirs are the directories in an emulated host whose space the daemon there needs: for what
// it keeps, and for what is hot.
func DaemonDirs() (state, ram string) { return machineapi.StateDir, ramDir }

// DaemonArgs returns the flags of a daemon in an emulated host. Everything that the product must do
// otherwise under emulation is said with them; it knows nothing of emulation itself.
func DaemonArgs() []string {
	args := []string{
		"--bind", fmt.Sprintf("0.0.0.0:%d", machineapi.DaemonPort),
		"--state-dir", machineapi.StateDir, "--run-dir", "/run/forkd", "--ram-dir", ramDir + "/forkd",
		// The emulator lets guests set XCR0 without KVM's knowledge, so they must not see XSAVE
		// (docs/architecture.md).
		"--cpu-template", vm.TemplateV2, "--accel", "tcg",
		"--pool-most", "0", // to start a VMM takes its only CPU 0.1 s
	}
	for _, param := range GuestCmdline() {
		args = append(args, "--cmdline-extra", param)
	}
	return args
}

// GuestCmdline returns kernel parameters for guests of VMs inside an emulated host, against faults
// of older QEMUs; real hosts need neither.
//
//   - norandmaps: with randomized addresses QEMU 7.2 collects translated code per page until
//     clearing a page stalls.
//   - clearcpuid=cx16: after cmpxchg16b QEMU 7.2 has operands of earlier instructions in RFLAGS,
//     trap and alignment check bits among them, and an exit that follows saves them. Linux's
//     allocator uses the instruction on pages that are write-protected after a fork, and has
//     another way without it.
func GuestCmdline() []string { return []string{"norandmaps", "clearcpuid=cx16"} }
