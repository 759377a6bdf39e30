package virtiotest

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Hold measures the work that a device does between two calls of Transport.Wanted. A pause may have
// to wait for that work. The device must run in the calling goroutine, which must be locked to its
// thread.
type Hold struct {
	Bytes uint64        // maximum number of bytes moved between two calls
	Calls uint64        // maximum number of system calls for reading or writing between two calls
	Time  time.Duration // longest time between two calls
	CPU   time.Duration // maximum processor time between two calls; on a busy host more reliable than Time

	tb    testing.TB
	extra func() uint64
	begun time.Time
	at    work
}

// work is the total work of a thread so far.
type work struct {
	bytes, calls, extra uint64
	cpu                 time.Duration
}

// NewHold returns a Hold that uses the kernel's statistics of the thread's reads and writes. If
// extra is not nil, it returns a number that changes when the device moves bytes in other ways,
// such as the size of a file. If this number changes by more than the number of bytes in the
// statistics, the change counts instead.
func NewHold(tb testing.TB, extra func() uint64) *Hold {
	tb.Helper()
	if _, err := os.Stat("/proc/thread-self/io"); err != nil {
		tb.Skipf("the kernel does not account for input and output of threads: %v", err)
	}
	h := &Hold{tb: tb, extra: extra}
	h.begin()
	return h
}

// Look must be called when the device calls Transport.Wanted.
func (h *Hold) Look() {
	took, cpu, before := time.Since(h.begun), h.processorTime(), h.at
	h.begin()
	extra := h.at.extra - before.extra
	if h.at.extra < before.extra {
		extra = before.extra - h.at.extra
	}
	moved := max(h.at.bytes-before.bytes, extra)
	h.Bytes, h.Calls, h.Time = max(h.Bytes, moved), max(h.Calls, h.at.calls-before.calls), max(h.Time, took)
	h.CPU = max(h.CPU, cpu-before.cpu)
}

func (h *Hold) begin() {
	h.at = work{}
	if h.extra != nil {
		h.at.extra = h.extra()
	}
	text, err := os.ReadFile("/proc/thread-self/io")
	if err != nil {
		h.tb.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var name string
		var n uint64
		if _, err := fmt.Sscan(line, &name, &n); err != nil {
			h.tb.Fatal(err)
		}
		switch name {
		case "rchar:", "wchar:":
			h.at.bytes += n
		case "syscr:", "syscw:":
			h.at.calls += n
		}
	}
	h.at.cpu, h.begun = h.processorTime(), time.Now()
}

func (h *Hold) processorTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		h.tb.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// String returns a row of a table: the longest time in milliseconds, processor time, bytes and
// calls.
func (h *Hold) String() string {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return fmt.Sprintf("%8.2f ms %8.2f ms of CPU %6d KiB %4d calls", ms(h.Time), ms(h.CPU), h.Bytes>>10, h.Calls)
}
