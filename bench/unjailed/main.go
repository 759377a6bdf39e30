// Command unjailed is forkd-vmm without its jail: what runs in it is held by KVM alone. It is there
// for one measurement, bench/fork -unjailed, which tells what the jail costs a fork, and for guests
// that are not hostile. No product binary has it in it or can start it.
package main

import (
	"fmt"
	"os"

	"github.com/forkd/forkd/internal/vmm"
	"github.com/forkd/forkd/internal/vmm/guestmem"
)

func main() {
	tracker, err := guestmem.NewTracker("/proc")
	if err != nil {
		fmt.Fprintf(os.Stderr, "unjailed: %v\n", err)
		os.Exit(1)
	}
	noLimit := func(uint64) error { return nil } // that of files is a part of the jail
	os.Exit(vmm.Serve(tracker, noLimit))
}
