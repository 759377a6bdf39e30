package bake

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vault"
	"github.com/forkd/forkd/internal/host/vmfake"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// kitchen is a Baker with fake VMs and guests, and the directories that its bakes must leave clean.
type kitchen struct {
	*Baker
	vmms    *vmfake.VMMs
	dir     string
	request Request
}

func newKitchen(t *testing.T) *kitchen {
	t.Helper()
	dir := t.TempDir()
	w := &kitchen{dir: dir, vmms: &vmfake.VMMs{}, request: Request{Tag: "p"}}
	for name, field := range map[string]*string{
		"kernel": &w.request.Kernel, "initrd": &w.request.Initrd, "rootfs": &w.request.Rootfs,
	} {
		*field = filepath.Join(dir, name)
		if err := os.WriteFile(*field, make([]byte, 4096), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	secret, ram := filepath.Join(dir, "secret"), filepath.Join(dir, "ram")
	if err := os.WriteFile(secret, make([]byte, 32), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := vault.Open(vault.Config{Dir: filepath.Join(dir, "state", "keys"), RAM: ram, KeyFile: secret,
		AnyDisk: true})
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(store.Config{Root: filepath.Join(dir, "state"), RAM: ram, Vault: keys})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	run := filepath.Join(dir, "run")
	if err := os.Mkdir(run, 0o700); err != nil {
		t.Fatal(err)
	}
	w.Baker = New(Config{Store: st, VMMs: w.vmms, Guest: func(string) Guest { return vmfake.Guest{All: w.vmms} },
		Admit:  func(context.Context, uint32, uint64) (func(), error) { return func() {}, nil },
		RunDir: run, Template: "host", Accel: "kvm", Log: slog.New(slog.DiscardHandler)})
	return w
}

// checkClean fails the test if files or processes of a bake are left.
func (w *kitchen) checkClean(t *testing.T) {
	t.Helper()
	if n := w.vmms.Count(); n != 0 {
		t.Errorf("%d VMs are left", n)
	}
	for _, dir := range []string{"run", "state/staging", "ram"} {
		entries, err := os.ReadDir(filepath.Join(w.dir, dir))
		if err != nil || len(entries) != 0 {
			t.Errorf("%s: %v left (%v)", dir, entries, err)
		}
	}
}

func TestBadRequestsNameTheField(t *testing.T) {
	w := newKitchen(t)
	for field, change := range map[string]func(*Request){
		"tag": func(r *Request) { r.Tag = "" }, "kernel": func(r *Request) { r.Kernel = "/nonexistent" },
		"initrd": func(r *Request) { r.Initrd = "relative" }, "rootfs": func(r *Request) { r.Rootfs = w.dir },
		"mem_size_mib": func(r *Request) { r.MemoryMiB = 1 }, "vcpus": func(r *Request) { r.VCPUs = 9999 },
		"volume_slots": func(r *Request) { r.VolumeSlots = vm.MaxVolumeSlots + 1 },
		"cpu_template": func(r *Request) { r.Template = "magic" },
	} {
		req := w.request
		change(&req)
		var invalid *invalid.Error
		if _, err := w.Bake(t.Context(), req); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	// If a request names more memory than the host has, it is refused without starting a VM. A
	// guest would need minutes to set up such memory.
	req := w.request
	req.MemoryMiB = HostMemoryMiB() + 1
	_, err := w.Bake(t.Context(), req)
	if want := fmt.Sprintf("mem_size_mib: %d: the daemon's host has %d MiB", req.MemoryMiB, HostMemoryMiB()); err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("more memory than the host has: %v, want %q", err, want)
	}
	w.checkClean(t)
}

// The machine of a parent has the requested volume slots, which are empty, and its snapshot says so.
func TestVolumeSlots(t *testing.T) {
	w := newKitchen(t)
	w.request.VolumeSlots = 3
	baked, err := w.Bake(t.Context(), w.request)
	if err != nil {
		t.Fatal(err)
	}
	if n := baked.Info.Machine.VolumeSlots; n != 3 {
		t.Errorf("the snapshot has %d slots", n)
	}
	slot := vmmproto.Disk{Volume: true}
	want := []vmmproto.Disk{{SizeBytes: 4096, Layers: 2}, slot, slot, slot}
	if len(w.vmms.Disks) != 1 || !slices.Equal(w.vmms.Disks[0], want) {
		t.Errorf("booted with %+v, want %+v", w.vmms.Disks, want)
	}
}

// If a request names no initramfs, the Baker makes one for the kernel.
func TestInitramfsIsMade(t *testing.T) {
	w := newKitchen(t)
	var asked []string
	made := os.ErrDeadlineExceeded
	w.cfg.Initrd = func(kernel string) (*os.File, error) {
		asked = append(asked, kernel)
		if made != nil {
			return nil, made
		}
		return os.Open(kernel)
	}
	w.request.Initrd = ""
	if _, err := w.Bake(t.Context(), w.request); !errors.Is(err, made) {
		t.Errorf("without an initramfs: %v", err)
	}
	w.checkClean(t)
	made = nil
	if _, err := w.Bake(t.Context(), w.request); err != nil {
		t.Fatal(err)
	}
	if want := []string{w.request.Kernel, w.request.Kernel}; !slices.Equal(asked, want) {
		t.Errorf("made for %v, want %v", asked, want)
	}
}

func TestFailedBakesLeaveNothingAndQuoteTheConsole(t *testing.T) {
	for want, breakIt := range map[string]func(*kitchen){
		"reset": func(w *kitchen) { w.vmms.BootExit = &vm.Exit{Reason: vm.ExitReset} },
		"NameError": func(w *kitchen) {
			w.request.Python = "x"
			w.vmms.EvalErr = &agentclient.EvalError{Name: "NameError"}
		},
		"no space left": func(w *kitchen) { w.vmms.BranchErr = errors.New("no space left") },
	} {
		t.Run(want, func(t *testing.T) {
			w := newKitchen(t)
			breakIt(w)
			_, err := w.Bake(t.Context(), w.request)
			var failed *Error
			if !errors.As(err, &failed) || !strings.Contains(err.Error(), want) ||
				!strings.Contains(err.Error(), "Kernel panic") {
				t.Fatalf("bake: %v", err)
			}
			w.checkClean(t)
			if entries, _ := os.ReadDir(filepath.Join(w.dir, "ram")); len(entries) != 0 {
				t.Errorf("RAM layers are left: %v", entries)
			}
			w.vmms.BootExit, w.vmms.EvalErr, w.vmms.BranchErr = nil, nil, nil
			if _, err := w.Bake(t.Context(), w.request); err != nil { // the tag of the failed bake is free again
				t.Error(err)
			}
		})
	}
}

// If a warm-up command fails, the error is a *WarmupError that quotes the command's output. The
// output of successful commands is in the result.
func TestWarmupCommands(t *testing.T) {
	w := newKitchen(t)
	w.request.Commands = []string{"pip install nothing"}
	for reason, r := range map[string]agentclient.ExecResult{
		"exit code 3": {Outcome: agentclient.Exited, ExitCode: 3, Stdout: []byte("collecting\n"),
			Stderr: []byte("no match\n")},
		"warmup_timeout_secs": {Outcome: agentclient.TimedOut, ExitCode: -1, Stdout: []byte("collecting\nno match")},
		"killed": {Outcome: agentclient.Signaled, ExitCode: -1, Status: "signal: killed",
			Stdout: []byte("no match")},
	} {
		w.vmms.Exec = func(context.Context) agentclient.ExecResult { return r }
		_, err := w.Bake(t.Context(), w.request)
		var failed *WarmupError
		if !errors.As(err, &failed) || !strings.Contains(failed.Reason, reason) ||
			!strings.Contains(failed.Output, "no match") {
			t.Errorf("%s: %v", reason, err)
		}
		w.checkClean(t)
	}
	w.vmms.Exec = func(context.Context) agentclient.ExecResult {
		return agentclient.ExecResult{Outcome: agentclient.Exited, Stdout: []byte("done\n"), Stderr: []byte("slowly\n")}
	}
	r, err := w.Bake(t.Context(), w.request)
	if err != nil || r.Output != "done\nslowly\n" {
		t.Errorf("output %q, %v", r.Output, err)
	}
}

// If a guest does not answer, the bake ends and frees its place.
func TestGuestThatHangs(t *testing.T) {
	w := newKitchen(t)
	w.vmms.SyncHangs = true
	w.request.Warmup = 50 * time.Millisecond
	if _, err := w.Bake(t.Context(), w.request); err == nil || !strings.Contains(err.Error(), "did not answer within") {
		t.Errorf("bake: %v", err)
	}
	w.checkClean(t)
}

// A parent that is booted for a fork may never become ready. It blocks neither the bakes nor the
// boots of other clients, and its boot ends at a time limit.
func TestBootsForForksHavePlacesOfTheirOwn(t *testing.T) {
	w := newKitchen(t)
	w.vmms.SyncHangs = true
	boot := func(ctx context.Context, client, tag string) chan error {
		req := w.request
		req.Client, req.Tag, req.Transient = client, tag, true
		done := make(chan error, 1)
		go func() {
			_, err := w.Bake(ctx, req)
			done <- err
		}()
		return done
	}
	w.limit = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hung := boot(ctx, "token:a", "a0")
	for n := 0; n == 0; n, _ = w.boots.Count() {
		time.Sleep(time.Millisecond)
	}
	second := boot(t.Context(), "token:a", "a1")
	for w.boots.Waiting() == 0 {
		time.Sleep(time.Millisecond)
	}
	if n, _ := w.place.Count(); n != 0 {
		t.Error("it has the place for bakes")
	}
	other := w.request
	other.Client, other.Tag, other.Transient, other.Warmup = "token:b", "b", true, time.Millisecond
	if _, err := w.Bake(t.Context(), other); err == nil || !strings.Contains(err.Error(), "flush the guest's disk") {
		// The guest of the other client also hangs, but its boot must have begun.
		t.Errorf("of another client: %v", err)
	}
	w.limit = time.Millisecond
	cancel()
	if err := <-hung; !errors.Is(err, context.Canceled) {
		t.Errorf("the client left: %v", err)
	}
	err := <-second
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no snapshot within 1ms") {
		t.Errorf("when the time is over: %v", err)
	}
	w.checkClean(t)
}

// The error of a boot names the time limit that has passed, even if no VMM was started within the
// limit.
func TestBootWithoutTimeForAVMM(t *testing.T) {
	w := newKitchen(t)
	w.limit, w.request.Transient = time.Nanosecond, true
	if _, err := w.Bake(t.Context(), w.request); err == nil || !strings.Contains(err.Error(), "no snapshot within 1ns") {
		t.Errorf("%v", err)
	}
	w.checkClean(t)
}

// If a guest fills the host's disk, its bake ends at once and frees its place. The error names the
// reason.
func TestGuestThatFillsTheDisk(t *testing.T) {
	w := newKitchen(t)
	w.vmms.SyncHangs = true
	w.request.Warmup = 5 * time.Second // ends the test if the full disk does not end the step
	go func() {
		for ; ; time.Sleep(time.Millisecond) {
			if vms := w.vmms.All(); len(vms) > 0 {
				vms[0].Stall()
				return
			}
		}
	}()
	if _, err := w.Bake(t.Context(), w.request); !errors.Is(err, syscall.ENOSPC) ||
		!strings.Contains(err.Error(), "the host's disk is full") {
		t.Errorf("bake: %v", err)
	}
	w.checkClean(t)
}

// If one client has requested many bakes, the bake of another client begins before all of these
// bakes have ended.
func TestBakesOfOneClientDoNotAllComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newKitchen(t)
		leave, err := w.place.Enter(gate.Share{Key: "token:a"}) // simulates a running bake of the first client
		if err != nil {
			t.Fatal(err)
		}
		initrd := w.request.Initrd
		var order []string
		w.cfg.Initrd = func(kernel string) (*os.File, error) { // called once by each bake, when it is its turn
			order = append(order, filepath.Base(kernel))
			return os.Open(initrd)
		}
		var group sync.WaitGroup
		for _, tag := range []string{"a1", "a2", "b1"} {
			req := w.request
			req.Tag, req.Client, req.Initrd, req.Kernel = tag, "token:"+tag[:1], "", filepath.Join(w.dir, tag)
			if err := os.WriteFile(req.Kernel, make([]byte, 4096), 0o600); err != nil {
				t.Fatal(err)
			}
			group.Go(func() {
				if _, err := w.Bake(t.Context(), req); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait() // until the bake waits in the queue
		}
		leave()
		group.Wait()
		if want := []string{"b1", "a1", "a2"}; !slices.Equal(order, want) {
			t.Errorf("baked in the order %v, want %v", order, want)
		}
	})
}
