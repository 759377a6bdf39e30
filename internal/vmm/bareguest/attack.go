package bareguest

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/forkd/forkd/internal/vmm/boot"
	"github.com/forkd/forkd/internal/vmm/guestmem"
)

// Target is a virtio device under attack.
type Target struct {
	Slot     int
	Name     string
	Features uint64 // feature bits that a driver accepts
	Queues   int
	Size     uint32   // number of descriptors of each queue
	Out      []byte   // the bytes that the device reads in a valid request
	In       uint32   // number of bytes that the device writes in that request
	Sends    int      // index of the queue for requests
	More     [][]byte // the bytes that the device reads in other valid requests
}

// The registers of virtio-mmio and its status bits (virtio 1.2 §4.2.2, §2.1) used in attacks.
const (
	regDriverFeatures    = 0x020
	regDriverFeaturesSel = 0x024
	regQueueSel          = 0x030
	regQueueSize         = 0x038
	regQueueReady        = 0x044
	regQueueNotify       = 0x050
	regInterruptACK      = 0x064
	regStatus            = 0x070
	regQueueDesc         = 0x080
	regQueueDriver       = 0x090
	regQueueDevice       = 0x0a0

	acknowledge, driver, driverOK, featuresOK = 1, 2, 4, 8
)

// Features that every device offers (virtio 1.2 §6).
const (
	featIndirect = 1 << 28
	featEventIdx = 1 << 29
	featVersion1 = 1 << 32
)

// Targets returns the devices that every machine has, and the first disk.
func Targets() []Target {
	const common = featVersion1 | featIndirect
	return []Target{
		{Slot: 0, Name: "vsock", Features: common, Queues: 3, Size: 8, Out: Packet(1, 1, 0), Sends: 1,
			More: [][]byte{Packet(2, 1024, 0), Packet(3, 1, 0), Packet(4, 1, 0), append(Packet(5, 1, 8), 1, 2, 3, 4, 5, 6, 7, 8),
				Packet(6, 1, 0), Packet(7, 1, 0)}},
		{Slot: 1, Name: "rng", Features: common, Queues: 1, Size: 8, In: 64},
		{Slot: 2, Name: "net", Features: common, Queues: 2, Size: 8, Out: make([]byte, 12+60), Sends: 1},
		{Slot: 3, Name: "blk", Features: common, Queues: 1, Size: 8, Out: make([]byte, 16), In: 513,
			More: [][]byte{disk(1, 512), disk(1, 4096+512), disk(4, 0), disk(8, 0), disk(11, 16), disk(13, 16),
				disk(13, 32), disk(99, 0)}},
	}
}

// disk returns the part of a disk request that the device reads, with n bytes of data. A discard or
// write-zeroes request reads the same bytes as a list of ranges. Each range has 64 sectors and
// begins at sector 3 (virtio 1.2 §5.2.6).
func disk(kind byte, n int) []byte {
	p := make([]byte, 16+n)
	p[0] = kind
	for at := 16; at+16 <= len(p); at += 16 {
		p[at], p[at+8] = 3, 64
	}
	return p
}

// Packet returns the header of a vsock stream packet to the host (virtio 1.2 §5.10.6).
func Packet(op uint16, port, length uint32) []byte {
	var h [44]byte
	le := binary.LittleEndian
	le.PutUint64(h[0:], 3) // agentproto.GuestCID
	le.PutUint64(h[8:], 2)
	le.PutUint32(h[16:], port)
	le.PutUint32(h[20:], port)
	le.PutUint32(h[24:], length)
	le.PutUint16(h[28:], 1)
	le.PutUint16(h[30:], op)
	le.PutUint32(h[36:], 1<<16)
	return h[:]
}

// Offsets of a queue's rings in its page, and flags of descriptors (virtio 1.2 §2.7).
const (
	ringAvail = 0x400
	ringUsed  = 0x800

	descNext, descWrite, descIndirect = 1, 2, 4
)

// UsedIndex returns the address of a queue's used index. The parameter page is the address of the
// page with the queue's rings.
func UsedIndex(page uint32) uint32 { return page + ringUsed + 2 }

// desc is one descriptor.
type desc struct {
	addr        uint64
	length      uint32
	flags, next uint16
}

