// Package vm defines the values with which forkd's programs describe one virtual machine: its
// shape, the modes of a branch, the reasons of its exit, and its counters. The control protocol,
// snapshots and the API use these values.
//
// It has only data types. internal/vmm runs machines, and internal/host requests them.
package vm

import (
	"fmt"
	"slices"
	"strings"
)

// Shape holds the properties that are fixed when a VM is created. A snapshot can be restored only
// into a VM with the same shape.
type Shape struct {
	MemoryBytes uint64
	VCPUs       uint32
	Template    string // CPU template, one of the Template constants
}

// CPU templates determine the CPUID of a guest, starting from the CPUID of the host.
const (
	// TemplateHost shows all features of the host's CPU except those whose state cannot be saved.
	TemplateHost = "host"
	// TemplatePortable shows the features that all server processors of one vendor have had since
	// 2017, so that snapshots can be moved between hosts.
	TemplatePortable = "portable"
	// TemplateV2 is the portable template without features that need XSAVE: the x86-64-v2 level.
	TemplateV2 = "x86-64-v2"
	// TemplateAnyVendor shows the same Intel processor on hosts of Intel and AMD, with the features
	// of the portable template that both vendors have.
	TemplateAnyVendor = "any-vendor"
	// TemplateAnyVendorEmulated is the any-vendor template without features that need XSAVE. It
	// also lacks CMPXCHG16B: after this instruction, older QEMUs save wrong flags of a nested
	// guest.
	TemplateAnyVendorEmulated = "any-vendor-emulated"
)

// Templates returns the names of all CPU templates.
func Templates() []string {
	return []string{TemplateHost, TemplatePortable, TemplateAnyVendor, TemplateV2, TemplateAnyVendorEmulated}
}

// CheckTemplate returns an error unless name is a CPU template.
func CheckTemplate(name string) error {
	if slices.Contains(Templates(), name) {
		return nil
	}
	return fmt.Errorf("unknown cpu template %q: use %s", name, strings.Join(Templates(), ", "))
}

// MaxVCPUs is the number of 8-bit APIC identifiers without the broadcast identifier 255. With more
// vCPUs, the I/O APIC would need interrupt remapping, or KVM's extended destination identifiers.
const MaxVCPUs = 255

// MaxMemoryBytes bounds the memory of a VM. A snapshot with more memory is refused before any of it
// is mapped.
const MaxMemoryBytes = 1 << 40

// MaxVolumeSlots bounds the number of a machine's volume slots.
const MaxVolumeSlots = 8

// MaxVolumeBytes bounds the size of a volume.
const MaxVolumeBytes = 1 << 40

// MaxStateBytes bounds the file with the state of vCPUs and devices. The state of MaxVCPUs vCPUs
// takes about 6 MiB.
const MaxStateBytes = 16 << 20

// The device hole is a range of guest physical addresses that is never RAM. RAM continues above it.
const (
	HoleStart = 3 << 30
	HoleEnd   = 4 << 30
)

// RAMEnd returns the guest physical address at which RAM of the given size ends.
func RAMEnd(size uint64) uint64 {
	if size > HoleStart {
		return size + HoleEnd - HoleStart
	}
	return size
}

// Stats holds counters that only the VMM knows.
type Stats struct {
	GuestDirtyBytes uint64 // bytes of private pages, among them all pages that differ from the VM's layers
	Paused          bool
	Exits           uint64 // KVM exits to user space
	TopSwaps        uint64 // number of branches that gave the disks new tops, since the process started
	Rebases         uint64 // number of rebases that have begun since the process started
	DiskFull        bool   // the VMM has paused the VM until the host has room for a write to a disk
	Volumes         uint32 // bit n is set if volume slot n has a disk
}

// BranchMode determines how a branch saves the memory of a running machine.
type BranchMode uint8

// The branch modes.
const (
	// Dirty pages are write-protected while the guest is stopped, and copied while it runs.
	BranchLive BranchMode = iota + 1
	BranchDiff            // dirty pages are copied while the guest is stopped
	// All pages are copied while the guest is stopped; the result needs no other layers.
	BranchFull
	BranchDisk // no page is copied; only the disks are branched
)

// String returns the API's name of the mode.
func (m BranchMode) String() string {
	switch m {
	case BranchLive:
		return "live"
	case BranchDiff:
		return "diff"
	case BranchFull:
		return "full"
	case BranchDisk:
		return "disk"
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// ExitReason is the reason why a VM has stopped without a request.
type ExitReason uint8

// The exit reasons.
const (
	ExitPowerOff    ExitReason = iota + 1 // the guest powered off
	ExitReset                             // the guest requested a reset
	ExitFault                             // a triple fault, or a state that KVM cannot run
	ExitInternal                          // the VMM failed
	ExitPanic                             // the guest's kernel printed a panic and requested a reset
	ExitMemoryLimit                       // the VMM was killed because it exceeded its memory limit
	ExitHostMemory                        // the VMM was killed because the host had no free memory
)

// String returns the API's name of the reason.
func (r ExitReason) String() string {
	switch r {
	case ExitPowerOff:
		return "poweroff"
	case ExitReset:
		return "reset"
	case ExitFault:
		return "fault"
	case ExitInternal:
		return "internal"
	case ExitPanic:
		return "panic"
	case ExitMemoryLimit:
		return "memory_limit"
	case ExitHostMemory:
		return "host_memory"
	}
	return "unknown"
}

// Exit reports that a VM has stopped, and why.
type Exit struct {
	Reason ExitReason
	Detail string
}
