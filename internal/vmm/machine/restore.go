package machine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/forkd/forkd/internal/format/memlayer"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/rawcall"
	"github.com/forkd/forkd/internal/vmm/boot"
	"github.com/forkd/forkd/internal/vmm/cpuid"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/kvm"
	"github.com/forkd/forkd/internal/vmm/virtio/blk"
	"github.com/forkd/forkd/internal/vmm/virtio/net"
)

// RestoreConfig describes a snapshot, and the parts of the restored machine that the snapshot does
// not contain.
type RestoreConfig struct {
	State   int   // descriptor of the state file
	Layers  []int // descriptors of memory layers, base first
	Extents []vm.Extent
	Disks   []Disk
	VMGenID [16]byte
	Resume  bool      // whether to start the vCPUs
	Net     *net.Peer // owned by Restore; nil for no network, or if KeepNet is true
	KeepNet bool      // whether the machine keeps its present network peer; Net is then nil

	FirstWrites []vm.Range // pages to copy before the vCPUs run; see vmmproto.Restore

	// Entering may be nil. If Resume is set, Restore calls Entering after the last step that can
	// fail. If Entering returns a notice, the notice is sent when every vCPU is about to enter the
	// guest.
	Entering func(vmmproto.RestoreResult) *kvm.Notice
}

// Restore makes the machine a copy of a snapshot, and announces a new generation id to the guest.
// If the machine already has a guest, it is rolled back: its private pages are dropped, and its
// disks and its network peer are replaced. After an error the machine is unusable.
func (m *Machine) Restore(cfg RestoreConfig) (t vmmproto.RestoreResult, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	peer := cfg.Net
	defer func() { peer.Close() }() // the variable is nil once the device owns the peer
	start := time.Now()
	lap := func() time.Duration {
		now := time.Now()
		defer func() { start = now }()
		return now.Sub(start)
	}
	if m.used {
		if err := m.forget(); err != nil {
			return t, err
		}
	}
	m.used = true
	if err := m.mapMemory(cfg.Layers, cfg.Extents); err != nil {
		return t, err
	}
	m.own(cfg.FirstWrites)
	t.Map = lap()
	if err := m.setDisks(cfg.Disks); err != nil {
		return t, err
	}
	state, err := readState(cfg.State)
	if err != nil {
		return t, err
	}
	defer func() { _ = rawcall.Unmap(state) }()
	if !cfg.KeepNet {
		m.net.SetPeer(peer)
		peer = nil
	}
	if err := m.restoreState(state); err != nil {
		return t, err
	}
	if err := m.announceFork(cfg.VMGenID); err != nil {
		return t, err
	}
	t.State = lap()
	if !cfg.Resume {
		return t, nil
	}
	err = m.resume(func() *kvm.Notice {
		t.Run = lap()
		if cfg.Entering == nil {
			return nil
		}
		return cfg.Entering(t)
	})
	return t, err
}

// own makes private copies of pages that the guest will soon write. It ignores errors, which occur
// for example on kernels before Linux 5.14. In that case the guest's own write copies the page, or
// causes the same error.
func (m *Machine) own(pages []vm.Range) {
	for _, r := range pages {
		if err := m.mem.OwnNow(guestmem.GPA(r.GPA), r.Length); err != nil {
			return
		}
	}
}

// forget stops the guest and drops its memory.
func (m *Machine) forget() error {
	m.waitCopied() // write-protected pages must not be replaced
	m.pause()
	if err := m.dropKept(); err != nil {
		return err
	}
	m.stalling.Store(false) // the write that found no room was made before the rollback
	regions := m.mem.Regions()
	for i := range regions {
		if err := m.mem.Clear(regions[i].GPA, regions[i].Size); err != nil {
			return err
		}
	}
	return nil
}

// readState reads the state file into new memory, which the caller must unmap. The memory is not in
// Go's heap, because this process never collects its heap. The restored state does not refer to
// this memory.
func readState(file int) ([]byte, error) {
	size, err := rawcall.Size(file)
	if err != nil {
		return nil, fmt.Errorf("read machine state: %w", err)
	}
	if size > vm.MaxStateBytes {
		return nil, vm.WithCode(vm.ErrBadState, fmt.Errorf("machine state has %d bytes, at most %d", size, vm.MaxStateBytes))
	}
	if size == 0 {
		return nil, vm.WithCode(vm.ErrBadState, errors.New("machine state is empty"))
	}
	p, err := rawcall.Map(int(size))
	if err != nil {
		return nil, fmt.Errorf("make room for the machine state: %w", err)
	}
	for at := 0; at < len(p); {
		n, err := rawcall.Pread(file, p[at:], int64(at))
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("read machine state: %w", err), rawcall.Unmap(p))
		}
		at += n
	}
	return p, nil
}

