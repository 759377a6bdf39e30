package cgroup

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// MemoryBound returns the memory available to the daemon's cgroup, in bytes. That is the least
// memory.max and memory.high of the cgroup and of those above it. Without any limit it is
// MaxUint64.
func MemoryBound() uint64 {
	mount, err := mounted("/proc/self/mounts")
	if err != nil {
		return math.MaxUint64
	}
	dir, err := ownDir(mount)
	if err != nil {
		return math.MaxUint64
	}
	return boundAt(dir, mount)
}

// boundAt is MemoryBound for a cgroup of the hierarchy at mount.
func boundAt(dir, mount string) uint64 {
	least := uint64(math.MaxUint64)
	for ; strings.HasPrefix(dir, mount); dir = filepath.Dir(dir) {
		for _, file := range []string{"memory.max", "memory.high"} {
			p, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				continue // the root of the hierarchy has no limit
			}
			if n, err := strconv.ParseUint(strings.TrimSpace(string(p)), 10, 64); err == nil { // otherwise it is "max"
				least = min(least, n)
			}
		}
		if dir == mount || dir == "/" {
			break
		}
	}
	return least
}
