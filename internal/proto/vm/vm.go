// Package vm defines the values by which the programs of forkd describe one virtual machine: its
// shape, the modes of a branch, the reasons of its exit and its counters. The control protocol
// encodes them, snapshots record them, and the API names them.
//
// It has values only. The VMM runs machines (internal/vmm), and the daemon requests them
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

// CPU templates, which derive a guest's CPUID from the host's.
const (
	// TemplateHost shows the host's features if snapshots are known to carry their state.
	TemplateHost = "host"
	// TemplatePortable shows the features that all server processors of one vendor have had since
	// 2017, so that snapshots can move between hosts.
	TemplatePortable = "portable"
	// TemplateV2 is the portable template without features that need XSAVE: the x86-64-v2 level.
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

// MaxVCPUs is the number of 8-bit APIC identifiers, without the broadcast identifier 255. For more
// vCPUs the I/O APIC would need interrupt remapping, or KVM's extended destination identifiers.
const MaxVCPUs = 255

// MaxMemoryBytes bounds the memory of a VM. A snapshot with more memory is refused before anything
// is mapped for it.
const MaxMemoryBytes = 1 << 40

// MaxStateBytes bounds the file with the state of vCPUs and devices: MaxVCPUs vCPUs take about 6 MiB.
const MaxStateBytes = 16 << 20

// The device hole: guest physical addresses that are never RAM. RAM continues above the hole.
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
	TopSwaps        uint64 // branches since the process started that put new tops on the disks
	Rebases         uint64 // rebases since the process started, counted when they begin
	DiskFull        bool   // paused by itself until the host has room for a write to a disk
}

// BranchMode determines how a branch saves the memory of a running machine.
type BranchMode uint8

// The branch modes.
const (
	BranchLive BranchMode = iota + 1 // dirty pages are frozen while the guest is stopped, and copied while it runs
	BranchDiff                       // dirty pages are copied while the guest is stopped
	BranchFull                       // all pages are copied while the guest is stopped; needs no layers below
	BranchDisk                       // no page is copied; only the disks are branched
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

// Exit reports that a VM has stopped, and why.
type Exit struct {
	Reason ExitReason
	Detail string
}
