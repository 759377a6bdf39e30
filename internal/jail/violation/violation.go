// Package violation finds the system call that ended a jailed process.
//
// Its table of names comes from a library; the numbers that a filter permits are in package jail
// and beside the code that makes the calls.
package violation

import (
	"fmt"
	"strings"

	"github.com/elastic/go-seccomp-bpf/arch"
)

// Call returns the name of the call that ended a process, from the output of its Go runtime: the
// signal is first and the registers are last, where rax is the number of the call. It returns "" if
// the process ended for another reason.
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
