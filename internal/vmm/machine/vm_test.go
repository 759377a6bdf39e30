package machine_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmm/regtest"
)

// model is the expected content of a guest's memory and disk. Whenever a test makes the guest
// change its memory or disk, the test makes the same change in the model. Then the test compares
// the checksums of guest and model.
type model struct{ memory, disk []byte }

const (
	memoryMiB = 8
	diskUsed  = 256 << 10 // number of bytes of the disk that the tests use
)

// newModel fills memory and disk of v's guest with known content.
func newModel(t *testing.T, v *testVM, seed uint64) *model {
	t.Helper()
	m := &model{memory: pattern(seed, memoryMiB*mib), disk: make([]byte, diskUsed)}
	v.call(t, "fill %d %d", seed, memoryMiB)
	m.writeDisk(t, v, 0, diskUsed, seed)
	return m
}

func (m *model) clone() *model {
	return &model{append([]byte(nil), m.memory...), append([]byte(nil), m.disk...)}
}

func (m *model) writeDisk(t *testing.T, v *testVM, off, n int, seed uint64) {
	t.Helper()
	v.call(t, "write %d %d %d", off, n, seed)
	copy(m.disk[off:], pattern(seed, n))
}

// change changes parts of memory and disk, in the guest and in the model.
func (m *model) change(t *testing.T, v *testVM, seed uint64) {
	t.Helper()
	v.call(t, "scribble %d 300", seed)
	if err := scribble(m.memory, seed, 300); err != nil {
		t.Fatal(err)
	}
	m.writeDisk(t, v, int(seed%8)*12<<10, 8<<10, seed)
}

// check compares the guest with the model. It also checks that the guest's devices work: the disk,
// the random number device, streams in both directions, and a worker on every CPU.
func (m *model) check(t *testing.T, v *testVM, what string) {
	t.Helper()
	if got, want := v.call(t, "sum"), checksum(m.memory); got != want {
		t.Errorf("%s: memory has checksum %s, want %s", what, got, want)
	}
	if got, want := v.call(t, "disk 0 %d", diskUsed), checksum(m.disk); got != want {
		t.Errorf("%s: disk has checksum %s, want %s", what, got, want)
	}
	if a, b := v.call(t, "random"), v.call(t, "random"); a == b || len(a) != 2*guestSample {
		t.Errorf("%s: random numbers %q and %q", what, a, b)
	}
	v.call(t, "dial 9")
	v.wantDial(t, 9)
	before := v.ticks(t)
	if len(before) != int(v.host.shape.VCPUs) {
		t.Errorf("%s: %d CPUs, want %d", what, len(before), v.host.shape.VCPUs)
	}
	for cpu, n := range before {
		for v.ticks(t)[cpu] == n { // the test times out if a CPU does not run
		}
	}
}

// ticks returns how many computations the worker on each CPU has made.
func (v *testVM) ticks(t *testing.T) []uint64 {
	t.Helper()
	var counts []uint64
	for _, word := range strings.Fields(v.call(t, "ticks")) {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		counts = append(counts, n)
	}
	return counts
}

// waitAlone waits until s is the only open stream of the guest. If another stream stays open, the
// test times out.
func (s *stream) waitAlone(t *testing.T) {
	t.Helper()
	for s.call(t, "streams") != "1" {
	}
}

func forVCPUs(t *testing.T, counts []int, f func(t *testing.T, h *host)) {
	for _, n := range counts {
		t.Run(fmt.Sprintf("%d vCPUs", n), func(t *testing.T) { f(t, newHost(t, n)) })
	}
}

// The children of a snapshot begin with the memory and the disk of the snapshot, and do not see
// each other's changes.
func TestSaveAndRestore(t *testing.T) {
	forVCPUs(t, []int{1, 2}, func(t *testing.T, h *host) {
		parent := h.boot(t)
		saved := newModel(t, parent, 1)
		saved.check(t, parent, "parent")
		held := parent.dial(t)
		held.waitAlone(t)
		ticks := parent.ticks(t)
		s := parent.save(t)
		var random []string
		for i := range uint64(2) {
			child, m := h.fork(t, s), saved.clone()
			m.check(t, child, "child")
			child.dial(t).waitAlone(t) // wait until the guest has noticed the end of the parent's stream
			for cpu, n := range child.ticks(t) {
				if n < ticks[cpu] {
					t.Errorf("the worker on CPU %d has computed %d times in a child, %d times in its parent", cpu, n, ticks[cpu])
				}
			}
			m.change(t, child, 10+i)
			m.check(t, child, "changed child")
			random = append(random, child.call(t, "random"))
		}
		if random[0] == random[1] {
			t.Errorf("two children have the same random numbers %s", random[0])
		}
	})
}

// Every kind of branch saves the state at one instant, whatever the source does afterwards. A child
// of the branch can be rolled back repeatedly.
func TestBranchAndRollback(t *testing.T) {
	forVCPUs(t, []int{1, 2}, func(t *testing.T, h *host) {
		parent := h.boot(t)
		m := newModel(t, parent, 2)
		base := parent.save(t)
		source := h.fork(t, base)
		for i, mode := range []vm.BranchMode{vm.BranchLive, vm.BranchDiff, vm.BranchFull, vm.BranchLive} {
			m.change(t, source, 20+uint64(i))
			branched := m.clone()
			s := source.branch(t, base, mode)
			m.change(t, source, 30+uint64(i))
			child := h.fork(t, s)
			branched.check(t, child, fmt.Sprintf("child of the %v branch", mode))
			for range 1 + len(s.layers)%2 { // twice for a snapshot with a single layer
				branched.clone().change(t, child, 40)
				child.restore(t, s)
				branched.check(t, child, fmt.Sprintf("rolled back to the %v branch", mode))
			}
			if err := child.Pause(); err != nil { // a running child would take CPU time from the other children
				t.Fatal(err)
			}
		}
		m.check(t, source, "source")
	})
}

