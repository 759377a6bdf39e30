package cgroup

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/proto/vm"
)

// By default, a VMM may use overheadBytes, and 1/overheadShare of its guest's memory, in addition
// to the guest's memory. A VMM needs a few MiB for itself, page tables of the host and of KVM (at
// most 1/128 of the guest's memory), and KVM's data about pages if KVM shadows page tables. The
// bound is generous, because its only purpose is to stop a compromised VMM.
const (
	overheadBytes = 64 << 20
	overheadShare = 32
)

// maxPIDs is the maximum number of threads of a VMM, including KVM's threads. A VMM has about ten
// threads, and one more thread for each vCPU. The bound is much higher, because Go exits if it
// cannot start a thread.
const maxPIDs = 512

const (
	cpuPeriod     = 100_000 // microseconds; the kernel's default value
	defaultWeight = 100     // the kernel's default value
)

// Check returns an error if limits are out of range or cannot be enforced on this host. The error
// is an *invalid.Error that names the field, with the given prefix.
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

// memoryOf returns the memory limit for the VM process of a guest with the given memory in bytes.
func memoryOf(l vm.Limits, ram uint64) uint64 {
	if l.MemoryMiB != 0 {
		return l.MemoryMiB << 20
	}
	return ram + ram/overheadShare + overheadBytes
}

// file is a file of a cgroup with the value to write.
type file struct{ controller, name, value string }

// filesOf returns the files to write for limits. The parameter ram is the guest's memory, spare is
// added to memory.max, and disk is the major:minor of the disk for I/O limits.
func filesOf(l vm.Limits, disk string, ram, spare uint64) []file {
	// By default the swap limit equals the memory limit. Then the whole guest can be swapped out,
	// but a compromised VMM cannot fill the host's swap.
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
