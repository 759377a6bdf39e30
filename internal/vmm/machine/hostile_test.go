package machine_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmm/bareguest"
	"github.com/forkd/forkd/internal/vmm/machine"
	"github.com/forkd/forkd/internal/vmtest"
)

// hostileSeed is the seed for random attacks. A different seed makes a different test.
const hostileSeed = 1

// newBareHost returns a host for guests without an operating system.
func newBareHost(t *testing.T) *host {
	t.Helper()
	vmtest.NeedKVM(t)
	dir, err := os.MkdirTemp("/dev/shm", "fkt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := &host{dir: dir, tops: dir, kernel: filepath.Join(dir, "kernel"), base: filepath.Join(dir, "base"),
		shape: vm.Shape{MemoryBytes: 64 * mib, VCPUs: 1, Template: vmtest.Template()}}
	if err := os.WriteFile(h.base, make([]byte, diskSize), 0o600); err != nil {
		t.Fatal(err)
	}
	return h
}

// bootBare starts a guest that executes the program p.
func (h *host) bootBare(t *testing.T, p bareguest.Program) *testVM {
	t.Helper()
	v := h.newVM(t)
	v.files = []string{h.base, h.newTop(t)}
	if err := os.WriteFile(h.kernel, bareguest.Kernel(p), 0o600); err != nil {
		t.Fatal(err)
	}
	kernel := open(t, h.kernel, os.O_RDONLY)
	defer kernel.Close()
	if err := v.Boot(machine.BootConfig{Kernel: kernel, Disks: disks(t, v.files), VMGenID: generation()}); err != nil {
		t.Fatal(err)
	}
	_, peer := newWire(t) // the test never reads from the other end
	if err := errors.Join(v.SetNet(peer), v.Resume()); err != nil {
		t.Fatal(err)
	}
	return v
}

// attack runs p in a guest until p is done or the machine has stopped. attack returns whether the
// machine has stopped (ended), and the reason (e).
func (h *host) attack(t *testing.T, p bareguest.Program) (v *testVM, e vm.Exit, ended bool) {
	t.Helper()
	v = h.bootBare(t, p)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		select {
		case e = <-v.exited:
			return v, e, true
		default:
		}
		if v.console.endsWith(bareguest.Done) {
			return v, e, false
		}
	}
	t.Fatal("the guest has neither finished nor stopped")
	return nil, e, false
}

func (c *console) endsWith(s string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.HasSuffix(c.text, []byte(s))
}

// The devices serve the valid requests of a guest. So the attacks in the tests below reach the
// devices.
func TestBareGuestIsServed(t *testing.T) {
	h := newBareHost(t)
	pages := bareguest.FreePages()
	for _, target := range bareguest.Targets() {
		v, e, ended := h.attack(t, bareguest.Seeds(target, pages)[0])
		if ended {
			t.Fatalf("%s: the machine has ended: %v %s", target.Name, e.Reason, e.Detail)
		}
		layer := open(t, v.save(t).layers[0], os.O_RDONLY)
		var idx [2]byte
		_, err := layer.ReadAt(idx[:], int64(bareguest.UsedIndex(pages[target.Sends])))
		_ = layer.Close()
		if err != nil || idx != [2]byte{1} {
			t.Errorf("%s: %v chains are used, %v, want 1", target.Name, idx, err)
		}
	}
}

// Whatever a guest does to its devices, its machine can be paused, saved and restored. The restored
// machine can be paused, saved and restored again.
func TestHostileGuests(t *testing.T) {
	h := newBareHost(t)
	pages := bareguest.FreePages()
	attacks := bareguest.Probes(hostileSeed)
	for _, target := range bareguest.Targets() {
		attacks = append(attacks, bareguest.Attacks(target, pages, hostileSeed)...)
	}
	t.Logf("%d attacks, seed %d", len(attacks), hostileSeed)
	for _, a := range attacks {
		t.Run(a.Name, func(t *testing.T) {
			v, e, ended := h.attack(t, a.Program)
			if ended {
				t.Fatalf("the machine has ended: %v %s", e.Reason, e.Detail)
			}
			child := h.fork(t, v.save(t))
			again := h.fork(t, child.save(t))
			if st, err := again.Stats(); err != nil || st.Paused {
				t.Errorf("the copy of a copy: %+v, %v", st, err)
			}
		})
	}
}

// If a guest stops its machine, the machine reports the reason.
func TestHostileGuestsThatEnd(t *testing.T) {
	h := newBareHost(t)
	want := map[string]vm.ExitReason{"power off": vm.ExitPowerOff, "reset": vm.ExitReset, "keyboard reset": vm.ExitReset,
		"PCI reset": vm.ExitReset}
	for _, a := range bareguest.Ends() {
		t.Run(a.Name, func(t *testing.T) {
			_, e, ended := h.attack(t, a.Program)
			reason, ok := want[a.Name]
			if !ok {
				reason = vm.ExitFault
			}
			if !ended || e.Reason != reason {
				t.Errorf("ended %v: %v %s, want %v", ended, e.Reason, e.Detail, reason)
			}
			t.Logf("%v %s", e.Reason, e.Detail)
		})
	}
}

// A machine can be branched while its guest attacks a device. The children continue the attack.
func TestHostileGuestsAreBranched(t *testing.T) {
	h := newBareHost(t)
	for _, target := range bareguest.Targets() {
		t.Run(target.Name, func(t *testing.T) {
			var p bareguest.Program
			for _, a := range bareguest.Attacks(target, bareguest.FreePages(), hostileSeed) {
				p = append(p, a.Program...)
			}
			v := h.bootBare(t, append(p, bareguest.Op{Kind: bareguest.Again, Value: 1 << 62}))
			base := &snapshot{files: v.files} // the guest was booted, so it has no memory layers
			for range 3 {
				base = v.branch(t, base, vm.BranchLive)
				child := h.fork(t, base)
				before := child.exits(t)
				for child.exits(t) == before {
					select {
					case e := <-child.exited:
						t.Fatalf("the copy has ended: %v %s", e.Reason, e.Detail)
					case <-time.After(time.Millisecond):
					}
				}
				if err := child.Pause(); err != nil { // a running child would take CPU time from the other guests
					t.Fatal(err)
				}
			}
			select {
			case e := <-v.exited:
				t.Errorf("the machine has ended: %v %s", e.Reason, e.Detail)
			default:
			}
		})
	}
}

// exits returns the number of exits of the guest's vCPUs.
func (v *testVM) exits(t *testing.T) uint64 {
	t.Helper()
	st, err := v.Stats()
	if err != nil {
		t.Fatal(err)
	}
	return st.Exits
}
