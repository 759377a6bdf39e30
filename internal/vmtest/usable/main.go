// Command usable exits with status 0 if KVM can run guests on this host. Otherwise it prints the
// reason on standard error and exits with status 1. Scripts use it to decide whether they need the
// emulated host, because a device node alone does not mean that KVM works.
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
