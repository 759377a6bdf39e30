// Package vm has the values that the programs of forkd use to describe one virtual machine: its
// shape, the modes of a branch, the reasons of its exit and its counters. The control protocol
// encodes them, snapshots record them, and the API names them.
//
// It has values only: the VMM runs machines (internal/vmm), and the daemon requests them
// (internal/host).
package vm

import "fmt"

// Shape holds the properties that are fixed when a VM is created. A snapshot can only be restored
// into a VM of its own shape.
type Shape struct {
	MemoryBytes uint64
	VCPUs       uint32
	Template    string // CPU template, one of the Template constants
}

// CPU templates: rules for making a guest's CPUID from the host's.
const (
	// TemplateHost shows the host's features, as far as snapshots are known to carry their state.
	TemplateHost = "host"
	// TemplatePortable shows the common ground of server processors of one vendor since 2017, so
	// that snapshots move between hosts.
	TemplatePortable = "portable"
	// TemplateV2 is the portable template without anything that needs XSAVE: the x86-64-v2 level.
	TemplateV2 = "x86-64-v2"
)

// CheckTemplate returns an error unless name is a CPU template.
func CheckTemplate(name string) error {
	switch name {
	case TemplateHost, TemplatePortable, TemplateV2:
		return nil
	}
	return fmt.Errorf("unknown cpu template %q: use %q, %q or %q", name, TemplateHost, TemplatePortable, TemplateV2)
}

// MaxVCPUs is the number of 8-bit APIC identifiers without the broadcast, 255. For more, the I/O
// APIC would need interrupt remapping, or KVM's extended destination identifiers.
const MaxVCPUs = 255

// MaxMemoryBytes bounds the memory of a VM: a snapshot with more is refused before anything is
// mapped for it.
const MaxMemoryBytes = 1 << 40

// MaxStateBytes bounds the file with the state of vCPUs and devices: MaxVCPUs vCPUs take about 6 MiB.
const MaxStateBytes = 16 << 20

// The device hole: guest physical addresses that are never RAM. RAM continues above it.
const (
	HoleStart = 3 << 30
	HoleEnd   = 4 << 30
)

// RAMEnd returns the guest physical address after size bytes of RAM.
func RAMEnd(size uint64) uint64 {
	if size > HoleStart {
		return size + HoleEnd - HoleStart
	}
	return size
}

// Stats holds figures that only the VMM knows about its VM.
type Stats struct {
	GuestDirtyBytes uint64 // private pages, including all that differ from its layers
	Paused          bool
	Exits           uint64 // KVM exits to user space
	TopSwaps        uint64 // branches that put new tops on the disks, since the process started
	Rebases         uint64 // rebases of its memory onto branches that have begun, since the process started
	DiskFull        bool   // paused by itself, because the host had no room for a write to a disk; the write waits
}

// BranchMode says how a branch saves the memory of a running machine, if at all.
type BranchMode uint8

// The branch modes.
const (
	BranchLive BranchMode = iota + 1 // dirty pages are frozen while stopped and copied while the guest runs
	BranchDiff                       // dirty pages are copied while stopped
	BranchFull                       // all pages are copied while stopped: the layer needs no layers below it
	BranchDisk                       // no page is copied: only the disks are branched
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

// ExitReason is the reason why a VM stopped by itself.
type ExitReason uint8

// The exit reasons.
const (
	ExitPowerOff    ExitReason = iota + 1 // the guest powered off
	ExitReset                             // the guest requested a reset
	ExitFault                             // triple fault or a state that KVM cannot run
	ExitInternal                          // the VMM failed
	ExitPanic                             // the guest's kernel reported a panic on the console and requested a reset
	ExitMemoryLimit                       // the VMM was killed by its memory limit
	ExitHostMemory                        // the VMM was killed because the host was out of memory
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

// Exit says that a VM is gone, and why.
type Exit struct {
	Reason ExitReason
	Detail string
}
