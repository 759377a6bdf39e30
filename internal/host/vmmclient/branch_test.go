package vmmclient

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// Each WaitCopied receives the report about its own live branch, in whatever order reports arrive
// and WaitCopied is called. A report may also arrive before the answer to the branch, after the
// next branch, twice, or for a branch that was never requested.
func TestEndsOfBranchesFindTheirWaiters(t *testing.T) {
	v, vmm := scripted(t)
	end := func(serial, faults uint64) {
		var w codec.Writer
		(&vmmproto.Branched{Serial: serial, Faults: faults}).Append(&w)
		if err := vmm.Send(vmmproto.KindBranched, w.Bytes()); err != nil {
			t.Error(err)
		}
	}
	go func() { // simulates the VMM
		var first uint64
		for range 2 {
			_, body, fds, err := vmm.Receive()
			ctlsock.CloseAll(fds)
			var req vmmproto.Branch
			if err != nil || req.Parse(codec.NewReader(body)) != nil {
				t.Errorf("receive a branch: %v", err)
				return
			}
			if first == 0 {
				first = req.Serial
			} else {
				end(req.Serial, 2)
				end(req.Serial, 3)
				end(req.Serial+1, 4)
				end(first, 1)
			}
			var w codec.Writer
			(&vmmproto.BranchResult{Serial: 77, Mode: vm.BranchLive}).Append(&w)
			if err := vmm.Send(vmmproto.KindOK, w.Bytes()); err != nil {
				t.Error(err)
			}
		}
	}()
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	within(t, "waiting for two branches", func() {
		var serials []uint64
		for range 2 {
			r, err := v.Branch(t.Context(), vmmproto.Branch{Mode: vm.BranchLive}, BranchFiles{State: file, Layer: file})
			if err != nil {
				t.Error(err)
				return
			}
			serials = append(serials, r.Serial)
		}
		for i, s := range serials {
			if b, err := v.WaitCopied(t.Context(), s); err != nil || b.Faults != uint64(i+1) {
				t.Errorf("branch %d: %+v, %v", i, b, err)
			}
		}
		if _, err := v.WaitCopied(t.Context(), serials[0]); err == nil {
			t.Error("a branch can be waited for twice")
		}
	})
}
