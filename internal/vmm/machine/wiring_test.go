package machine

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmm/cpuid"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/kvm"
	"github.com/forkd/forkd/internal/vmtest"
)

// These tests use real KVM and a machine without a guest. They check the KVM calls that New, Save
// and Restore make, and the order of these calls. Neither depends on a guest.

// newBare returns a machine with two vCPUs and without a guest.
func newBare(t *testing.T, sys *kvm.System) (*Machine, error) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(vmtest.ShortDir(t), "v")})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	file, err := l.File()
	_ = l.Close()
	if err != nil {
		t.Fatal(err)
	}
	tracker, err := guestmem.NewTracker("/proc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tracker.Close() })
	m, err := New(Config{KVM: sys, Tracker: tracker, VsockListener: file,
		Shape: vm.Shape{MemoryBytes: 64 << 20, VCPUs: 2, Template: vmtest.Template()}})
	if err == nil {
		t.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return m, err
}

func openKVM(t *testing.T) *kvm.System {
	t.Helper()
	vmtest.NeedKVM(t)
	sys, err := kvm.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sys.Close() })
	return sys
}

func mustBare(t *testing.T, sys *kvm.System) *Machine {
	t.Helper()
	m, err := newBare(t, sys)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// tamper saves the state of m, calls edit to change the state, and writes it to a file.
func tamper(t *testing.T, m *Machine, edit func(whole *vmState, cpus []*vcpuState)) *os.File {
	t.Helper()
	p, err := m.saveState()
	if err != nil {
		t.Fatal(err)
	}
	r, err := checkState(p)
	if err != nil {
		t.Fatal(err)
	}
	type section struct {
		name string
		save func(*codec.Writer)
	}
	var sections []section
	whole, cpus := &vmState{}, []*vcpuState{}
	for r.Len() > 0 {
		name, contents := r.String(), r.Blob()
		if err := r.Err(); err != nil {
			t.Fatal(err)
		}
		s := section{name, func(w *codec.Writer) { w.Raw(contents) }}
		switch name {
		case "vm":
			err, s.save = whole.Restore(codec.NewReader(contents)), whole.Save
		case "vcpu":
			c := &vcpuState{}
			err, s.save = c.Restore(codec.NewReader(contents)), c.Save
			cpus = append(cpus, c)
		}
		if err != nil {
			t.Fatal(err)
		}
		sections = append(sections, s)
	}
	edit(whole, cpus)
	w := newStateWriter()
	for _, s := range sections {
		w.section(s.name, s.save)
	}
	f, err := os.CreateTemp(t.TempDir(), "state")
	if err == nil {
		_, err = f.Write(w.finish())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// A restore sets the TSC rate that the guest has measured. If the host does not support the rate,
// the error names the rate.
func TestRestoreSetsTheTSCRate(t *testing.T) {
	sys := openKVM(t)
	m := mustBare(t, sys)
	var rate uint32
	f := tamper(t, m, func(whole *vmState, _ []*vcpuState) {
		rate = whole.tscKHz / 2
		whole.tscKHz = rate
	})
	scaling, err := sys.Extension(kvm.CapTSCControl)
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Restore(RestoreConfig{State: int(f.Fd())})
	if scaling == 0 {
		var inc *cpuid.IncompatibleError
		if !errors.As(err, &inc) || !strings.Contains(err.Error(), "no tsc scaling") {
			t.Errorf("half the rate on a host that cannot scale it: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range m.cpus.all {
		if khz, err := c.kvm.TSCKHz(); err != nil || khz != rate {
			t.Errorf("vCPU %d has a TSC of %d kHz, %v, want %d", i, khz, err, rate)
		}
	}
}

// Saved TSCs may have been read at very different times. A restore makes them synchronous again.
func TestRestoreAlignsTSCs(t *testing.T) {
	m := mustBare(t, openKVM(t))
	const apart = 1 << 45 // several hours
	f := tamper(t, m, func(_ *vmState, cpus []*vcpuState) {
		findMSR(cpus[1].msrs, cpuid.MSRTSC).Data += apart
	})
	if _, err := m.Restore(RestoreConfig{State: int(f.Fd())}); err != nil {
		t.Fatal(err)
	}
	var tsc [2]uint64
	for i, c := range m.cpus.all {
		entries, err := readMSRs(c.kvm, []uint32{cpuid.MSRTSC})
		if err != nil || len(entries) != 1 {
			t.Fatalf("%d MSRs, %v", len(entries), err)
		}
		tsc[i] = entries[0].Data
	}
	if tsc[1]-tsc[0] >= apart/2 { // the difference is positive, because the TSC of vCPU 1 is read later
		t.Errorf("the TSCs are %#x and %#x", tsc[0], tsc[1])
	}
}

// A guest is refused if it has read that the processor is immune to a vulnerability, and this
// host's processor is not immune.
func TestRestoreComparesArchCapabilities(t *testing.T) {
	m := mustBare(t, openKVM(t))
	for i := range m.cpuid { // simulates a template that does not hide the MSR
		for j := range m.cpuid[i] {
			if e := &m.cpuid[i][j]; e.Function == 7 && e.Index == 0 {
				e.Edx |= 1 << 29
			}
		}
	}
	f := tamper(t, m, func(_ *vmState, cpus []*vcpuState) {
		const future = 1 << 61 // no processor has this bit
		if e := findMSR(cpus[0].msrs, cpuid.MSRArchCapabilities); e != nil {
			e.Data |= future
		} else {
			cpus[0].msrs = append(cpus[0].msrs, kvm.MSREntry{Index: cpuid.MSRArchCapabilities, Data: future})
		}
	})
	_, err := m.Restore(RestoreConfig{State: int(f.Fd())})
	var inc *cpuid.IncompatibleError
	if !errors.As(err, &inc) {
		t.Errorf("a guest that was shown more than the host has: %v", err)
	}
}

// If the host can read an MSR but not set it, making a snapshot returns an error.
func TestSaveFindsAnMSRThatNoRestoreCouldSet(t *testing.T) {
	m := mustBare(t, openKVM(t))
	dir := t.TempDir()
	save := func(name string) error {
		state, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer state.Close()
		layer, err := os.Create(filepath.Join(dir, name+".mem"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.Branch(BranchConfig{Mode: vm.BranchDiff, State: state, Layer: layer, MaxExtents: 64, Device: -1})
		return err
	}
	if err := save("good"); err != nil {
		t.Fatal(err)
	}
	const perfStatus = 0x198 // IA32_PERF_STATUS: KVM can read it but refuses to set it
	m.msrs = append(m.msrs, perfStatus)
	if err := save("bad"); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("MSR %#x", perfStatus)) {
		t.Errorf("a save with an MSR that cannot be set: %v", err)
	}
}

// New notices a missing capability before it creates anything.
func TestNewChecksCapabilitiesFirst(t *testing.T) {
	vmtest.NeedKVM(t)
	fd, err := unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	sys, err := kvm.NewSystem(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if err := unix.Dup3(int(null.Fd()), fd, unix.O_CLOEXEC); err != nil { // simulates a KVM without capabilities
		t.Fatal(err)
	}
	if _, err := newBare(t, sys); !errors.Is(err, unix.ENOTTY) || !strings.Contains(err.Error(), "check KVM capability") {
		t.Errorf("a machine of what is not KVM: %v", err)
	}
}

// enableCap is KVM_ENABLE_CAP.
const enableCap = 0x4068aea3

// New sets limits for the guest in KVM, if the host supports these limits: a guest exits when it
// locks a bus or keeps its CPU from handling events, and KVM does not poll for halted vCPUs. The
// test traces system calls, because the settings of a VM cannot be read.
func TestNewSetsThePolicy(t *testing.T) {
	sys := openKVM(t)
	want := 0
	for id, bits := range map[uintptr]int{kvm.CapBusLockExit: kvm.BusLockExit, kvm.CapNotifyVMExit: 1,
		kvm.CapHaltPoll: 1} {
		have, err := sys.Extension(id)
		if err != nil {
			t.Fatal(err)
		}
		if have&bits == bits {
			want++
		}
	}
	if want == 0 {
		t.Skip("this KVM has no part of the policy")
	}
	tracefs := t.TempDir()
	if err := unix.Mount("tracefs", tracefs, "tracefs", 0, ""); err != nil {
		t.Skipf("mount tracefs: %v", err)
	}
	defer unix.Unmount(tracefs, unix.MNT_DETACH)
	instance := filepath.Join(tracefs, "instances", fmt.Sprintf("forkd-%d", os.Getpid()))
	if err := os.Mkdir(instance, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(instance)
	event := filepath.Join(instance, "events/syscalls/sys_enter_ioctl")
	if _, err := os.Stat(event); err != nil {
		t.Skipf("this kernel does not trace system calls: %v", err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, f := range []struct{ path, text string }{
		{filepath.Join(instance, "set_event_pid"), fmt.Sprint(unix.Gettid())},
		{filepath.Join(event, "filter"), fmt.Sprintf("cmd == %d", enableCap)},
		{filepath.Join(event, "enable"), "1"},
	} {
		if err := os.WriteFile(f.path, []byte(f.text), 0); err != nil {
			t.Fatal(err)
		}
	}
	mustBare(t, sys)
	if err := os.WriteFile(filepath.Join(event, "enable"), []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	trace, err := os.ReadFile(filepath.Join(instance, "trace"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(trace), "sys_ioctl("); got != want {
		t.Errorf("KVM was asked to enable %d capabilities, want %d:\n%s", got, want, trace)
	}
}

// A snapshot is refused if it shows CPUID bits that every template hides, or sets an MSR that no
// save reads. The error names the bit or the MSR. KVM itself would accept both.
func TestRestoreRefusesWhatNoSaveWrites(t *testing.T) {
	sys := openKVM(t)
	const smbase = 0x9e // IA32_SMBASE
	for want, edit := range map[string]func(whole *vmState, cpus []*vcpuState){
		"leaf 0xa.0": func(_ *vmState, cpus []*vcpuState) {
			const pmu = 0xa
			cpus[1].cpuid = append(cpus[1].cpuid, kvm.CPUIDEntry{Function: pmu, Eax: 5})
		},
		"MSR 0x9e": func(_ *vmState, cpus []*vcpuState) {
			cpus[1].msrs = append(cpus[1].msrs, kvm.MSREntry{Index: smbase, Data: 0x30000})
		},
	} {
		m := mustBare(t, sys)
		_, err := m.Restore(RestoreConfig{State: int(tamper(t, m, edit).Fd())})
		if !errors.Is(err, vm.ErrBadState) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
}
