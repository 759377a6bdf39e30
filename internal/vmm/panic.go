package vmm

import (
	"bytes"
	"strings"

	"github.com/forkd/forkd/internal/proto/vm"
)

const (
	panicWords  = "Kernel panic - not syncing" // Linux, kernel/panic.c
	panicSearch = 16 << 10                     // bytes of console; a panic is followed by a dump of one stack
	panicLine   = 256                          // bytes of it that are reported
)

// namePanic distinguishes a panic from the reset that our guests' kernels request after it
// (panic=-1), by the last text on the guest's console. A guest that prints such a line and resets
// looks the same, which harms only itself.
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
