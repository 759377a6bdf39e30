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

// CPUTime returns the CPU time used so far by this process and by its children that live; a vCPU's time in the guest is
// part of it. The difference of two calls is the cost of what happened between them, as long as no child ended.
func CPUTime() (time.Duration, error) {
	var self unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &self); err != nil {
		return 0, fmt.Errorf("read own CPU time: %w", err)
	}
	total := time.Duration(self.Utime.Nano() + self.Stime.Nano())
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, path := range stats {
		p, err := os.ReadFile(path)
		if err != nil || parent(string(p)) != os.Getpid() {
			continue // gone, or not ours
		}
		total += threadsTime(filepath.Dir(path))
	}
	return total, nil
}

// parent returns the parent's process id from /proc/<pid>/stat (proc_pid_stat(5)), 0 if it has an unknown form.
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
