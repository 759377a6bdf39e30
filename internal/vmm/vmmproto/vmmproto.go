// Package vmmproto is the control protocol between the daemon and one forkd-vmm process: a SOCK_SEQPACKET unix socket
// on which the daemon sends requests, one at a time, with the file descriptors they donate, and the VMM answers each
// with one reply. Between replies the VMM may send events.
//
// The package has the messages and their encoding, not the socket. Both sides check the version in Create.
package vmmproto

import (
	"github.com/forkd/forkd/internal/memlayer"
	"github.com/forkd/forkd/internal/wire"
)

// Version changes whenever a message does; a VMM refuses a daemon that speaks another one.
const Version = 5

// MaxMessage bounds one message in bytes: a Restore with the most extents a snapshot may have.
const MaxMessage = 1 << 20

// Kind is the first byte of every message.
type Kind uint8

// Requests, replies and events. The comment names the body and the donated descriptors in their order.
const (
	KindCreate   Kind = iota + 1 // Create; /dev/kvm, vsock listener, console ring
	KindBoot                     // Boot; kernel, initrd (if any), disk layers of every disk
	KindRestore                  // Restore; vmstate, memory layers, disk layers of every disk
	KindResume                   // no body
	KindPause                    // no body
	KindSave                     // Save; vmstate (to write), memory layer (to write)
	KindBranch                   // Branch; vmstate and memory layer (to write), /dev/userfaultfd if live, new disk tops
	KindStats                    // no body
	KindMerge                    // Merge; the merged disk layer
	KindOK                       // reply; body as the request's result type
	KindError                    // reply; the error's text
	KindExit                     // event; Exit
	KindConn                     // event; port uint32; one end of a stream the guest opened
	KindBranched                 // event; Branched, once after every successful live Branch
)

// Machine is the shape of a VM, fixed when it is created and recorded in its snapshots.
type Machine struct {
	MemoryBytes uint64
	VCPUs       uint32
	Template    string // CPU template, see docs/architecture.md
}

// Create makes the VM of this process: memory slots, interrupt controllers, vCPUs and devices, nothing running.
type Create struct {
	Version uint32
	ID      string // the sandbox's id, for messages
	Machine Machine
}

// Disk is one virtio-blk disk: Layers donated files, the raw base image first, then layers with their allocation
// bitmaps behind the data, the private top (empty, writable) last unless the disk is ReadOnly.
type Disk struct {
	SizeBytes uint64
	Layers    uint32
	ReadOnly  bool
}

// Boot loads a kernel and leaves the VM paused at its first instruction.
type Boot struct {
	Cmdline string
	Initrd  bool // an initrd is among the donated files
	Disks   []Disk
	VMGenID [16]byte
}

// Restore puts a saved machine into a created VM, or back into the VM it was saved from, and leaves it paused.
type Restore struct {
	Layers  uint32 // donated memory layers, base first
	Extents []memlayer.Extent
	Disks   []Disk
	VMGenID [16]byte // a value never used before
	Resume  bool     // enter all vCPUs before answering
}

// RestoreResult is the time the VMM spent, in nanoseconds.
type RestoreResult struct {
	MapNanos   uint64 // memory mapped
	StateNanos uint64 // vCPU and device state set
	RunNanos   uint64 // vCPUs entered (0 if not asked to resume)
}

// Save writes the state of a paused VM: its vCPU and device state, and the pages it has written over its layers.
type Save struct {
	MaxExtents uint32 // small gaps between written pages are filled until the map has no more extents than this
}

// SaveResult describes the files that Save wrote.
type SaveResult struct {
	Extents    []memlayer.Extent // of the new layer only; Layer is 0
	LayerBytes uint64
	DirtyBytes uint64 // pages that differ from the layers below
	StateBytes uint64
}

// Stats is what only the VMM knows about its VM.
type Stats struct {
	GuestDirtyBytes uint64 // private pages: written since the VM was booted or restored
	Paused          bool
	Exits           uint64 // KVM exits to user space
	TopSwaps        uint64 // branches that have put new tops on the disks, since the process started
}

// ExitReason says why a VM stopped by itself.
type ExitReason uint8

// The exit reasons.
const (
	ExitPowerOff ExitReason = iota + 1 // the guest powered off
	ExitReset                          // the guest asked for a reset, as it does after a kernel panic
	ExitFault                          // triple fault or a state that KVM cannot run
	ExitInternal                       // the VMM failed
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
	}
	return "unknown"
}

// Exit is the last event of a VMM: its VM is gone and the process ends.
type Exit struct {
	Reason ExitReason
	Detail string
}

// Message is a body that can be encoded.
type Message interface{ Append(w *wire.Writer) }

