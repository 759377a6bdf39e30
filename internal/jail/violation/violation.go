// Package violation names the system call for which a jailed process was ended.
//
// Its table of names is that of a library; the numbers that a filter lets through are in package
// jail and beside the code that makes the calls.
package violation

import (
	"fmt"
	"strings"

	"github.com/elastic/go-seccomp-bpf/arch"
)

// Call returns the call for which a process was ended, by what its Go runtime printed: the signal
// first, and the registers last, where rax is the number of the call. It returns "" where that is
// not what ended it.
func Call(log string) string {
	_, after, found := strings.Cut(log, "SIGSYS: bad system call")
	_, registers, dumped := strings.Cut(after, "\nrax ")
	var number int
	if !found || !dumped {
		return ""
	}
	if _, err := fmt.Sscanf(registers, "%v", &number); err != nil {
		return ""
	}
	if name, ok := arch.X86_64.SyscallNumbers[number]; ok {
		return name
	}
	return fmt.Sprintf("number %d", number)
}
