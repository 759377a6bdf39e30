package bareguest

import (
	"math/rand/v2"

	"github.com/forkd/forkd/internal/vmm/boot"
	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// Probes returns attacks on parts of the machine other than its virtio devices. The guest survives
// each of these attacks.
func Probes(seed uint64) []Attack {
	return []Attack{
		{"ports", ports(seed)},
		{"holes", holes(seed)},
		{"cpuid", leaves()},
		{"msr", msrs(seed)},
		{"interrupts", interrupts()},
		{"console", Program{{Outs, boot.SerialPort, 4096}, {Outs, boot.SerialPort + 1, 64}, {Again, 0, 8}}},
	}
}

// Ends returns attacks that end the machine.
func Ends() []Attack {
	return []Attack{
		{"triple fault", Program{{Kind: Fault}}},
		{"no code", Program{{Jump, uint32(boot.VirtioBase), 0}}},
		{"code in a hole", Program{{Jump, uint32(guestmem.HoleStart), 0}}},
		{"power off", Program{{Out8, boot.SleepControlPort, boot.PowerOffValue}}},
		{"reset", Program{{Out8, boot.ResetPort, boot.ResetValue}}},
		{"keyboard reset", Program{{Out16, boot.I8042Port, boot.I8042Reset}}},
		{"PCI reset", Program{{Out32, boot.PCIResetPort, boot.PCIResetValue}}},
	}
}

// ports returns a Program that reads from random ports. The Program writes to a port only if a
// write cannot end the machine.
func ports(seed uint64) (p Program) {
	r := rand.New(rand.NewPCG(seed, 1))
	known := []uint32{boot.SerialPort, boot.SleepControlPort, boot.I8042Port, boot.PCIResetPort, 0x20, 0xa0, 0x40, 0x4d0,
		0xcf8}
	for i := range uint32(600) {
		port := r.Uint32N(1 << 16)
		if i < 200 {
			port = known[r.IntN(len(known))] + r.Uint32N(16)
		}
		p = append(p, Op{In8 + Kind(r.IntN(3)), port, 0})
		switch port {
		case boot.SleepControlPort, boot.ResetPort, boot.I8042Port, boot.PCIResetPort:
		default:
			p = append(p, Op{Out8 + Kind(r.IntN(3)), port, r.Uint64()}, Op{Outs, port, r.Uint64N(300)})
		}
	}
	return append(p, Op{In8, 0xffff, 0}, Op{In32, 0xfffe, 0}, Op{Out32, 0xfffe, 0})
}

// holes returns a Program that reads and writes addresses without RAM.
func holes(seed uint64) (p Program) {
	r := rand.New(rand.NewPCG(seed, 2))
	places := []guestmem.GPA{guestmem.HoleStart, boot.VirtioBase - 4, boot.VirtioDevice(boot.MaxVirtioDevices - 1).Addr,
		boot.VirtioDevice(boot.MaxVirtioDevices-1).Addr + boot.VirtioStep - 4, boot.IOAPICAddr, boot.IOAPICAddr + 0xffc,
		boot.KVMIdentityMapAddr, boot.KVMTSSAddr, guestmem.HoleEnd - 16}
	for _, k := range []Kind{Load8, Load16, Load32, Load64, Store8, Store16, Store32, Store64} {
		for _, at := range places {
			for off := range uint32(8) {
				p = append(p, Op{k, uint32(at) + off, r.Uint64()})
			}
		}
		for range 50 {
			at := uint32(guestmem.HoleStart) + r.Uint32N(uint32(boot.IOAPICAddr-guestmem.HoleStart))
			p = append(p, Op{k, at, r.Uint64()})
		}
	}
	return p
}

func leaves() (p Program) {
	for _, base := range []uint64{0, 0x40000000, 0x40000100, 0x80000000, 0x8fffffff, 0xc0000000, 0xfffffff0} {
		for leaf := range uint64(16) {
			for _, sub := range []uint32{0, 1, 2, 63, 1<<32 - 1} {
				p = append(p, Op{CPUID, sub, base + leaf})
			}
		}
	}
	return p
}

// msrs reads MSRs of all kinds and writes to most of them. It does not write to three MSRs, because
// a write would crash the guest: EFER (the guest's mode), the MSR with the address of the local
// APIC, and the APIC's interrupt command register.
func msrs(seed uint64) (p Program) {
	const efer, apicBase, icr = 0xc0000080, 0x1b, 0x830
	r := rand.New(rand.NewPCG(seed, 3))
	for _, span := range [][2]uint32{{0, 0x300}, {0x345, 0x3a0}, {0x400, 0x420}, {0x480, 0x4a0}, {0x560, 0x5a0},
		{0x800, 0x840},
		{0xd90, 0xda8}, {0x40000000, 0x40000020}, {0x400000f0, 0x40000120}, {0x4b564d00, 0x4b564d10},
		{0xc0000080, 0xc0000108}, {0xc0010000, 0xc0010140}, {0xc0011000, 0xc0011040}} {
		for msr := span[0]; msr < span[1]; msr++ {
			p = append(p, Op{ReadMSR, msr, 0})
			if msr == efer || msr == apicBase || msr == icr {
				continue
			}
			for _, v := range []uint64{1<<64 - 1, r.Uint64(), 1 << 40, 0} {
				p = append(p, Op{WriteMSR, msr, v})
			}
		}
	}
	return p
}

// interrupts returns a Program that sets unusual vectors and modes on every pin of the I/O APIC,
// and makes the entropy device raise its interrupt. Interrupts are disabled in the guest's
// processor.
func interrupts() (p Program) {
	const (
		selector, window = uint32(boot.IOAPICAddr), uint32(boot.IOAPICAddr) + 0x10
		eoi              = uint32(boot.LocalAPICAddr) + 0xb0
		command          = uint32(boot.LocalAPICAddr) + 0x300
	)
	rng := &writer{Target: Targets()[1], Pages: FreePages()}
	rng.start()
	rng.request(rng.Pages[0])
	p = rng.Program
	for round := range uint64(256) {
		for pin := range uint32(boot.IOAPICPins + 4) {
			if pin != boot.FirstVirtioGSI+1 && round%8 != 0 {
				continue
			}
			// The modes are fixed, lowest priority, reserved and ExtINT. The other modes (SMI, NMI
			// and INIT) would end the guest.
			mode := []uint64{0, 1, 3, 7}[round%4]
			p = append(p, Op{Store32, selector, uint64(0x10 + 2*pin)}, Op{Store32, window, round | mode<<8 | round&0xe0<<8},
				Op{Store32, selector, uint64(0x11 + 2*pin)}, Op{Store32, window, round << 24})
		}
		rng.Program = nil
		rng.publish(0, uint16(round), 0)
		p = append(p, rng.Program...)
		p = append(p, Op{Store32, command, 1<<18 | round}, Op{Store32, eoi, round}) // the processor interrupts itself
	}
	return p
}

// FreePages returns the addresses of pages that a Kernel guest does not use itself. They are for
// Attacks.
func FreePages() []uint32 {
	const first = 8 << 20
	pages := make([]uint32, PagesNeeded)
	for i := range pages {
		pages[i] = first + uint32(i)*guestmem.PageSize
	}
	return pages
}