// Append encodes m.
func (m *Machine) Append(w *wire.Writer) {
	w.U64(m.MemoryBytes)
	w.U32(m.VCPUs)
	w.String(m.Template)
}

// Parse decodes m.
func (m *Machine) Parse(r *wire.Reader) error {
	*m = Machine{MemoryBytes: r.U64(), VCPUs: r.U32(), Template: r.String()}
	return r.Err()
}

// Append encodes m.
func (m *Create) Append(w *wire.Writer) {
	w.U32(m.Version)
	w.String(m.ID)
	m.Machine.Append(w)
}

// Parse decodes m.
func (m *Create) Parse(r *wire.Reader) error {
	m.Version, m.ID = r.U32(), r.String()
	return m.Machine.Parse(r)
}

func appendDisks(w *wire.Writer, disks []Disk) {
	w.U32(uint32(len(disks)))
	for _, d := range disks {
		w.U64(d.SizeBytes)
		w.U32(d.Layers)
		w.Bool(d.ReadOnly)
	}
}

func parseDisks(r *wire.Reader) []Disk {
	disks := make([]Disk, r.Count(13))
	for i := range disks {
		disks[i] = Disk{SizeBytes: r.U64(), Layers: r.U32(), ReadOnly: r.Bool()}
	}
	return disks
}

func parseVMGenID(r *wire.Reader) (id [16]byte) {
	copy(id[:], r.Raw(len(id)))
	return id
}

// Append encodes m.
func (m *Boot) Append(w *wire.Writer) {
	w.String(m.Cmdline)
	w.Bool(m.Initrd)
	appendDisks(w, m.Disks)
	w.Raw(m.VMGenID[:])
}

// Parse decodes m.
func (m *Boot) Parse(r *wire.Reader) error {
	m.Cmdline, m.Initrd = r.String(), r.Bool()
	m.Disks = parseDisks(r)
	m.VMGenID = parseVMGenID(r)
	return r.Err()
}

// Append encodes m.
func (m *Restore) Append(w *wire.Writer) {
	w.U32(m.Layers)
	memlayer.AppendExtents(w, m.Extents)
	appendDisks(w, m.Disks)
	w.Raw(m.VMGenID[:])
	w.Bool(m.Resume)
}

// Parse decodes m.
func (m *Restore) Parse(r *wire.Reader) error {
	m.Layers = r.U32()
	m.Extents = memlayer.ReadExtents(r)
	m.Disks = parseDisks(r)
	m.VMGenID = parseVMGenID(r)
	m.Resume = r.Bool()
	return r.Err()
}

// Append encodes m.
func (m *RestoreResult) Append(w *wire.Writer) {
	w.U64(m.MapNanos)
	w.U64(m.StateNanos)
	w.U64(m.RunNanos)
}

// Parse decodes m.
func (m *RestoreResult) Parse(r *wire.Reader) error {
	*m = RestoreResult{MapNanos: r.U64(), StateNanos: r.U64(), RunNanos: r.U64()}
	return r.Err()
}

// Append encodes m.
func (m *Save) Append(w *wire.Writer) { w.U32(m.MaxExtents) }

// Parse decodes m.
func (m *Save) Parse(r *wire.Reader) error {
	m.MaxExtents = r.U32()
	return r.Err()
}

// Append encodes m.
func (m *SaveResult) Append(w *wire.Writer) {
	memlayer.AppendExtents(w, m.Extents)
	w.U64(m.LayerBytes)
	w.U64(m.DirtyBytes)
	w.U64(m.StateBytes)
}

// Parse decodes m.
func (m *SaveResult) Parse(r *wire.Reader) error {
	m.Extents = memlayer.ReadExtents(r)
	m.LayerBytes, m.DirtyBytes, m.StateBytes = r.U64(), r.U64(), r.U64()
	return r.Err()
}

// Append encodes m.
func (m *Stats) Append(w *wire.Writer) {
	w.U64(m.GuestDirtyBytes)
	w.Bool(m.Paused)
	w.U64(m.Exits)
	w.U64(m.TopSwaps)
}

// Parse decodes m.
func (m *Stats) Parse(r *wire.Reader) error {
	*m = Stats{GuestDirtyBytes: r.U64(), Paused: r.Bool(), Exits: r.U64(), TopSwaps: r.U64()}
	return r.Err()
}

// Append encodes m.
func (m *Exit) Append(w *wire.Writer) {
	w.U8(uint8(m.Reason))
	w.String(m.Detail)
}

// Parse decodes m.
func (m *Exit) Parse(r *wire.Reader) error {
	*m = Exit{Reason: ExitReason(r.U8()), Detail: r.String()}
	return r.Err()
}
