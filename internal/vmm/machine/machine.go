// Package machine implements the virtual machine inside a VMM. It combines KVM, guest memory, boot
// and virtio devices, runs the vCPUs, and saves and restores the whole machine.
//
// It opens no files and does not talk to the daemon: the caller passes descriptors and callbacks in
// Config. Methods of Machine may be called concurrently, but not from the callbacks.
package machine

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmm/boot"
	"github.com/forkd/forkd/internal/vmm/cpuid"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/kvm"
	"github.com/forkd/forkd/internal/vmm/uffd"
	"github.com/forkd/forkd/internal/vmm/virtio"
	"github.com/forkd/forkd/internal/vmm/virtio/blk"
	"github.com/forkd/forkd/internal/vmm/virtio/net"
)

// Config configures a machine.
type Config struct {
	KVM           *kvm.System
	Supported     []kvm.CPUIDEntry  // result of Supported on this host; if nil, New calls Supported
	Tracker       *guestmem.Tracker // finds the written pages of this process
	Shape         vm.Shape
	Console       io.ByteWriter // receives the serial output
	VsockListener *os.File      // a listening unix socket; ownership passes to New
	// GuestConn returns a stream for a connection that the guest opens to a port of the host (see
	// vsock.Config.Dial).
	GuestConn func(port uint32) (fd int, err error)
	Exited    func(vm.Exit) // called once, when the guest has stopped
	// Stalled is called when the machine has been paused because the host has no room for the
	// machine's disks.
	Stalled func()
}

// Disk is one virtio-blk disk. The machine owns its files. Package disklayer defines the format of
// layers.
type Disk struct {
	SizeBytes uint64
	Layers    []*os.File // base first, writable top last; none: an empty volume slot
	Volume    bool       // whether the disk is in a volume slot; another restore may put any disk there
}

// Machine is one VM. It is paused and has no guest until Boot or Restore.
type Machine struct {
	cfg     Config
	vm      *kvm.VM
	mem     *guestmem.Memory
	tracker *guestmem.Tracker
	cpuid   [][]kvm.CPUIDEntry // CPUID entries of each vCPU
	msrs    []uint32           // MSRs that a save reads; nil until savedMSRs has been called
	cpus    *vcpus

	wires     wires // connects devices with the guest through vm; tests without KVM replace it
	anyLength bool  // whether KVM has CapIOEventFDAnyLength, see kvm.VM.AddIOEventFD

	serial    *serial
	genIntr   virtio.Interrupt // raises the event that announces a new generation id
	slots     []*slot          // devices by slot number; nil for a slot without a device
	registers []kvm.Register   // the device registers that drivers access at every interrupt
	net       *net.Device
	disks     []*blk.Device
	ended     sync.Once

	// frozen is true if pages may be write-protected: while a live branch is being copied, and
	// while a branch is kept. It becomes true only while the devices are quiesced.
	frozen   atomic.Bool
	stalling atomic.Bool // whether the machine will be paused because a disk has found no room on the host

	mu       sync.Mutex    // held during each request, and while a live branch is being finished
	used     bool          // whether Boot or Restore has been called
	lower    lower         // layer mappings below the private pages
	freezer  *uffd.Freezer // nil before the first branch that needs a freezer
	kept     *kept         // the latest branch; nil if Rebase can no longer be called for it
	rebases  uint64        // see vm.Stats
	topSwaps uint64        // see vm.Stats
	stalled  bool          // whether the machine is paused because a disk has found no room
	copying  chan struct{} // nil if no live branch is being copied; closed when the copying has ended
}

// Supported returns the CPUID entries that KVM supports for guests. It returns an error if KVM
// lacks a feature that a machine needs.
func Supported(k *kvm.System) ([]kvm.CPUIDEntry, error) {
	if err := k.CheckCapabilities(); err != nil {
		return nil, err
	}
	return k.SupportedCPUID()
}