// Vector registers and PKRU of user programs keep their values in every child of a saved or
// branched machine, after a rollback, and in the source. The guest finds out which registers exist,
// because emulated hosts have only XMM.
func TestRegistersAreCarried(t *testing.T) {
	forVCPUs(t, []int{1, 2}, func(t *testing.T, h *host) {
		parent := h.boot(t)
		hold := func(v *testVM, seed int) []string { return strings.Fields(v.call(t, "hold %d", seed)) }
		covered := hold(parent, 1)
		missing := slices.DeleteFunc(slices.Clone(regtest.All[:]), func(r string) bool { return slices.Contains(covered, r) })
		t.Logf("covered: %v; not offered to this guest, not covered: %v", covered, missing)
		if !slices.Contains(covered, regtest.XMM) {
			t.Errorf("the guest holds %v", covered)
		}
		base := parent.save(t)
		child, source := h.fork(t, base), h.fork(t, base)
		for _, v := range []*testVM{child, source} {
			v.call(t, "held")
		}
		hold(source, 2)
		s := source.branch(t, base, vm.BranchLive)
		source.call(t, "held")
		child.restore(t, s)
		for range 2 {
			child.call(t, "held")
			hold(child, 3)
			child.restore(t, s)
		}
		child.call(t, "held")
	})
}

// A machine with four vCPUs can be saved, branched and restored.
func TestFourVCPUs(t *testing.T) {
	h := newHost(t, 4)
	parent := h.boot(t)
	checkPriorities(t, 4)
	m := newModel(t, parent, 4)
	base := parent.save(t)
	source := h.fork(t, base)
	m.change(t, source, 50)
	branched := m.clone()
	s := source.branch(t, base, vm.BranchLive)
	m.change(t, source, 51)
	m.check(t, source, "source")
	if err := source.Pause(); err != nil { // a running source would take CPU time from the child
		t.Fatal(err)
	}
	child := h.fork(t, s)
	branched.check(t, child, "child")
	branched.clone().change(t, child, 52)
	child.restore(t, s)
	branched.check(t, child, "rolled back")
}

// checkPriorities waits until exactly the given number of threads of this process have a lower
// priority than the other threads.
func checkPriorities(t *testing.T, vcpus int) {
	t.Helper()
	var threads map[int]int
	for range 600 {
		threads = priorities(t)
		if low := slices.Min(slices.Collect(maps.Keys(threads))); len(threads) == 2 && threads[low] == vcpus {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("threads by priority: %v, want two, the lower that of %d vCPUs", threads, vcpus)
}

// priorities returns the number of threads of this process for each value of 20 - nice.
func priorities(t *testing.T) map[int]int {
	t.Helper()
	program, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	threads := map[int]int{}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			t.Fatal(err)
		}
		name, err := os.ReadFile("/proc/self/task/" + task.Name() + "/comm")
		raw, errRaw := unix.Getpriority(unix.PRIO_PROCESS, tid)
		// This skips threads that have exited, and KVM's own thread.
		if err == nil && errRaw == nil && string(name) == string(program) {
			threads[raw]++
		}
	}
	return threads
}

// If a guest powers off, the machine reports that once, even if the guest is a copy.
func TestExitIsReported(t *testing.T) {
	h := newHost(t, 1)
	parent := h.boot(t)
	child := h.fork(t, parent.save(t))
	fmt.Fprintln(child.dial(t), "poweroff")
	if e := <-child.exited; e.Reason != vm.ExitPowerOff {
		t.Errorf("exit %v %s, want a power-off", e.Reason, e.Detail)
	}
}

// If the host's disk is full, a guest that writes is paused. If the guest is resumed too early, it
// is paused again. The guest loses no data, and neither does a branch that is made during the
// pause.
func TestFullHostPausesTheMachine(t *testing.T) {
	h := newHost(t, 2)
	parent := h.boot(t)
	m := newModel(t, parent, 3)
	base := parent.save(t)
	small := filepath.Join(h.dir, "small")
	if err := errors.Join(os.Mkdir(small, 0o700), unix.Mount("tmpfs", small, "tmpfs", 0, "size=512k")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(small, unix.MNT_DETACH) })
	h.tops = small
	v := h.fork(t, base)
	h.tops = h.dir
	ballast := filepath.Join(small, "ballast")
	if err := os.WriteFile(ballast, make([]byte, mib), 0o600); err == nil {
		t.Fatal("the file system is not full")
	}
	s := v.dial(t)
	fmt.Fprintf(s, "write 0 %d 77\n", 128<<10)
	<-v.stalled
	for range 2 {
		if st, err := v.Stats(); err != nil || !st.DiskFull || !st.Paused {
			t.Fatalf("a guest that waits for room: %+v, %v", st, err)
		}
		if err := v.Resume(); err != nil {
			t.Fatal(err)
		}
		<-v.stalled
	}
	child := h.fork(t, v.branch(t, base, vm.BranchDiff))
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := v.Resume(); err != nil {
		t.Fatal(err)
	}
	if line, err := s.r.ReadString('\n'); err != nil || line != "ok\n" {
		t.Fatalf("the write that waited: %q, %v", line, err)
	}
	if st, err := v.Stats(); err != nil || st.DiskFull || st.Paused {
		t.Errorf("when there is room: %+v, %v", st, err)
	}
	copy(m.disk, pattern(77, 128<<10))
	m.check(t, v, "after waiting for room")
	m.check(t, child, "child of a guest that waited") // the child's disk has space, so its write was completed
}
