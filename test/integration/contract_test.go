package integration_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/forkd/forkd/test/contract"
)

// The Go client passes the contract of the SDKs with real VMs. Memory, disks and the state after a
// rollback can only be tested with real VMs.
func TestContractWithVMs(t *testing.T) {
	scenarios, err := contract.Scenarios()
	if err != nil {
		t.Fatal(err)
	}
	f := load(t)
	state := f.copyState(t) // a copy, because builds leave the snapshots of their steps
	d := f.start(t, withState(state), withRAM(filepath.Join(state, "ram")))
	there := contract.Daemon{URL: d.url, Snapshot: tag, Tmp: "/tmp"}
	for i, s := range scenarios {
		if s.Needs == "fake" {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			if err := contract.Run(d.ctx(t, contract.Timeout), there, s, fmt.Sprintf("run%d", i)); err != nil {
				t.Error(err)
			}
		})
	}
}
