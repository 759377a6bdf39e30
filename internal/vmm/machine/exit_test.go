package machine

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/vmm/kvm"
)

// Offsets of an exit's data in struct kvm_run (<linux/kvm.h>), in bytes.
const (
	runExitReason = 8
	runFlags      = 14
	runExit       = 32 // data of the exit reason

	runBusLock = 1 << 1 // KVM_RUN_X86_BUS_LOCK
)

// runArea returns a function that writes to the run area of the newest vCPU, as KVM does.
func runArea(t *testing.T) func(at int64, p []byte) {
	t.Helper()
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	var start int64
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		if strings.Contains(lines.Text(), "kvm-vcpu") {
			if _, err := fmt.Sscanf(lines.Text(), "%x-", &start); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mem.Close() })
	return func(at int64, p []byte) {
		t.Helper()
		if _, err := mem.WriteAt(p, start+at); err != nil {
			t.Fatal(err)
		}
	}
}

// A guest that locks the bus, or keeps its CPU from handling events, is delayed, whatever the exit
// reason. The guest is stopped only if its state is lost. The CPUs that run the tests do not cause
// such exits, so the test writes them to the run area.
func TestHarmfulExitsHoldTheGuestUp(t *testing.T) {
	m := mustBare(t, openKVM(t))
	write := runArea(t)
	var c *kvm.VCPU
	write(runExitReason, []byte{kvm.ExitNotify, 0, 0, 0})
	for _, v := range m.cpus.all {
		if v.kvm.ExitReason() == kvm.ExitNotify {
			c = v.kvm
		}
	}
	if c == nil {
		t.Fatal("no vCPU has the run area that was found")
	}
	for _, x := range []struct {
		name   string
		reason uint32
		flags  uint16
		detail uint32
		held   bool
		stops  string
	}{
		{"MMIO", kvm.ExitMMIO, 0, 0, false, ""},
		{"MMIO after a bus lock", kvm.ExitMMIO, runBusLock, 0, true, ""},
		{"bus lock", kvm.ExitBusLock, runBusLock, 0, true, ""},
		{"notify", kvm.ExitNotify, 0, 0, true, ""},
		{"notify without a state", kvm.ExitNotify, 0, kvm.NotifyContextInvalid, true, "its state is lost"},
	} {
		write(runExit, make([]byte, 32)) // simulates a read from an address without a device
		write(runExitReason, binary.LittleEndian.AppendUint32(nil, x.reason))
		write(runFlags, binary.LittleEndian.AppendUint16(nil, x.flags))
		write(runExit, binary.LittleEndian.AppendUint32(nil, x.detail))
		start := time.Now()
		err := m.handleExit(c)
		// Only a minimum is checked, because a sleep may take longer on any host.
		if took := time.Since(start); x.held && took < harmPause {
			t.Errorf("%s: held up for %v, want %v at least", x.name, took, harmPause)
		}
		if (err == nil) != (x.stops == "") || err != nil && !strings.Contains(err.Error(), x.stops) {
			t.Errorf("%s: %v, want %q", x.name, err, x.stops)
		}
	}
}
