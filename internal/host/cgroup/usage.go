package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Usage is the present and total usage of a cgroup's processes. If the host lacks the controller
// for a figure, the figure is zero.
type Usage struct {
	MemoryBytes   uint64 // bytes charged to the cgroup now, including page cache
	OwnBytes      uint64 // the part of MemoryBytes that the kernel cannot reclaim: all except page cache and tmpfs
	SwapBytes     uint64
	CPU           time.Duration // time in user and kernel mode, and in guests
	Throttled     time.Duration // time for which the CPU limit has stopped processes
	ThrottledRuns uint64        // number of periods in which the CPU limit has stopped processes
	Threads       uint64
	ReadBytes     uint64 // bytes read from disks
	WrittenBytes  uint64
}

func usageOf(dir string) (u Usage, err error) {
	var cpu, throttled, anon, kernel uint64
	seen := make(map[string][]string) // words of each file, because some files have several figures
	for _, v := range []struct {
		file, key string
		to        *uint64
	}{
		{"memory.current", "", &u.MemoryBytes}, {"memory.stat", "anon", &anon}, {"memory.stat", "kernel", &kernel},
		{"memory.swap.current", "", &u.SwapBytes}, {"cpu.stat", "usage_usec", &cpu},
		{"cpu.stat", "throttled_usec", &throttled}, {"cpu.stat", "nr_throttled", &u.ThrottledRuns},
		{"pids.current", "", &u.Threads},
	} {
		words, ok := seen[v.file]
		if !ok {
			if words, err = fields(dir, v.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return u, err
			}
			seen[v.file] = words
		}
		if *v.to, err = number(words, v.file, v.key); err != nil {
			return u, err
		}
	}
	u.CPU, u.Throttled = time.Duration(cpu)*time.Microsecond, time.Duration(throttled)*time.Microsecond
	u.OwnBytes = anon + kernel
	u.ReadBytes, u.WrittenBytes, err = ioStat(dir)
	return u, err
}

// stat returns the number after the given key in a file with lines of keys and numbers. If the key
// is "", it returns the only number in the file. It returns 0 if the file or the key is missing,
// because the host may lack the controller, or the kernel may be too old.
func stat(dir, file, key string) (uint64, error) {
	words, err := fields(dir, file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return number(words, file, key)
}

// number is like stat, for a file whose words were already read.
func number(words []string, file, key string) (uint64, error) {
	for i, word := range words {
		if key != "" && (word != key || i+1 == len(words)) {
			continue
		}
		if key != "" {
			word = words[i+1]
		}
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read cgroup file %s: %q is no number", file, word)
		}
		return n, nil
	}
	return 0, nil
}

// ioStat returns the sums over all disks in io.stat, which has a line for each disk: "8:0 rbytes=1
// wbytes=2 …".
func ioStat(dir string) (read, written uint64, err error) {
	p, err := os.ReadFile(filepath.Join(dir, "io.stat"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read a cgroup: %w", err)
	}
	for word := range strings.FieldsSeq(string(p)) {
		key, value, _ := strings.Cut(word, "=")
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			continue // the first word, which names the disk
		}
		switch key {
		case "rbytes":
			read += n
		case "wbytes":
			written += n
		}
	}
	return read, written, nil
}
