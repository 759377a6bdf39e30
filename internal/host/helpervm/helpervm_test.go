package helpervm

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/proto/imageproto"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// run runs a task in a fake VM whose guest can use the top of the VM's disk. It fails the test if a
// VM or one of its files is left.
func run(t *testing.T, guest func(v *vmfake.VMM, conn net.Conn, top *os.File), task Task) error {
	t.Helper()
	dir := t.TempDir()
	kernel, top := filepath.Join(dir, "kernel"), filepath.Join(dir, "top")
	runDir := filepath.Join(dir, "run")
	err := errors.Join(os.Mkdir(runDir, 0o700), os.WriteFile(kernel, nil, 0o600), os.WriteFile(top, nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	vmms := vmfake.NewBuilders(func(v *vmfake.VMM, conn net.Conn) {
		f, err := os.OpenFile(top, os.O_RDWR, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		guest(v, conn, f)
	})
	task.Name, task.Port = "the VM", imageproto.Port
	task.Boot = func(undo *cleanup.Stack) (boot vmmproto.Boot, files vmmclient.BootFiles, err error) {
		open := func(path string) *os.File {
			f, failed := os.OpenFile(path, os.O_RDWR, 0)
			err = errors.Join(err, failed)
			undo.Add(func() { f.Close() })
			return f
		}
		files.Kernel, files.Disks = open(kernel), [][]*os.File{{open(kernel), open(top)}}
		boot.Disks = []vmmproto.Disk{{SizeBytes: 1 << 20}}
		return boot, files, err
	}
	c := Config{VMMs: vmms, RunDir: runDir, Template: "host"}
	err = c.Run(t.Context(), task)
	if left, failed := os.ReadDir(runDir); failed != nil || len(left) > 0 || vmms.Count() != 0 {
		t.Errorf("%d VMs are left, and %v, %v", vmms.Count(), left, failed)
	}
	return err
}

// answer waits for the end of the connection or for an answer, until ctx ends.
func answer(ctx context.Context, conn net.Conn) error {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	p, err := io.ReadAll(conn)
	switch {
	case err != nil:
		return errors.Join(ErrLost, err)
	case string(p) == "no":
		return &invalid.Error{Field: "image", Reason: "no"}
	case string(p) != "yes":
		return ErrLost
	}
	return nil
}

// A VM is killed if it writes more than its task needs, or fills the host's disk.
func TestVMsThatWriteTooMuch(t *testing.T) {
	writes := func(n int) func(v *vmfake.VMM, conn net.Conn, top *os.File) {
		return func(v *vmfake.VMM, conn net.Conn, top *os.File) {
			if _, err := top.Write(make([]byte, n)); err != nil {
				t.Error(err)
			}
			<-v.Done()
		}
	}
	err := run(t, writes(2<<20), Task{Talk: answer, MaxWritten: 1 << 20})
	if err == nil || !strings.Contains(err.Error(), "the VM has written more than 1 MiB") {
		t.Errorf("a VM that writes too much: %v", err)
	}
	fills := func(v *vmfake.VMM, _ net.Conn, _ *os.File) { v.Stall(); <-v.Done() }
	if err := run(t, fills, Task{Talk: answer}); !errors.Is(err, ErrFull) {
		t.Errorf("a VM that fills the disk: %v", err)
	}
}

// The error of a task is the VM's refusal, the VM's exit, or the error of the task itself.
func TestErrorsOfTasks(t *testing.T) {
	says := func(text string) func(v *vmfake.VMM, conn net.Conn, top *os.File) {
		return func(_ *vmfake.VMM, conn net.Conn, _ *os.File) { _, _ = conn.Write([]byte(text)); conn.Close() }
	}
	if err := run(t, says("yes"), Task{Talk: answer, MaxWritten: 1 << 20}); err != nil {
		t.Errorf("a VM that does its task: %v", err)
	}
	var refused *invalid.Error
	if err := run(t, says("no"), Task{Talk: answer}); !errors.As(err, &refused) || refused.Reason != "no" {
		t.Errorf("a VM that refuses: %v", err)
	}
	if err := run(t, says(""), Task{Talk: answer}); !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "console") {
		t.Errorf("a VM that hangs up: %v", err)
	}
}
