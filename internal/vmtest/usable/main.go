// Command usable ends with status 0 if KVM can run guests on this host, else with 1 and the reason
// on standard error. Scripts ask it whether they need the emulated host; the device node alone does
// not tell.
package main

import (
	"fmt"
	"os"

	"github.com/forkd/forkd/internal/vmm/kvm"
)

func main() {
	if err := kvm.Probe(); err != nil {
		fmt.Fprintln(os.Stderr, "KVM is not usable here:", err)
		os.Exit(1)
	}
}
