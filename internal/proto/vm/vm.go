// Package vm has the words that the programs of forkd use about one virtual machine: its shape, how
// it is branched, why it stopped and what it counts. The control protocol encodes them, snapshots
// record them, and the API spells them.
//
// It holds values and nothing that acts: running a machine is the VMM's (internal/vmm), asking for
// one the daemon's (internal/host).
package vm

import "fmt"

// Shape is what is fixed when a VM is created. A snapshot can only be restored into a VM of its own
// shape.
type Shape struct {
	MemoryBytes uint64
	VCPUs       uint32
	Template    string // CPU template, one of the Template constants
}

// CPU templates: the rule by which a guest's CPUID is made from the host's.
const (
	// TemplateHost shows what the host has, of what is known to be carried by a snapshot.
	TemplateHost = "host"
	// TemplatePortable shows the common ground of server processors of one vendor since 2017, so
	// that snapshots move between hosts.
	TemplatePortable = "portable"
	// TemplateV2 is the portable template without anything that needs XSAVE: the x86-64-v2 level.
	TemplateV2 = "x86-64-v2"
)

// CheckTemplate refuses what is no CPU template.
func CheckTemplate(name string) error {
	switch name {
	case TemplateHost, TemplatePortable, TemplateV2:
		return nil
	}
	return fmt.Errorf("unknown cpu template %q: use %q, %q or %q", name, TemplateHost, TemplatePortable, TemplateV2)
}

// MaxVCPUs is how many processors have an 8-bit APIC identifier; 255 is the broadcast. More would
// need interrupt remapping, or KVM's extended destination identifiers, for the I/O APIC to reach
// them.
const MaxVCPUs = 255

// MaxMemoryBytes bounds the memory of a VM: a snapshot that asks for more is refused before
// anything is mapped for it.
const MaxMemoryBytes = 1 << 40

// MaxStateBytes bounds the file with the state of vCPUs and devices: MaxVCPUs vCPUs take about 6 MiB.
const MaxStateBytes = 16 << 20

// The device hole: guest physical addresses that are never RAM. RAM goes on above it.
const (
	HoleStart = 3 << 30
	HoleEnd   = 4 << 30
)

// RAMEnd is the guest physical address behind size bytes of RAM.
func RAMEnd(size uint64) uint64 {
	if size > HoleStart {
		return size + HoleEnd - HoleStart
	}
	return size
}

// Stats is what only the VMM knows about its VM.
type Stats struct {
	GuestDirtyBytes uint64 // private pages: all that differ from its layers are among them
	Paused          bool
	Exits           uint64 // KVM exits to user space
	TopSwaps        uint64 // branches that have put new tops on the disks, since the process started
	Rebases         uint64 // of its memory onto branches, since the process started; one that was begun counts
	DiskFull        bool   // paused by itself: the host had no room for a write to a disk, which waits
}

// BranchMode is how a branch takes the memory of a running machine, if at all.
type BranchMode uint8

// The branch modes.
const (
	BranchLive BranchMode = iota + 1 // dirty pages are frozen while stopped and copied while the guest runs
	BranchDiff                       // dirty pages are copied while stopped
	BranchFull                       // all pages are copied while stopped: the layer needs no layers below it
	BranchDisk                       // no page is copied: only the disks are branched
)

// String returns the mode as the API spells it.
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

// ExitReason says why a VM stopped by itself.
type ExitReason uint8

// The exit reasons.
const (
	ExitPowerOff    ExitReason = iota + 1 // the guest powered off
	ExitReset                             // the guest asked for a reset
	ExitFault                             // triple fault or a state that KVM cannot run
	ExitInternal                          // the VMM failed
	ExitPanic                             // the guest's kernel wrote of a panic to the console and asked for a reset
	ExitMemoryLimit                       // the VMM was killed by the limit of its memory
	ExitHostMemory                        // the VMM was killed because the host was out of memory
)

// String returns the reason as the API spells it.
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
