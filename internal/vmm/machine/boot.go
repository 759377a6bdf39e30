package machine

import (
	"errors"
	"os"

	"github.com/forkd/forkd/internal/vmm/boot"
	"github.com/forkd/forkd/internal/vmm/kvm"
	"github.com/forkd/forkd/internal/vmm/virtio/net"
)

// BootConfig says what to boot.
type BootConfig struct {
	Kernel  *os.File
	Initrd  *os.File // nil if the guest has none
	Cmdline string
	Disks   []Disk
	VMGenID [16]byte
	Net     *net.Peer // owned by Boot; nil for no network
}

// Boot loads a kernel into a machine without content. The machine is then paused before the
// kernel's first instruction.
func (m *Machine) Boot(cfg BootConfig) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.used {
		cfg.Net.Close()
		return errors.New("boot: the machine has a guest already")
	}
	m.used = true
	m.net.SetPeer(cfg.Net)
	if err := m.setDisks(cfg.Disks); err != nil {
		return err
	}
	entry, err := boot.Load(m.mem, boot.Params{
		Kernel: cfg.Kernel, Initrd: cfg.Initrd, Cmdline: cfg.Cmdline,
		VCPUs: int(m.cfg.Shape.VCPUs), Devices: m.mmioDevices(), VMGenID: cfg.VMGenID,
	})
	if err != nil {
		return err
	}
	for i, c := range m.cpus.all {
		if err := setMSRs(c.kvm, entry.MSRs); err != nil {
			return err
		}
		if i == 0 {
			if err := setEntry(c.kvm, &entry); err != nil {
				return err
			}
		}
	}
	return nil
}

func setMSRs(c *kvm.VCPU, msrs []boot.MSR) error {
	entries := make([]kvm.MSREntry, len(msrs))
	for i, e := range msrs {
		entries[i] = kvm.MSREntry{Index: e.Index, Data: e.Value}
	}
	return writeMSRs(c, entries)
}

// setEntry sets the registers of the first vCPU. The vCPU then begins at the kernel's entry.
func setEntry(c *kvm.VCPU, e *boot.State) error {
	s, err := c.Sregs()
	if err != nil {
		return err
	}
	data := segment(e.DS)
	s.Cs, s.Ds, s.Es, s.Fs, s.Gs, s.Ss = segment(e.CS), data, data, data, data, data
	s.Tr, s.Ldt = segment(e.TR), segment(e.LDT)
	s.Gdt = kvm.DTable{Base: e.GDT.Base, Limit: e.GDT.Limit}
	s.Idt = kvm.DTable{Base: e.IDT.Base, Limit: e.IDT.Limit}
	s.Cr0, s.Cr3, s.Cr4, s.Efer = e.CR0, e.CR3, e.CR4, e.EFER
	if err := c.SetSregs(&s); err != nil {
		return err
	}
	return c.SetRegs(&kvm.Regs{Rip: e.RIP, Rsi: e.RSI, Rsp: e.RSP, Rflags: e.RFlags})
}

func segment(s boot.Segment) kvm.Segment {
	return kvm.Segment{
		Base: s.Base, Limit: s.Limit, Selector: s.Selector, Type: s.Type, Present: s.Present, Dpl: s.DPL,
		Db: s.DB, S: s.S, L: s.L, G: s.G, Unusable: s.Unusable,
	}
}
