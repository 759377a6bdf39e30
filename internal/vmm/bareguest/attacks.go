package bareguest

import (
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/forkd/forkd/internal/vmm/boot"
)

// Attack is a program that a hostile guest runs.
type Attack struct {
	Name string
	Program
}

// Attacks returns the attacks on a device. The parameter seed is for the random attacks.
func Attacks(t Target, pages []uint32, seed uint64) []Attack {
	var list []Attack
	try := func(name string, f func(w *writer)) {
		w := &writer{Target: t, Pages: pages}
		f(w)
		list = append(list, Attack{t.Name + ": " + name, w.Program})
	}
	try("chains", (*writer).badChains)
	try("rings", (*writer).badRings)
	try("indices", (*writer).badIndices)
	try("changes", (*writer).changes)
	try("resets", (*writer).resets)
	try("storm", (*writer).storm)
	try("race", (*writer).race)
	try("window", func(w *writer) { w.registers(seed) })
	try("random", func(w *writer) { w.random(seed) })
	if t.Slot == 0 {
		try("packets", (*writer).packets)
	}
	return list
}

// badChains makes each invalid chain available after a valid request. It initializes the device
// again for each chain.
func (w *writer) badChains() {
	chains := w.chains()
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		w.wrong(chains[name])
	}
}

// badRings places rings at invalid addresses, on top of each other, and in memory that is used for
// other purposes.
func (w *writer) badRings() {
	page := uint64(w.Pages[w.Sends])
	for _, r := range []struct {
		size               uint32
		table, avail, used uint64
	}{
		{8, page, page + ringAvail, page + ringAvail}, // rings that overlap
		{8, page, page, page},
		{8, page, page + ringUsed, page + ringUsed - 2},
		{8, 1 << 63, 1 << 63, 1 << 63},
		{8, 1<<64 - 16, 1<<64 - 2, 1<<64 - 4},
		{8, uint64(boot.VirtioBase), uint64(boot.VirtioBase), uint64(boot.VirtioBase)},
		{8, uint64(boot.LocalAPICAddr), uint64(boot.LocalAPICAddr), uint64(boot.LocalAPICAddr)},
		{8, page + 1, page + 1, page + 1},
		{0, page, page + ringAvail, page + ringUsed},
		{3, page, page + ringAvail, page + ringUsed},
		{1 << 15, page, page + ringAvail, page + ringUsed},
		{1<<16 + 8, page, page + ringAvail, page + ringUsed},
		{1, page, page + ringAvail, page + ringUsed},
	} {
		for _, features := range []uint64{featVersion1, w.Features | featEventIdx, 1<<64 - 1, 0} {
			w.begin(features)
			for q := range w.Queues {
				w.queue(q, r.size, r.table, r.avail, r.used)
			}
			w.run()
			w.request(uint32(page))
			w.publish(w.Sends, 0, 0, 1, 2, 3)
			w.add(Spin, 0, 500)
		}
	}
}

// badIndices increases the available index by more than the rules permit.
func (w *writer) badIndices() {
	for _, jump := range []uint16{9, 256, 1 << 15, 1<<16 - 1, 8} {
		for q := range w.Queues {
			w.start()
			w.request(w.Pages[q])
			w.publish(q, 0, 0)
			w.add(Store16, w.Pages[q]+ringAvail+2, uint64(jump))
			w.set(regQueueNotify, uint32(q))
			w.add(Spin, 0, 500)
			w.publish(q, jump, 0xffff, 8)
			w.add(Spin, 0, 500)
		}
	}
}

// changes is an attack that writes to the registers of queues that are in use.
func (w *writer) changes() {
	w.start()
	w.request(w.Pages[w.Sends])
	for i, reg := range []uint32{regQueueSize, regQueueReady, regQueueDesc, regQueueDriver, regQueueDevice,
		regDriverFeatures} {
		w.publish(w.Sends, uint16(i), 0)
		for q := range w.Queues + 2 {
			w.set(regQueueSel, uint32(q))
			w.set(reg, 0)
			w.set(reg, 1<<31)
			w.set(regQueueNotify, uint32(q))
		}
		w.set(regQueueSel, 1<<32-1)
		w.set(reg, 4)
	}
	for status := range uint32(256) {
		w.set(regStatus, status)
		w.set(regQueueNotify, 0)
	}
}

// resets is an attack that resets the device 16 times, each time while the device serves a request.
func (w *writer) resets() {
	for i := range uint64(16) {
		w.start()
		w.request(w.Pages[w.Sends])
		w.publish(w.Sends, 0, 0, 0, 0, 0, 0, 0, 0, 0)
		w.add(Spin, 0, i*i*20)
		w.set(regStatus, 0)
		w.set(regQueueNotify, 0)
	}
}

