package helpervm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/proto/vm"
)

// evaluating is a guest whose Eval returns an error, or does what the test says.
type evaluating struct {
	vmfake.Guest
	eval func(ctx context.Context) error
}

func (g evaluating) Eval(ctx context.Context, _ string, _ agentclient.EvalOptions) (agentclient.EvalResult, error) {
	return agentclient.EvalResult{}, g.eval(ctx)
}

// rehearse lets a machine run in a fake VM. It fails the test if a VM or one of its files is left.
func rehearse(t *testing.T, vmms *vmfake.VMMs, eval func(ctx context.Context) error) error {
	t.Helper()
	runDir := t.TempDir()
	file := func(name, content string) *os.File {
		path := filepath.Join(t.TempDir(), name)
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if _, err := f.WriteString(content); err != nil {
			t.Fatal(err)
		}
		return f
	}
	guest := func(string) Guest { return evaluating{vmfake.Guest{All: vmms}, eval} }
	r := Rehearser{VMMs: vmms, RunDir: runDir, Guest: guest}
	err := r.Run(t.Context(), Saved{
		Machine:   snapshot.Machine{MemoryBytes: 1 << 20, VCPUs: 1, Template: vm.TemplatePortable, VolumeSlots: 1},
		State:     file("state", "state"),
		Layers:    []*os.File{file("memory", "")},
		Disk:      []*os.File{file("base", "")},
		DiskBytes: 1 << 20,
		Top:       file("top", ""),
	})
	if left, failed := os.ReadDir(runDir); failed != nil || len(left) > 0 || vmms.Count() != 0 {
		t.Errorf("%d VMs are left, and %v, %v", vmms.Count(), left, failed)
	}
	return err
}

// A rehearsal gives the guest an identity, evaluates an expression, and ends the VM. The VM has no
// network.
func TestRehearsal(t *testing.T) {
	vmms, evals := &vmfake.VMMs{}, 0
	err := rehearse(t, vmms, func(context.Context) error {
		if evals++; len(vmms.Forked) != 1 || len(vmms.Forked[0].Entropy) == 0 {
			t.Error("it evaluates before the guest has an identity")
		}
		return nil
	})
	if err != nil || evals != 1 || vmms.Restores != 1 {
		t.Errorf("%d evaluations, %d restores, %v", evals, vmms.Restores, err)
	}
	if d := vmms.Disks; len(d) != 1 || len(d[0]) != 2 || d[0][0].SizeBytes != 1<<20 || !d[0][1].Volume {
		t.Errorf("the disks %+v", d)
	}
	noPython := func(context.Context) error { return &agentclient.Error{Op: "eval", Code: agentclient.CodeInternal} }
	if err := rehearse(t, &vmfake.VMMs{}, noPython); err != nil {
		t.Errorf("a guest without Python: %v", err)
	}
}

// If a machine fails, ends, hangs or fills the disk, its rehearsal ends with the reason.
func TestRehearsalsThatFail(t *testing.T) {
	fine := func(context.Context) error { return nil }
	broken := errors.New("broken pipe")
	refuses := &vmfake.VMMs{RestoreErr: func(int) error { return broken }}
	if err := rehearse(t, refuses, fine); !errors.Is(err, broken) {
		t.Errorf("a restore that fails: %v", err)
	}
	unconfirmed := &vmfake.VMMs{ForkedErr: func(int) error { return broken }}
	if err := rehearse(t, unconfirmed, fine); !errors.Is(err, broken) {
		t.Errorf("a guest that does not confirm: %v", err)
	}
	if err := rehearse(t, &vmfake.VMMs{}, func(context.Context) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("a guest that does not answer: %v", err)
	}
	ends := &vmfake.VMMs{}
	err := rehearse(t, ends, func(ctx context.Context) error {
		ends.All()[0].End(vm.Exit{Reason: vm.ExitPanic, Detail: "oops"})
		<-ctx.Done()
		return ctx.Err()
	})
	if err == nil || !strings.Contains(err.Error(), "oops") {
		t.Errorf("a VM that ends: %v", err)
	}
	fills := &vmfake.VMMs{}
	err = rehearse(t, fills, func(ctx context.Context) error {
		fills.All()[0].Stall()
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, ErrFull) {
		t.Errorf("a VM that fills the disk: %v", err)
	}
}
