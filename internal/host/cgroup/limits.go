package cgroup

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/proto/vm"
)

// What a VMM may need beside the memory of its guest: its own, a few MiB; page tables of the host
// and of KVM, at most 1/128 of the guest's memory; and what KVM keeps on pages where it shadows
// page tables. It is generous: it is there for a VMM that its guest has taken over.
const (
	overheadBytes = 64 << 20
	overheadShare = 32
)

// maxPIDs bounds the threads of a VMM, KVM's included. One has about ten and those of its vCPUs; Go
// ends a program that cannot start a thread, so this is far above.
const maxPIDs = 512

const (
	cpuPeriod     = 100_000 // microseconds; the kernel's default
	defaultWeight = 100     // likewise
)

// Check refuses limits that are out of range or cannot be kept here, with an *invalid.Error that
// names the field below prefix.
func (t *Tree) Check(prefix string, l vm.Limits) error {
	var wrong *vm.LimitError
	if errors.As(l.Check(), &wrong) {
		return &invalid.Error{Field: prefix + wrong.Field, Reason: wrong.Reason}
	}
	for _, want := range []struct {
		field, controller string
		set               bool
	}{
		{"memory_mib", "memory", l.MemoryMiB != 0}, {"cpus", "cpu", l.CPUs != 0}, {"cpu_weight", "cpu", l.CPUWeight != 0},
		{"io_bytes_per_second", "io", l.IOBytesPerSecond != 0}, {"io_ops_per_second", "io", l.IOOpsPerSecond != 0},
	} {
		if !want.set {
			continue
		}
		if err := t.can(want.controller); err != nil {
			return invalid.Errorf(prefix+want.field, "this daemon cannot enforce it: %v; 'forkd doctor' says what to do", err)
		}
	}
	return nil
}

// memoryOf is the most that the VM process of a guest with ram bytes may have.
func memoryOf(l vm.Limits, ram uint64) uint64 {
	if l.MemoryMiB != 0 {
		return l.MemoryMiB << 20
	}
	return ram + ram/overheadShare + overheadBytes
}

// file is a file of a leaf and its content.
type file struct{ controller, name, value string }

// filesOf are what is written for limits. ram is the guest's memory, spare what memory.max has in
// addition, disk the major:minor of what io limits are for.
func filesOf(l vm.Limits, disk string, ram, spare uint64) []file {
	// Without a limit all of a guest may be swapped out, but no more: one that has taken its VMM
	// over could fill the host's swap.
	swap, quota, weight := memoryOf(l, ram), "max", l.CPUWeight
	if l.MemoryMiB != 0 {
		swap = l.SwapMiB << 20
	}
	if l.CPUs != 0 {
		quota = strconv.Itoa(int(math.Round(l.CPUs * cpuPeriod)))
	}
	if weight == 0 {
		weight = defaultWeight
	}
	list := []file{
		{"memory", "memory.max", strconv.FormatUint(memoryOf(l, ram)+spare, 10)},
		{"memory", "memory.swap.max", strconv.FormatUint(swap, 10)},
		{"cpu", "cpu.max", fmt.Sprintf("%s %d", quota, cpuPeriod)},
		{"cpu", "cpu.weight", strconv.FormatUint(uint64(weight), 10)},
	}
	if disk != "" {
		list = append(list, file{"io", "io.max", fmt.Sprintf("%s rbps=%s wbps=%[2]s riops=%[3]s wiops=%[3]s",
			disk, orMax(l.IOBytesPerSecond), orMax(l.IOOpsPerSecond))})
	}
	return list
}

func orMax(n uint64) string {
	if n == 0 {
		return "max"
	}
	return strconv.FormatUint(n, 10)
}
