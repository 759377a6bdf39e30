package budgets

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/internal/vmtest"
	"github.com/forkd/forkd/internal/vmtest/opcount"
)

const (
	tag       = "stub"
	memoryMiB = 128

	// settle is the delay before counts are read. Work that follows the answer to a request belongs
	// to the request.
	settle = 100 * time.Millisecond
)

// repeat returns the number of repetitions. A budget bounds the median, because another process of
// the host can disturb some of them.
func repeat() int {
	if vmtest.Emulated() {
		return 3 // each takes seconds there
	}
	return 7
}

// world is a daemon's parts, with the snapshot of a stub.
type world struct {
	*lab.Daemon
	counter *opcount.Counter
}

// newWorld returns a world that ends with the test.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{counter: opcount.Start(t)}
	var undo cleanup.Stack
	t.Cleanup(undo.Run)
	var err error
	w.Daemon, err = lab.NewStubDaemon(host(t), &undo)
	if errors.Is(err, embedded.ErrNotBuiltIn) && !vmtest.Emulated() {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.with(t, 0, func(m *lab.Manager) {
		if err := w.BakeStub(t.Context(), m, tag, memoryMiB, 0, 0); err != nil {
			t.Fatal(err)
		}
	})
	return w
}

// host describes this host. It skips the test where no KVM can run a stub.
func host(t *testing.T) report.Host {
	t.Helper()
	h, err := lab.Host()
	if err != nil || h.Accel != lab.AccelPVM { // a KVM that runs only stubs is not usable for other VM tests
		vmtest.NeedKVM(t)
	}
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// with calls f with a manager that has a pool of the given size.
func (w *world) with(t *testing.T, pool int, f func(*lab.Manager)) {
	t.Helper()
	err := w.WithManager(lab.Options{Pool: pool, Guest: lab.StubClient}, func(m *lab.Manager) error {
		f(m)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// counted are the operations of a process.
type counted struct {
	opcount.Counts
	numbers opcount.Numbers
}

func (w *world) read(t *testing.T, pid int) counted {
	t.Helper()
	numbers, err := w.counter.Numbers(pid)
	if err != nil {
		t.Fatal(err)
	}
	counts, err := w.counter.Read(pid)
	if err != nil {
		t.Fatal(err)
	}
	return counted{counts, numbers}
}

func (c counted) sub(before counted) counted {
	return counted{c.Counts.Sub(before.Counts), c.numbers.Sub(before.numbers)}
}

// check compares the median of a count with its budget. The message of a failure lists the system
// calls of the sample that has the median.
func check(t *testing.T, what string, most uint64, all []counted, count func(counted) uint64) {
	t.Helper()
	sorted := slices.SortedFunc(slices.Values(all), func(a, b counted) int { return int(count(a)) - int(count(b)) })
	median := sorted[len(sorted)/2]
	opcount.Budget{What: what, Most: most}.Check(t, count(median), median.numbers)
}

// timed are the system calls that Go's scheduler makes when time passes or threads are created. Their
// number depends on the speed of the host.
var timed = []int{unix.SYS_NANOSLEEP, unix.SYS_SCHED_YIELD, unix.SYS_GETPID, unix.SYS_TGKILL, unix.SYS_RT_SIGRETURN,
	unix.SYS_FUTEX, unix.SYS_EPOLL_PWAIT, unix.SYS_MADVISE, unix.SYS_CLONE, unix.SYS_RT_SIGPROCMASK,
	unix.SYS_SIGALTSTACK, unix.SYS_GETTID}

// calls counts all system calls except timed.
func calls(c counted) uint64 { return c.Calls - c.numbers.Of(timed...) }

// checkSwitches compares the number of context switches with its budget. It takes the smallest
// sample, without the sleeps of Go's scheduler, because a busy host only adds switches. On an
// emulated CPU it does nothing: everything takes so long there that threads lose the CPU many times.
func checkSwitches(t *testing.T, what string, most uint64, all []counted) {
	t.Helper()
	switches := func(c counted) uint64 { return c.Switches - min(c.Switches, c.numbers[unix.SYS_NANOSLEEP]) }
	if !vmtest.Emulated() {
		least := slices.MinFunc(all, func(a, b counted) int { return int(switches(a)) - int(switches(b)) })
		opcount.Budget{What: what, Most: most}.Check(t, switches(least), least.numbers)
	}
}

// of returns a function that counts the calls with some numbers.
func of(numbers ...int) func(counted) uint64 {
	return func(c counted) uint64 { return c.numbers.Of(numbers...) }
}

// entries returns the number of entries of a directory of a process in /proc.
func entries(t *testing.T, pid int, dir string) uint64 {
	t.Helper()
	list, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), dir))
	if err != nil {
		t.Fatal(err)
	}
	return uint64(len(list))
}

// budget compares a count that has no further detail with its budget.
func budget(t *testing.T, what string, most, have uint64) {
	t.Helper()
	opcount.Budget{What: what, Most: most}.Check(t, have, nil)
}