// New returns a machine of the given shape. It sets the memory slots before it creates the
// interrupt controllers. In the other order, each slot would have to wait for an SRCU grace period.
func New(cfg Config) (_ *Machine, err error) {
	m := &Machine{cfg: cfg, tracker: cfg.Tracker, slots: make([]*slot, boot.MaxVirtioDevices),
		registers: make([]kvm.Register, 0, 2*boot.MaxVirtioDevices)}
	var undo cleanup.Stack
	defer undo.Run()
	if n := cfg.Shape.VCPUs; n < 1 || n > vm.MaxVCPUs {
		return nil, fmt.Errorf("vcpus %d: want 1 to %d", n, vm.MaxVCPUs)
	}
	if cfg.Supported == nil {
		if m.cfg.Supported, err = Supported(cfg.KVM); err != nil {
			return nil, err
		}
	}
	if m.mem, err = guestmem.New(cfg.Shape.MemoryBytes); err != nil {
		return nil, err
	}
	undo.Add(func() { _ = m.mem.Close() })
	if m.vm, err = cfg.KVM.CreateVM(); err != nil {
		return nil, err
	}
	m.wires = kvmWires{m.vm}
	undo.Add(func() { _ = m.vm.Close() })
	for i, r := range m.mem.Regions() {
		if err := m.vm.SetMemslot(uint32(i), uint64(r.GPA), r.Size, r.HVA()); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(m.vm.SetIdentityMapAddr(uint64(boot.KVMIdentityMapAddr)),
		m.vm.SetTSSAddr(uint64(boot.KVMTSSAddr)), m.vm.CreateIRQChip(), m.vm.SetPolicy(cfg.KVM)); err != nil {
		return nil, err
	}
	if err := m.addVCPUs(&undo); err != nil {
		return nil, err
	}
	undo.Add(func() { _ = m.cpus.close() })
	anyLength, err := cfg.KVM.Extension(kvm.CapIOEventFDAnyLength)
	if err != nil {
		return nil, err
	}
	m.anyLength = anyLength > 0
	if err := m.addFixedDevices(); err != nil {
		return nil, err
	}
	// Compute the tables of package crc32 now, so that a restore does not wait for this
	// computation.
	_ = crc32.ChecksumIEEE(nil)
	undo.Release()
	return m, nil
}

func (m *Machine) addVCPUs(undo *cleanup.Stack) (err error) {
	n := int(m.cfg.Shape.VCPUs)
	var cpus []*kvm.VCPU
	for i := range n {
		c, err := m.vm.CreateVCPU(uint32(i))
		if err != nil {
			return err
		}
		undo.Add(func() { _ = c.Close() })
		entries, err := cpuid.Apply(m.cfg.Shape.Template, toTemplate(m.cfg.Supported), i, n)
		if err != nil {
			return err
		}
		m.cpuid = append(m.cpuid, fromTemplate(entries))
		if err := c.SetCPUID(m.cpuid[i]); err != nil {
			return err
		}
		cpus = append(cpus, c)
	}
	m.cpus = newVCPUs(cpus, m.handleExit, m.stopped)
	return nil
}

// stopped handles the error of a vCPU that cannot continue. It runs on the vCPU's thread.
func (m *Machine) stopped(err error) {
	var exit *exitError
	if !errors.As(err, &exit) {
		exit = &exitError{vm.Exit{Reason: vm.ExitInternal, Detail: err.Error()}}
	}
	m.ended.Do(func() { go m.cfg.Exited(exit.Exit) })
}

// Resume starts or continues the guest. It returns when every vCPU is about to enter the guest.
func (m *Machine) Resume() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.resume(nil)
}

// resume resumes a paused machine. If entering is not nil, resume calls it after the last step that
// can fail. The notice returned by entering is sent when every vCPU is about to enter the guest.
func (m *Machine) resume(entering func() *kvm.Notice) error {
	if paused, _ := m.cpus.stats(); !paused {
		return nil
	}
	if err := m.cpus.markPaused(); err != nil {
		return err
	}
	m.stalled = false
	if err := m.unquiesce(); err != nil {
		return err
	}
	m.cpus.setRegisters(m.registers)
	var notice *kvm.Notice
	if entering != nil {
		notice = entering()
	}
	m.cpus.resume(notice)
	return nil
}

// Pause stops the vCPUs and quiesces the devices. Until Resume, guest memory and device state do
// not change.
func (m *Machine) Pause() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pause()
	return nil
}

func (m *Machine) pause() {
	if paused, _ := m.cpus.stats(); paused {
		return
	}
	m.cpus.pause()
	m.quiesce()
}

// Written returns the pages that the machine has written since its restore. If there are more pages
// than the given limit (most), Written returns nil. The machine may be running.
func (m *Machine) Written(most int) ([]vm.Range, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dirty, err := m.tracker.Dirty(m.mem)
	if err != nil {
		return nil, err
	}
	var out []vm.Range
	pages := uint64(0)
	for _, r := range dirty {
		if pages += r.Length / guestmem.PageSize; pages > uint64(most) {
			return nil, nil
		}
		out = append(out, vm.Range{GPA: uint64(r.GPA), Length: r.Length})
	}
	return out, nil
}

// Stats returns the statistics that only the VMM knows.
func (m *Machine) Stats() (vm.Stats, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dirty, err := m.tracker.DirtyBytes(m.mem)
	paused, exits := m.cpus.stats()
	return vm.Stats{GuestDirtyBytes: dirty, Paused: paused, Exits: exits, TopSwaps: m.topSwaps, Rebases: m.rebases,
		DiskFull: m.stalled, Volumes: m.volumes()}, err
}
