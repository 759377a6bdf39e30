package machine

import (
	"errors"
	"io"
	"sync"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/vmm/virtio"
)

// Registers of a 16550A UART, by offset from its base port (National Semiconductor PC16550D, §8).
const (
	uartData = 0 // RBR/THR; low byte of the divisor if DLAB is set
	uartIER  = 1 // high byte of the divisor if DLAB is set
	uartIIR  = 2 // IIR; a write goes to FCR
	uartLCR  = 3
	uartMCR  = 4
	uartLSR  = 5
	uartMSR  = 6
	uartSCR  = 7
)

const (
	ierTHRE  = 1 << 1 // interrupt when the transmitter is empty
	iirNone  = 0x01   // no interrupt pending
	iirTHRE  = 0x02
	iirFIFO  = 0xc0 // FIFOs enabled
	lcrDLAB  = 1 << 7
	mcrLoop  = 1 << 4
	lsrEmpty = 0x60 // THR and transmitter empty
	msrReady = 0xb0 // carrier, data set ready, clear to send
)

// serial is a 16550A UART that only transmits. It writes its output to a writer, and never receives
// data. Transmission takes no time, so the transmitter is always empty.
type serial struct {
	mu   sync.Mutex
	out  io.ByteWriter
	intr virtio.Interrupt
	regs serialRegs
}

// serialRegs are the registers that a snapshot contains.
type serialRegs struct {
	ier, lcr, mcr, scr, fcr, dll, dlm uint8
	thre                              bool // whether the transmitter-empty interrupt is pending
}

const serialVersion = 1

func newSerial(out io.ByteWriter, intr virtio.Interrupt) *serial {
	return &serial{out: out, intr: intr}
}

func (s *serial) read(reg uint16) uint8 {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.regs
	dlab := r.lcr&lcrDLAB != 0
	switch reg {
	case uartData:
		if dlab {
			return r.dll
		}
	case uartIER:
		if dlab {
			return r.dlm
		}
		return r.ier
	case uartIIR:
		v := uint8(iirNone)
		if r.thre && r.ier&ierTHRE != 0 {
			v = iirTHRE
			r.thre = false // reading IIR acknowledges the interrupt
		}
		if r.fcr&1 != 0 {
			v |= iirFIFO
		}
		return v
	case uartLCR:
		return r.lcr
	case uartMCR:
		return r.mcr
	case uartLSR:
		return lsrEmpty
	case uartMSR:
		if r.mcr&mcrLoop != 0 { // OUT2, OUT1, RTS, DTR appear as DCD, RI, CTS, DSR
			return r.mcr&0xc<<4 | r.mcr&2<<3 | r.mcr&1<<5
		}
		return msrReady
	case uartSCR:
		return r.scr
	}
	return 0
}

func (s *serial) write(reg uint16, v uint8) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.regs
	dlab := r.lcr&lcrDLAB != 0
	switch {
	case reg == uartData && dlab:
		r.dll = v
	case reg == uartIER && dlab:
		r.dlm = v
	case reg == uartData:
		if r.mcr&mcrLoop == 0 {
			if err := s.out.WriteByte(v); err != nil {
				return err
			}
		}
		return s.empty()
	case reg == uartIER:
		was := r.ier
		r.ier = v & 0x0f
		if r.ier&ierTHRE != 0 && was&ierTHRE == 0 {
			return s.empty()
		}
	case reg == uartIIR:
		r.fcr = v & 0xc9
	case reg == uartLCR:
		r.lcr = v
	case reg == uartMCR:
		r.mcr = v & 0x1f
	case reg == uartSCR:
		r.scr = v
	}
	return nil
}

// empty is called when the transmitter has become empty. It raises the interrupt if the interrupt
// is enabled.
func (s *serial) empty() error {
	s.regs.thre = true
	if s.regs.ier&ierTHRE != 0 {
		return s.intr.Raise()
	}
	return nil
}

// Save appends the UART's state.
func (s *serial) Save(w *codec.Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.regs
	w.U32(serialVersion)
	for _, v := range []uint8{r.ier, r.lcr, r.mcr, r.scr, r.fcr, r.dll, r.dlm} {
		w.U8(v)
	}
	w.Bool(r.thre)
}

// Restore sets the UART's state. If an interrupt was pending, Restore raises the interrupt again.
func (s *serial) Restore(rd *codec.Reader) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := rd.U32(); v != serialVersion {
		return errors.Join(errors.New("serial state of another version"), rd.Err())
	}
	r := serialRegs{}
	for _, p := range []*uint8{&r.ier, &r.lcr, &r.mcr, &r.scr, &r.fcr, &r.dll, &r.dlm} {
		*p = rd.U8()
	}
	r.thre = rd.Bool()
	if err := rd.Err(); err != nil {
		return err
	}
	s.regs = r
	if r.thre && r.ier&ierTHRE != 0 {
		return s.intr.Raise()
	}
	return nil
}
