package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/vmtest/opcount"
)

// CPU is the CPU time that this process and each of its running child processes have used so far.
// The time of a vCPU in the guest is included.
type CPU struct {
	begin, end time.Duration         // CPU time of this process, before and after it reads the children's CPU time
	children   map[int]time.Duration // CPU time of the children, by process id
}

// ReadCPU reads the CPU times.
func ReadCPU() (CPU, error) {
	c := CPU{children: make(map[int]time.Duration)}
	var err error
	if c.begin, err = ownCPU(); err != nil {
		return c, err
	}
	pids, err := opcount.Children()
	if err != nil {
		return c, err
	}
	for _, pid := range pids {
		c.children[pid] = threadsTime(fmt.Sprintf("/proc/%d", pid))
	}
	c.end, err = ownCPU()
	return c, err
}

func ownCPU() (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("read own CPU time: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// Since returns the CPU time that this process and the child processes in pids have used since the
// given reading. If a child did not exist at that time, the result has its CPU time since the
// child's start. The cost of the two readings is not included.
func (c CPU) Since(before CPU, pids []int) (own, children time.Duration) {
	for _, pid := range pids {
		children += c.children[pid] - before.children[pid]
	}
	return c.begin - before.end, children
}

// threadsTime returns the sum of the times that the scheduler has counted for the threads of a
// process, in nanoseconds (Documentation/scheduler/sched-stats.rst). The fields utime and stime of
// stat have a resolution of only 10 ms.
func threadsTime(dir string) time.Duration {
	files, _ := filepath.Glob(filepath.Join(dir, "task", "*", "schedstat"))
	var total time.Duration
	for _, f := range files {
		p, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		first, _, _ := strings.Cut(string(p), " ")
		if nanos, err := strconv.ParseInt(first, 10, 64); err == nil {
			total += time.Duration(nanos)
		}
	}
	return total
}
