package vmm

import (
	"bytes"
	"strings"

	"github.com/forkd/forkd/internal/proto/vm"
)

const (
	panicWords = "Kernel panic - not syncing" // Linux, kernel/panic.c
	// number of bytes at the console's end that are searched for a panic's line; after this line,
	// the kernel prints one stack trace
	panicSearch = 16 << 10
	panicLine   = 256 // maximum number of bytes of the panic's line that are reported
)

// namePanic returns the exit e, or a panic if e is an ordinary reset and the guest's last console
// output shows a panic. The kernels of guests request a reset after a panic (panic=-1). A guest can
// print such a line and reset without a panic, but it deceives only its own user.
func namePanic(e vm.Exit, console []byte) vm.Exit {
	if e.Reason != vm.ExitReset {
		return e
	}
	console = console[max(0, len(console)-panicSearch):]
	at := bytes.LastIndex(console, []byte(panicWords))
	if at < 0 {
		return e
	}
	line, _, _ := bytes.Cut(console[at:], []byte("\n"))
	printable := func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}
	return vm.Exit{Reason: vm.ExitPanic, Detail: strings.Map(printable, string(line[:min(len(line), panicLine)]))}
}