// writer writes a Program that attacks one device. It uses pages of guest memory at known physical
// addresses. Each queue's rings have one page; the last pagesData pages are for buffers.
type writer struct {
	Target
	Pages []uint32
	Program
}

// PagesNeeded is the number of pages that Attacks needs.
const PagesNeeded = 3 + pagesData

const pagesData = 2

func (w *writer) add(k Kind, addr uint32, v uint64) { w.Program = append(w.Program, Op{k, addr, v}) }

// window returns the address of a register of the device.
func (w *writer) window(off uint32) uint32 {
	return uint32(boot.VirtioDevice(w.Slot).Addr) + off
}

func (w *writer) set(reg, v uint32) { w.add(Store32, w.window(reg), uint64(v)) }

func (w *writer) data(i int) uint32 { return w.Pages[len(w.Pages)-pagesData+i] }

// bytes adds operations that store p in guest memory.
func (w *writer) bytes(at uint32, p []byte) {
	for ; len(p) > 0; at += 8 {
		var word [8]byte
		p = p[copy(word[:], p):]
		w.add(Store64, at, binary.LittleEndian.Uint64(word[:]))
	}
}

func (w *writer) desc(at uint32, d desc) {
	w.add(Store64, at, d.addr)
	w.add(Store64, at+8, uint64(d.length)|uint64(d.flags)<<32|uint64(d.next)<<48)
}

// begin resets the device and negotiates features.
func (w *writer) begin(features uint64) {
	w.set(regStatus, 0)
	w.set(regStatus, acknowledge)
	w.set(regStatus, acknowledge|driver)
	for i := range uint32(2) {
		w.set(regDriverFeaturesSel, i)
		w.set(regDriverFeatures, uint32(features>>(32*i)))
	}
	w.set(regStatus, acknowledge|driver|featuresOK)
}

// queue tells the device the addresses of a queue's rings.
func (w *writer) queue(q int, size uint32, table, avail, used uint64) {
	w.set(regQueueSel, uint32(q))
	w.set(regQueueSize, size)
	for i, at := range []uint64{table, avail, used} {
		// The registers of the table, the available ring and the used ring are equally spaced.
		reg := uint32(regQueueDesc + i*(regQueueDriver-regQueueDesc))
		w.set(reg, uint32(at))
		w.set(reg+4, uint32(at>>32))
	}
	w.set(regQueueReady, 1)
}

// start initializes the device as a driver does, with empty rings.
func (w *writer) start() {
	w.begin(w.Features)
	for q := range w.Queues {
		page := w.Pages[q]
		w.add(Store64, page+ringAvail, 0)
		w.add(Store64, page+ringUsed, 0)
		w.queue(q, w.Size, uint64(page), uint64(page+ringAvail), uint64(page+ringUsed))
	}
	w.run()
}

func (w *writer) run() { w.set(regStatus, acknowledge|driver|featuresOK|driverOK) }

// publish makes the chains with the given heads available to the device, and notifies the device.
// The parameter idx is the number of heads that were published before.
func (w *writer) publish(q int, idx uint16, heads ...uint16) {
	avail := w.Pages[q] + ringAvail
	for i, h := range heads {
		w.add(Store16, avail+4+2*((uint32(idx)+uint32(i))%w.Size), uint64(h))
	}
	w.add(Store16, avail+2, uint64(idx+uint16(len(heads))))
	w.set(regQueueNotify, uint32(q))
}

// request writes the descriptors of a valid request to the beginning of a descriptor table.
func (w *writer) request(table uint32) {
	out, in := w.data(0), w.data(1)
	w.bytes(out, w.Out)
	first := desc{uint64(out), uint32(len(w.Out)), descNext, 1}
	last := desc{uint64(in), w.In, descWrite, 0}
	switch {
	case len(w.Out) == 0:
		w.desc(table, last)
	case w.In == 0:
		first.flags = 0
		w.desc(table, first)
	default:
		w.desc(table, first)
		w.desc(table+16, last)
	}
}

