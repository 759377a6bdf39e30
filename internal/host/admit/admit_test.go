package admit

import (
	"errors"
	"os"
	"testing"
	"time"
)

// wantRefused fails the test unless err is an *Error with the given code.
func wantRefused(t *testing.T, code string, err error) {
	t.Helper()
	var refused *Error
	if !errors.As(err, &refused) || refused.Code != code {
		t.Errorf("got %v, want a refusal with code %s", err, code)
	}
}

// none is an argument for New's parameter ended. It stands for a host without killed VMs.
func none() bool { return false }

func TestRulesLookAtTheHost(t *testing.T) {
	const free = 100 << 20
	enough := func() (uint64, error) { return free, nil }
	room := func(string) (uint64, error) { return free, nil }
	for _, c := range []struct {
		name  string
		rules Rules
		n     int
		code  string
	}{
		{"no rules", Rules{}, 1000, ""},
		{"memory for one", Rules{MemoryReserve: free - startBytes}, 1, ""},
		{"memory for one, not two", Rules{MemoryReserve: free - startBytes}, 2, CodeHostMemory},
		{"disk", Rules{DiskReserve: free}, 1, ""},
		{"disk is short", Rules{DiskReserve: free + 1}, 1, CodeHostDisk},
		{"vCPUs", Rules{VCPUsPerCPU: 1e-9}, 1, CodeMaxVCPUs},
	} {
		a := New(c.rules, "/", none)
		a.available, a.room = enough, room
		err := a.Enter(c.n, 2)
		if c.code != "" {
			wantRefused(t, c.code, err)
		} else if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	a := New(Rules{MemoryReserve: free - startBytes}, "/", none)
	a.available = enough
	if err := a.Enter(1, 1); err != nil {
		t.Fatal(err)
	}
	askedAt := func(at time.Time) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.asked = at
	}
	askedAt(time.Now().Add(time.Hour))            // in the future, so that the host's memory is not read again
	wantRefused(t, CodeHostMemory, a.Enter(1, 1)) // the first VM is still starting
	a.Started(1)
	wantRefused(t, CodeHostMemory, a.Enter(1, 1)) // the host's figure does not include the first VM yet
	askedAt(time.Time{})
	if err := a.Enter(1, 1); err != nil {
		t.Errorf("the first has started, and the host's figures have it: %v", err)
	}
	if free, err := memAvailable(); err != nil || free == 0 {
		t.Errorf("the host has %d bytes available, %v", free, err)
	}
}

// Sandboxes that are being created count against the owner's limit until release() is called.
func TestOwnersReserve(t *testing.T) {
	var o Owners
	have := func() int { return 1 }
	release, err := o.Reserve("a", 3, 2, have)
	if err != nil {
		t.Fatal(err)
	}
	_, err = o.Reserve("a", 3, 1, have)
	wantRefused(t, CodeOwnSandboxes, err)
	if _, err := o.Reserve("b", 3, 1, have); err != nil {
		t.Errorf("another owner: %v", err)
	}
	release()
	if _, err := o.Reserve("a", 3, 2, have); err != nil {
		t.Errorf("when they have not come: %v", err)
	}
	if _, err := o.Reserve("c", 0, 1000, func() int { panic("counted") }); err != nil {
		t.Errorf("without a limit: %v", err)
	}
}

// A VM that is not a sandbox must not use the reserves of memory and disk either.
func TestRoomLeavesTheReserves(t *testing.T) {
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := (&Rules{MemoryReserve: 1, DiskReserve: 1}).Room(1, f); err != nil {
		t.Errorf("small reserves: %v", err)
	}
	if err := (&Rules{}).Room(1<<62, f); err != nil {
		t.Errorf("no reserves: %v", err)
	}
	wantRefused(t, CodeHostMemory, (&Rules{MemoryReserve: 1}).Room(1<<62, f))
	wantRefused(t, CodeHostDisk, (&Rules{DiskReserve: 1 << 62}).Room(1, f))
	if err := (&Rules{DiskReserve: 1}).RoomForFiles(f, 1); err != nil {
		t.Errorf("a small file: %v", err)
	}
	wantRefused(t, CodeHostDisk, (&Rules{}).RoomForFiles(f, 1<<62))
	wantRefused(t, CodeHostDisk, (&Rules{DiskReserve: 1 << 62}).RoomForFiles(f, 1))
}

// If the host lacks memory for a request, the request waits until killed VMs have ended, and then
// reads the host's memory again.
func TestKilledVMsGiveMemoryBack(t *testing.T) {
	free, killed := uint64(0), 2
	a := New(Rules{MemoryReserve: startBytes}, "/", func() bool {
		killed--
		free = startBytes * uint64(4-killed)
		return killed >= 0
	})
	a.available = func() (uint64, error) { return free, nil }
	if err := a.Enter(1, 1); err != nil || killed != 1 {
		t.Errorf("%v, %d killed VMs are left", err, killed)
	}
	wantRefused(t, CodeHostMemory, a.Enter(10, 1))
	wantRefused(t, CodeHostMemory, a.Enter(10, 1))
	if killed != -1 {
		t.Errorf("the requests waited %d times", 2-killed)
	}
	wantRefused(t, CodeMaxSandboxes, New(Rules{MaxSandboxes: 1}, "/", func() bool { panic("waits") }).Enter(2, 1))
}
