package vmm

import (
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/vm"
)

// A reset counts as a panic if the end of the console shows a panic. The reported text has only one
// line, whatever the guest prints.
func TestPanicsAreTold(t *testing.T) {
	reset := vm.Exit{Reason: vm.ExitReset}
	dump := strings.Repeat("[    1.5]  ? do_exit+0x1/0x2\r\n", 100)
	for name, c := range map[string]struct {
		exit    vm.Exit
		console string
		want    vm.Exit
	}{
		"silent":    {reset, "", reset},
		"no panic":  {reset, "[    1.0] reboot: Restarting system\r\n", reset},
		"power-off": {vm.Exit{Reason: vm.ExitPowerOff}, "Kernel panic - not syncing: x\n", vm.Exit{Reason: vm.ExitPowerOff}},
		"panic": {reset, "# [    1.5] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100\r\n" + dump,
			vm.Exit{Reason: vm.ExitPanic, Detail: "Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100"}},
		"the last of two": {reset, "Kernel panic - not syncing: a\nKernel panic - not syncing: b\n",
			vm.Exit{Reason: vm.ExitPanic, Detail: "Kernel panic - not syncing: b"}},
		"long ago": {reset, "Kernel panic - not syncing: a\n" + strings.Repeat("x", panicSearch), reset},
		"hostile": {reset, "Kernel panic - not syncing\x1b[31m\x00\xff" + strings.Repeat("y", panicLine),
			vm.Exit{Reason: vm.ExitPanic, Detail: "Kernel panic - not syncing[31m" + strings.Repeat("y", panicLine-33)}},
	} {
		if got := namePanic(c.exit, []byte(c.console)); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