// mapMemory maps the layers at the guest addresses in the given extents.
func (m *Machine) mapMemory(layers []int, extents []vm.Extent) error {
	sizes := make([]uint64, len(layers))
	for i, file := range layers {
		size, err := rawcall.Size(file)
		if err != nil {
			return fmt.Errorf("memory layer %d: %w", i, err)
		}
		sizes[i] = uint64(size)
	}
	if err := memlayer.CheckExtents(extents, sizes); err != nil {
		return fmt.Errorf("memory map: %w", err)
	}
	if err := m.mem.MapLayers(extents, layers); err != nil {
		return err
	}
	m.lower = newLower(extents, len(layers))
	return nil
}

func (m *Machine) restoreState(p []byte) error {
	r, err := newStateReader(p)
	if err != nil {
		return err
	}
	if err := r.section("machine", m.fitShape); err != nil {
		return err
	}
	var whole vmState
	if err := r.section("vm", whole.Restore); err != nil {
		return err
	}
	// The clock continues at its saved value, so for the guest's timers no time has passed. The
	// agent corrects the time of day. Set the clock before the vCPUs, because KVM computes the
	// vCPUs' kvm-clock pages from this clock.
	if err := m.vm.SetClock(whole.clock); err != nil {
		return err
	}
	var first []kvm.MSREntry // MSRs of vCPU 0
	for i, c := range m.cpus.all {
		s := &vcpuState{}
		if err := r.section("vcpu", s.Restore); err != nil {
			return err
		}
		if i == 0 {
			first = s.msrs
		}
		alignTSC(first, s.msrs)
		if err := m.restoreCPU(i, c.kvm, s, whole.tscKHz); err != nil {
			return err
		}
	}
	if err := whole.restoreChips(m.vm); err != nil {
		return err
	}
	if err := m.restoreDevices(r); err != nil {
		return err
	}
	return vm.WithCode(vm.ErrBadState, r.r.Done())
}

func (m *Machine) restoreDevices(r *stateReader) error {
	if err := r.section("serial", m.serial.Restore); err != nil {
		return err
	}
	for i, s := range m.slots {
		if s == nil {
			continue
		}
		if err := r.section(s.section(i), s.transport.Restore); err != nil {
			return err
		}
		if d, ok := s.dev.(*blk.Device); ok && d.Changed() {
			if err := s.transport.ConfigChanged(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *Machine) restoreCPU(i int, c *kvm.VCPU, s *vcpuState, tscKHz uint32) error {
	if !bytes.Equal(kvm.RawSlice(s.cpuid), kvm.RawSlice(m.cpuid[i])) {
		saved := toTemplate(s.cpuid)
		if err := cpuid.CheckSaved(m.cfg.Shape.Template, saved, i, len(m.cpus.all)); err != nil {
			return vm.WithCode(vm.ErrBadState, fmt.Errorf("vCPU %d: %w", i, err))
		}
		if err := cpuid.Compatible(saved, toTemplate(m.cpuid[i])); err != nil {
			return vm.WithCode(vm.ErrCPU, err)
		}
		if err := c.SetCPUID(s.cpuid); err != nil {
			return err
		}
		m.cpuid[i], m.msrs = s.cpuid, nil
	}
	if err := cpuid.CheckSavedMSRs(msrNumbers(s.msrs), toTemplate(s.cpuid)); err != nil {
		return vm.WithCode(vm.ErrBadState, fmt.Errorf("vCPU %d: %w", i, err))
	}
	if err := m.checkArchCaps(s.msrs); err != nil {
		return vm.WithCode(vm.ErrCPU, err)
	}
	if err := m.setTSCRate(c, tscKHz); err != nil {
		return err
	}
	if err := restoreVCPU(c, s); err != nil {
		return fmt.Errorf("vCPU %d: %w", i, err)
	}
	return nil
}

// announceFork writes a new generation id to guest memory, and raises the interrupt that makes the
// guest's kernel reseed its random numbers.
func (m *Machine) announceFork(id [16]byte) error {
	if err := m.mem.WriteAt(id[:], boot.VMGenIDAddr); err != nil {
		return fmt.Errorf("write VM generation id: %w", err)
	}
	return m.genIntr.Raise()
}
