// Package vmmproto is the control protocol between the daemon and a forkd-vmm process. The daemon
// sends requests on a SOCK_SEQPACKET unix socket, one at a time. With some requests it sends file
// descriptors. The VMM answers each request. Between answers it may send events.
//
// The package has the messages and their encoding, but not the socket. Create contains the version
// of the protocol, which both sides compare.
//
// A guest may control its VMM, so no message of a VMM is trusted. Parse bounds texts, durations and
// the pages of Written. Package vmmclient makes the checks for which a message alone is not enough,
// such as whether the extents of a saved layer are valid, and whether a message was requested.
package vmmproto

import (
	"fmt"
	"math"
	"time"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Version must be changed whenever a message changes, or the form of the state that a VMM saves. If
// Version were not changed, a VMM of an earlier daemon could save a state that the VMMs of the next
// daemon cannot restore. A VMM refuses a daemon with another version.
const Version = 20

// Kind is the first byte of every message.
type Kind = codec.Kind

// Requests, replies and events. Each comment names the body and the descriptors that are sent
// along, in order.
const (
	KindCreate Kind = iota + 1 // Create; /dev/kvm, vsock listener, console ring, listener for frame sockets
	// Boot; kernel, initrd (if there is one), layers of every disk, the guest's streams.
	KindBoot
	KindRestore // Restore; vmstate, memory layers, layers of every disk
	KindResume  // no body
	KindPause   // no body
	_           // no longer used
	// Branch; vmstate and memory layer (both for writing), /dev/userfaultfd if live, a new top of
	// every disk, the present top of every disk for reading.
	KindBranch
	KindStats    // no body
	KindMerge    // Merge; the merged disk layer
	KindOK       // answer; the body depends on the request
	KindError    // answer; Error
	KindExit     // event; Exit
	KindConn     // event; GuestConn
	KindBranched // event; Branched; sent once after every live Branch that was answered with KindOK
	KindStalled  // event; no body; the VM has paused itself, because the host has no room for a write to its disks
	KindNet      // SetNet
	KindRebase   // Rebase; the memory layer of the branch, for reading
	KindWritten  // no body
	KindVolume   // SetVolume; the layers of the disk
)

// Create makes the VM of this process, with memory slots, interrupt controllers, vCPUs and devices.
// The VM does not run yet.
type Create struct {
	Version uint32
	Shape   vm.Shape
	CPUID   []byte // Created.CPUID of another VMM on this host; if it is empty, this VMM asks KVM for the values
}

// Created is the answer to Create.
type Created struct {
	CPUID []byte // CPUID values that KVM supports, in the VMMs' own encoding; empty if Create.CPUID was not empty
}

// Disk is a virtio-blk disk. Layers is the number of its files, which are sent along: first the raw
// base image, then layers, each with its allocation bitmap after the data. The last layer is the
// private top, which is empty and writable.
//
// A disk that is a volume slot may have no files, and each Restore may give it other files, of any
// size. The guest then sees another capacity. The number and the order of a machine's disks never
// change.
type Disk struct {
	SizeBytes uint64 // at most vm.MaxVolumeBytes in a volume slot
	Layers    uint32 // 0 only for an empty volume slot
	Volume    bool   // whether the disk is in a volume slot
}

// SetVolume puts a disk into an empty volume slot of a machine with a guest, or empties a slot that has a
// disk. The guest sees another capacity. The field Disk is the number of the slot among all disks.
type SetVolume struct {
	Disk      uint32
	SizeBytes uint64 // at most vm.MaxVolumeBytes
	Layers    uint32 // see Disk; 0: the slot becomes empty
}

// Boot loads a kernel. The VM is then paused at the kernel's first instruction.
type Boot struct {
	Cmdline string
	Initrd  bool // whether an initrd is sent along
	Disks   []Disk
	VMGenID [16]byte
	Net     bool // whether there is a network, see SetNet
}

// SetNet replaces the frame socket of the VM, or removes it. If there is a network, the daemon has
// connected to the listener of Create. The VM uses the newest connection that waits there, and
// closes the other waiting connections. If no connection waits, the VM keeps its present frame
// socket, because an earlier request may have accepted the newest connection already.
type SetNet struct {
	Net bool // whether there is a network
}

// GuestStreams is the number of streams that a guest may open to the host after a boot. The agent
// needs one of them, to tell the host that the guest is ready.
const GuestStreams = 4

// GuestConn says that the guest has connected to Port of the host. Stream is the index of this
// connection among the streams that were sent with Boot.
type GuestConn struct{ Port, Stream uint32 }

// Restore restores a saved machine into a VM that was just created, or into the VM that was saved.
// The VM is then paused. The VM gets another frame socket, see SetNet, so that no frame of the old
// state reaches the new state.
type Restore struct {
	Layers  uint32 // number of memory layers that are sent along, base first
	Extents []vm.Extent
	Disks   []Disk
	VMGenID [16]byte // a value that was never used before
	Resume  bool     // whether all vCPUs start before the answer is sent
	Net     bool     // whether there is a network, see SetNet

	// FirstWrites are pages that the guest will probably write soon. They are copied before the
	// guest runs. Without the copy, a page that the guest first reads and then writes would cause
	// two page faults and two exits.
	FirstWrites []vm.Range
}

// RestoreResult has the durations of the parts of a restore.
type RestoreResult struct {
	Map   time.Duration // time until memory was mapped
	State time.Duration // time until the state of vCPUs and devices was set
	Run   time.Duration // time until the vCPUs were about to run (0 without Resume)
}

// MaxWritten bounds the number of pages in Written.
const MaxWritten = 1024

// Written is the answer to KindWritten. It has the pages that the VM has written since its layers
// were made, in ascending order. If the VM runs, the list is correct for some instant during the
// request. If there are more than MaxWritten pages, the list is empty.
type Written struct{ Ranges []vm.Range }

// SaveResult describes the files that a branch has written.
type SaveResult struct {
	Extents    []vm.Extent // extents of the new layer only; their Layer is 0
	LayerBytes uint64
	DirtyBytes uint64 // bytes in pages that differ from the layers below
	StateBytes uint64
}

// Message is a body that can be encoded.
type Message = codec.Message

// Append encodes m.
func (m *Create) Append(w *codec.Writer) {
	w.U32(m.Version)
	w.U64(m.Shape.MemoryBytes)
	w.U32(m.Shape.VCPUs)
	w.String(m.Shape.Template)
	w.Blob(m.CPUID)
}

// Parse decodes m.
func (m *Create) Parse(r *codec.Reader) error {
	m.Version = r.U32()
	m.Shape = vm.Shape{MemoryBytes: r.U64(), VCPUs: r.U32(), Template: r.String()}
	m.CPUID = r.Blob()
	return r.Err()
}

// Append encodes m.
func (m *Created) Append(w *codec.Writer) { w.Blob(m.CPUID) }

// Parse decodes m.
func (m *Created) Parse(r *codec.Reader) error {
	m.CPUID = r.Blob()
	return r.Err()
}

func appendDisks(w *codec.Writer, disks []Disk) {
	w.U32(uint32(len(disks)))
	for _, d := range disks {
		w.U64(d.SizeBytes)
		w.U32(d.Layers)
		w.Bool(d.Volume)
	}
}

func parseDisks(r *codec.Reader) []Disk {
	disks := make([]Disk, r.Count(13))
	for i := range disks {
		disks[i] = Disk{SizeBytes: r.U64(), Layers: r.U32(), Volume: r.Bool()}
	}
	return disks
}

func appendExtents(w *codec.Writer, extents []vm.Extent) {
	w.U32(uint32(len(extents)))
	for _, e := range extents {
		w.U64(e.GPA)
		w.U64(e.Length)
		w.U32(e.Layer)
		w.U64(e.Offset)
	}
}

func parseExtents(r *codec.Reader) []vm.Extent {
	extents := make([]vm.Extent, r.Count(28))
	for i := range extents {
		extents[i] = vm.Extent{GPA: r.U64(), Length: r.U64(), Layer: r.U32(), Offset: r.U64()}
	}
	return extents
}

// appendDuration encodes a duration in nanoseconds.
func appendDuration(w *codec.Writer, d time.Duration) { w.U64(uint64(d)) }

// parseDuration decodes a duration. It never returns a negative duration, no matter what the VMM
// has sent.
func parseDuration(r *codec.Reader) time.Duration { return time.Duration(min(r.U64(), math.MaxInt64)) }

func parseVMGenID(r *codec.Reader) (id [16]byte) {
	copy(id[:], r.Raw(len(id)))
	return id
}

// Append encodes m.
func (m *SetVolume) Append(w *codec.Writer) {
	w.U32(m.Disk)
	w.U64(m.SizeBytes)
	w.U32(m.Layers)
}

// Parse decodes m.
func (m *SetVolume) Parse(r *codec.Reader) error {
	*m = SetVolume{Disk: r.U32(), SizeBytes: r.U64(), Layers: r.U32()}
	return r.Err()
}

// Append encodes m.
func (m *Boot) Append(w *codec.Writer) {
	w.String(m.Cmdline)
	w.Bool(m.Initrd)
	appendDisks(w, m.Disks)
	w.Raw(m.VMGenID[:])
	w.Bool(m.Net)
}

// Parse decodes m.
func (m *Boot) Parse(r *codec.Reader) error {
	m.Cmdline, m.Initrd = r.String(), r.Bool()
	m.Disks = parseDisks(r)
	m.VMGenID = parseVMGenID(r)
	m.Net = r.Bool()
	return r.Err()
}

// Append encodes m.
func (m *SetNet) Append(w *codec.Writer) { w.Bool(m.Net) }

// Parse decodes m.
func (m *SetNet) Parse(r *codec.Reader) error {
	m.Net = r.Bool()
	return r.Err()
}

// Append encodes m.
func (m *GuestConn) Append(w *codec.Writer) {
	w.U32(m.Port)
	w.U32(m.Stream)
}

// Parse decodes m.
func (m *GuestConn) Parse(r *codec.Reader) error {
	m.Port, m.Stream = r.U32(), r.U32()
	return r.Err()
}

// Append encodes m.
func (m *Restore) Append(w *codec.Writer) {
	w.U32(m.Layers)
	appendExtents(w, m.Extents)
	appendDisks(w, m.Disks)
	w.Raw(m.VMGenID[:])
	w.Bool(m.Resume)
	w.Bool(m.Net)
	appendRanges(w, m.FirstWrites)
}

// Parse decodes m.
func (m *Restore) Parse(r *codec.Reader) error {
	m.Layers = r.U32()
	m.Extents = parseExtents(r)
	m.Disks = parseDisks(r)
	m.VMGenID = parseVMGenID(r)
	m.Resume, m.Net = r.Bool(), r.Bool()
	m.FirstWrites = parseRanges(r)
	return r.Err()
}

func appendRanges(w *codec.Writer, ranges []vm.Range) {
	w.U32(uint32(len(ranges)))
	for _, v := range ranges {
		w.U64(v.GPA)
		w.U64(v.Length)
	}
}

func parseRanges(r *codec.Reader) []vm.Range {
	ranges := make([]vm.Range, r.Count(16))
	for i := range ranges {
		ranges[i] = vm.Range{GPA: r.U64(), Length: r.U64()}
	}
	return ranges
}

// Append encodes m.
func (m *Written) Append(w *codec.Writer) { appendRanges(w, m.Ranges) }

// Parse decodes m. It returns an error if there are more than MaxWritten pages, or if they are not
// in ascending order. It is strict because the daemon sends the list to the VMMs of other
// sandboxes, and each VMM copies the pages.
func (m *Written) Parse(r *codec.Reader) error {
	m.Ranges = parseRanges(r)
	pages, end := uint64(0), uint64(0)
	for _, v := range m.Ranges {
		n := v.Length / vm.PageSize
		if (v.GPA|v.Length)%vm.PageSize != 0 || n > MaxWritten-pages {
			return fmt.Errorf("written pages at %#x, %d bytes: want whole pages, and at most %d in all", v.GPA, v.Length,
				MaxWritten)
		}
		if v.GPA < end || v.GPA+v.Length < v.GPA {
			return fmt.Errorf("written pages at %#x, %d bytes, after those up to %#x: want them in ascending order", v.GPA,
				v.Length, end)
		}
		pages, end = pages+n, v.GPA+v.Length
	}
	return r.Err()
}

// Append encodes m.
func (m *RestoreResult) Append(w *codec.Writer) {
	appendDuration(w, m.Map)
	appendDuration(w, m.State)
	appendDuration(w, m.Run)
}

// Parse decodes m.
func (m *RestoreResult) Parse(r *codec.Reader) error {
	*m = RestoreResult{Map: parseDuration(r), State: parseDuration(r), Run: parseDuration(r)}
	return r.Err()
}

// Append encodes m.
func (m *SaveResult) Append(w *codec.Writer) {
	appendExtents(w, m.Extents)
	w.U64(m.LayerBytes)
	w.U64(m.DirtyBytes)
	w.U64(m.StateBytes)
}

// Parse decodes m.
func (m *SaveResult) Parse(r *codec.Reader) error {
	m.Extents = parseExtents(r)
	m.LayerBytes, m.DirtyBytes, m.StateBytes = r.U64(), r.U64(), r.U64()
	return r.Err()
}

// Stats is the answer to KindStats.
type Stats vm.Stats

// Append encodes m.
func (m *Stats) Append(w *codec.Writer) {
	w.U64(m.GuestDirtyBytes)
	w.Bool(m.Paused)
	w.U64(m.Exits)
	w.U64(m.TopSwaps)
	w.U64(m.Rebases)
	w.Bool(m.DiskFull)
	w.U32(m.Volumes)
}

// Parse decodes m.
func (m *Stats) Parse(r *codec.Reader) error {
	*m = Stats{GuestDirtyBytes: r.U64(), Paused: r.Bool(), Exits: r.U64(), TopSwaps: r.U64(), Rebases: r.U64(),
		DiskFull: r.Bool(), Volumes: r.U32()}
	return r.Err()
}

// Exit is the last event of a VMM. The VM has stopped, and the process is about to exit.
type Exit vm.Exit

// Append encodes m.
func (m *Exit) Append(w *codec.Writer) {
	w.U8(uint8(m.Reason))
	w.String(m.Detail)
}

// Parse decodes m.
func (m *Exit) Parse(r *codec.Reader) error {
	*m = Exit{Reason: vm.ExitReason(r.U8()), Detail: parseText(r)}
	return r.Err()
}
