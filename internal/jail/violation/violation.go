// Package violation finds the system call for which a jailed process was killed.
//
// The names of system calls come from a library. This package does not know which calls are
// permitted: package jail, and the packages that make system calls, declare them.
package violation

import (
	"fmt"
	"strings"

	"github.com/elastic/go-seccomp-bpf/arch"
)

// Call returns the name of the system call for which a process was killed, or "" if the process
// ended for another reason. The given log is the output of the process's Go runtime. This output
// begins with the signal and ends with the registers. The register rax has the number of the call.
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