// Seeds returns short programs as seeds for fuzzing: valid requests, accesses to every register,
// and valid requests that are each followed by one of the invalid chains.
func Seeds(t Target, pages []uint32) []Program {
	w := &writer{Target: t, Pages: pages}
	w.right()
	list := []Program{w.Program}
	for _, more := range t.More {
		w := &writer{Target: t, Pages: pages}
		w.Out = more
		if w.In > 0 {
			w.In = 1 // only the status byte
		}
		w.right()
		list = append(list, w.Program)
	}
	w = &writer{Target: t, Pages: pages}
	w.start()
	for off := uint32(0); off < 0x140; off += 4 {
		w.add(Load32, w.window(off), 0)
	}
	list = append(list, w.Program)
	chains := w.chains()
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		w.Program = nil
		w.wrong(chains[name])
		list = append(list, w.Program)
	}
	return list
}

// right does what a real driver does: it initializes the device and makes a valid request.
func (w *writer) right() {
	w.start()
	w.request(w.Pages[w.Sends])
	w.publish(w.Sends, 0, 0)
	w.add(Spin, 0, 1000)
}

// wrong does what no real driver does: after a valid request, it makes an invalid chain available.
func (w *writer) wrong(chain []desc) {
	w.right()
	for i, d := range chain {
		w.desc(w.Pages[w.Sends]+uint32(i)*16, d)
	}
	for q := range w.Queues {
		w.publish(q, 1, 0)
	}
	w.add(Spin, 0, 1000)
	w.add(Load32, w.window(regStatus), 0)
	w.set(regInterruptACK, 3)
}

// chains returns lists of descriptors that no real driver produces.
func (w *writer) chains() map[string][]desc {
	const (
		hole   = uint64(guestmem.HoleStart)
		window = uint64(boot.VirtioBase)
	)
	ok := uint64(w.data(1))
	at := func(addr uint64, length uint32) []desc {
		return []desc{{uint64(w.data(0)), 16, descNext, 1}, {addr, length, descWrite, 0}}
	}
	table := uint64(w.Pages[w.Sends])
	return map[string][]desc{
		"loop":              {{ok, 16, descNext, 1}, {ok, 16, descNext, 0}},
		"loop of writes":    {{ok, 16, descNext | descWrite, 1}, {ok, 16, descNext | descWrite, 1}},
		"next out of range": {{ok, 16, descNext, 0xffff}},
		"write before read": {{ok, 16, descNext | descWrite, 1}, {ok, 16, 0, 0}},
		"wrapping address":  at(1<<64-8, 64),
		"negative address":  at(1<<63, 64),
		"hole":              at(hole, 64),
		"into the hole":     at(hole-32, 64),
		"device registers":  at(window, 64),
		"whole memory":      at(0, 1<<31),
		"largest length":    at(ok, 1<<32-1),
		"4 GiB": {{ok, 1<<32 - 1, descNext, 1}, {ok, 1<<32 - 1, descNext | descWrite, 2},
			{ok, 1<<32 - 1, descWrite, 0}},
		"zero lengths":       {{ok, 0, descNext, 1}, {ok, 0, descNext | descWrite, 2}, {ok, 0, descWrite, 0}},
		"one byte":           {{ok, 1, descWrite, 0}},
		"into its own table": at(table, 128),
		"into its own rings": at(table+ringAvail, 0x800),
		"indirect in itself": {{table, 16, descIndirect, 0}},
		"indirect of zero":   {{table + 16, 0, descIndirect, 0}},
		"odd indirect":       {{table + 16, 24, descIndirect, 0}, {ok, 16, 0, 0}},
		"indirect and next":  {{table + 16, 16, descIndirect | descNext, 1}, {ok, 16, descWrite, 0}},
		"huge indirect":      {{table + 16, 1<<32 - 16, descIndirect, 0}, {ok, 1, descNext, 1}, {ok, 1, descNext, 0}},
		"long indirect":      append([]desc{{table + 16, 120 * 16, descIndirect, 0}}, long(ok, 120)...),
		"all flags":          {{ok, 16, 0xffff, 0}},
	}
}

// long returns a chain of n descriptors. The last one points to itself.
func long(addr uint64, n int) []desc {
	list := make([]desc, n)
	for i := range list {
		list[i] = desc{addr, 1, descNext, uint16(min(i+1, n-1))}
	}
	return list
}
