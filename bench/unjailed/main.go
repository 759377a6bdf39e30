// Command unjailed is forkd-vmm without its jail: what runs in it is held by KVM alone. It is there
// for measurements, and for guests that are not hostile: bench/fork -unjailed tells what the jail
// costs a fork, and bench/latency what another number of threads for Go code changes, which the
// linker sets (-X main.procs=1). No product binary has it in it or can start it.
package main

import (
	"fmt"
	"os"
	"strconv"

	"github.com/forkd/forkd/internal/vmm"
	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// procs is how many threads may run Go code; empty: as many as in forkd-vmm.
var procs string

func main() {
	tracker, err := guestmem.NewTracker("/proc")
	n := vmm.MaxProcs
	if err == nil && procs != "" {
		n, err = strconv.Atoi(procs)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "unjailed: %v\n", err)
		os.Exit(1)
	}
	noLimit := func(uint64) error { return nil } // that of files is a part of the jail
	noFilter := func() error { return nil }
	os.Exit(vmm.Serve(tracker, noLimit, noFilter, n))
}
