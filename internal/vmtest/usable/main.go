// Command usable exits with status 0 if KVM can run guests on this host. Otherwise it exits with 1
// and prints the reason on standard error. Scripts use it to decide whether they need the emulated
// host: the existence of the device node is not enough.
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
