package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPU is the CPU time used so far by this process and by each of its children that live. A vCPU's
// time in the guest is part of it.
type CPU struct {
	begin, end time.Duration         // this process, before and after it read the others
	children   map[int]time.Duration // by process id
}

// ReadCPU reads the CPU times.
func ReadCPU() (CPU, error) {
	c := CPU{children: make(map[int]time.Duration)}
	var err error
	if c.begin, err = ownCPU(); err != nil {
		return c, err
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return c, err
	}
	for _, path := range stats {
		p, err := os.ReadFile(path)
		if err != nil || parent(string(p)) != os.Getpid() {
			continue // gone, or not ours
		}
		dir := filepath.Dir(path)
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			c.children[pid] = threadsTime(dir)
		}
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

// Since returns what this process and the children pids have used since before; a child that did
// not live then counts from its start. The cost of the two readings is not in it.
func (c CPU) Since(before CPU, pids []int) time.Duration {
	used := c.begin - before.end
	for _, pid := range pids {
		used += c.children[pid] - before.children[pid]
	}
	return used
}

// parent returns the parent's process id from /proc/<pid>/stat (proc_pid_stat(5)), 0 if it has an
// unknown form.
func parent(stat string) int {
	i := strings.LastIndex(stat, ") ") // the command's name before it may hold anything
	if i < 0 {
		return 0
	}
	fields := strings.Fields(stat[i+2:])
	if len(fields) < 2 {
		return 0
	}
	pid, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0
	}
	return pid
}

// threadsTime adds up what the scheduler has counted for every thread of a process, in nanoseconds
// (Documentation/scheduler/sched-stats.rst); utime and stime in stat have a grain of 10 ms.
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