// storm notifies the device, causes interrupts and acknowledges them, without any pause.
func (w *writer) storm() {
	w.start()
	w.request(w.Pages[w.Sends])
	for i := range uint16(500) {
		w.publish(w.Sends, i, 0)
		w.set(regQueueNotify, uint32(i)*77)
		w.set(regInterruptACK, 1)
	}
}

// race changes a request, its ring and its data while the device processes the request.
func (w *writer) race() {
	w.start()
	table := w.Pages[w.Sends]
	w.request(table)
	for i := range uint16(60) {
		w.publish(w.Sends, i, 0)
		for j := range uint64(8) {
			w.add(Store64, table, j<<60)
			w.add(Store64, table, uint64(w.data(int(j%2))))
			w.add(Store64, table+8, j<<29|descNext<<32|1<<48)
			w.add(Store64, table+8, 16|descNext<<32|1<<48)
			w.add(Store64, w.data(0), j)
			w.add(Store16, table+ringAvail+2, uint64(i+1)+j%2)
		}
		w.request(table)
	}
}

// registers is an attack that reads and writes all registers, and the addresses around them, in all
// widths, aligned and unaligned.
func (w *writer) registers(seed uint64) {
	r := rand.New(rand.NewPCG(seed, uint64(w.Slot)))
	w.start()
	for _, k := range []Kind{Load8, Load16, Load32, Load64, Store8, Store16, Store32, Store64} {
		for off := uint32(0); off < 0x200; off += 16 {
			w.add(k, w.window(off+r.Uint32N(16)), r.Uint64()&r.Uint64())
		}
		for range 8 {
			w.add(k, w.window(0x200+r.Uint32N(boot.VirtioStep-0x200-8)), r.Uint64())
		}
		w.add(k, w.window(boot.VirtioStep-4), r.Uint64()) // the widest access reaches into the next window
	}
}

// random is an attack that initializes the device as a driver does, and then makes requests with
// random addresses, lengths and flags.
func (w *writer) random(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 100+uint64(w.Slot)))
	addresses := append([]uint64{0, 1<<64 - 1, uint64(boot.VirtioBase), 1 << 40}, wide(w.Pages)...)
	lengths := []uint32{0, 1, 12, 16, 44, 512, 4096, 1 << 20, 1<<32 - 1}
	for range 24 {
		w.start()
		for q := range w.Queues {
			page := w.Pages[q]
			for i := range w.Size {
				w.desc(page+i*16, desc{addresses[r.IntN(len(addresses))] + r.Uint64N(64), lengths[r.IntN(len(lengths))],
					uint16(r.IntN(8)), uint16(r.IntN(9))})
			}
			w.bytes(w.data(0)+r.Uint32N(4), w.Out)
			w.publish(q, 0, uint16(r.IntN(8)), uint16(r.IntN(9)), uint16(r.IntN(8)))
		}
		w.add(Spin, 0, 500)
	}
}

func wide(list []uint32) (out []uint64) {
	for _, v := range list {
		out = append(out, uint64(v))
	}
	return out
}

// packets is an attack that floods the host with vsock connections, and sends invalid packets for
// existing connections.
func (w *writer) packets() {
	w.start()
	tx, rx := w.Pages[1], w.Pages[0]
	for i := range w.Size { // publish receive buffers, so that the device can answer
		w.desc(rx+i*16, desc{uint64(w.data(1)) + uint64(i)*256, 256, descWrite, 0})
	}
	w.publish(0, 0, 0, 1, 2, 3, 4, 5, 6, 7)
	w.desc(tx, desc{uint64(w.data(0)), 44, 0, 0})
	var sent uint16
	send := func(p []byte) {
		w.bytes(w.data(0), p)
		w.publish(1, sent, 0)
		w.add(Spin, 0, 100)
		sent++
		w.publish(0, 8*sent, 0, 1, 2, 3, 4, 5, 6, 7)
	}
	for port := range uint32(300) { // opens more connections than permitted, and ignores the host's responses
		send(Packet(1, port, 0))
	}
	for op := range uint16(10) {
		for _, length := range []uint32{0, 1, 1 << 16, 1<<32 - 1} {
			p := Packet(op, 5, length)
			copy(p[36:], []byte{0xff, 0xff, 0xff, 0xff, byte(length), 0xff, 0xff, 0xff}) // buffer size and forwarded count
			send(p)
			p[28] = 2 // not a stream
			send(p)
			p[0], p[8] = 1, 1 // source and destination CID of another connection
			send(p)
		}
	}
}
