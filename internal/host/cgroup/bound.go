package cgroup

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// MemoryBound returns the memory limit of the daemon's cgroup in bytes: the smallest memory.max or
// memory.high of that cgroup and the cgroups above it. It returns MaxUint64 if none has a limit.
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

// boundAt does the work of MemoryBound for the cgroup at the path dir, in the hierarchy that is
// mounted at the path mount.
func boundAt(dir, mount string) uint64 {
	least := uint64(math.MaxUint64)
	for ; strings.HasPrefix(dir, mount); dir = filepath.Dir(dir) {
		for _, file := range []string{"memory.max", "memory.high"} {
			p, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				continue // the root of the hierarchy has no limit
			}
			// the kernel writes "max" if there is no limit, and ParseUint then fails
			if n, err := strconv.ParseUint(strings.TrimSpace(string(p)), 10, 64); err == nil {
				least = min(least, n)
			}
		}
		if dir == mount || dir == "/" {
			break
		}
	}
	return least
}
