package machine

import (
	"bytes"
	"testing"

	"github.com/forkd/forkd/internal/proto/codec"
)

type countingInterrupt int

func (c *countingInterrupt) Raise() error { *c++; return nil }

func TestSerialInterruptsOnceForEveryByteThatAsks(t *testing.T) {
	var out bytes.Buffer
	var raised countingInterrupt
	s := newSerial(&out, &raised)
	for _, c := range []byte("ab") {
		if err := s.write(uartData, c); err != nil {
			t.Fatal(err)
		}
	}
	if out.String() != "ab" || raised != 0 || s.read(uartLSR)&lsrEmpty != lsrEmpty {
		t.Fatalf("polled output: %q, %d interrupts", out.String(), raised)
	}
	_ = s.write(uartIER, ierTHRE)
	if raised != 1 || s.read(uartIIR)&0xf != iirTHRE || s.read(uartIIR)&0xf != iirNone {
		t.Fatalf("enabling the interrupt: %d raised", raised)
	}
	_ = s.write(uartData, 'c')
	if raised != 2 || s.read(uartIIR)&0xf != iirTHRE {
		t.Fatalf("output with interrupts: %d raised", raised)
	}
}

func TestSerialDivisorIsNotOutput(t *testing.T) {
	var out bytes.Buffer
	var raised countingInterrupt
	s := newSerial(&out, &raised)
	_ = s.write(uartLCR, lcrDLAB)
	_ = s.write(uartData, 1)
	_ = s.write(uartIER, 2)
	if out.Len() != 0 || s.read(uartData) != 1 || s.read(uartIER) != 2 {
		t.Fatal("the divisor latch leaks into data or interrupt registers")
	}
}

func TestSerialRoundTrip(t *testing.T) {
	var out bytes.Buffer
	var raised countingInterrupt
	s := newSerial(&out, &raised)
	_ = s.write(uartLCR, lcrDLAB|3)
	_ = s.write(uartData, 12)
	_ = s.write(uartLCR, 3)
	_ = s.write(uartMCR, 0xb)
	_ = s.write(uartSCR, 0x5a)
	_ = s.write(uartIIR, 1)
	_ = s.write(uartIER, ierTHRE)
	var w codec.Writer
	s.Save(&w)
	again := newSerial(&out, new(countingInterrupt))
	r := codec.NewReader(w.Bytes())
	if err := again.Restore(r); err != nil || r.Done() != nil {
		t.Fatal(err, r.Err())
	}
	if again.regs != s.regs || *again.intr.(*countingInterrupt) != 1 {
		t.Fatalf("restored %+v, saved %+v", again.regs, s.regs)
	}
	for n := range w.Bytes() {
		if newSerial(&out, &raised).Restore(codec.NewReader(w.Bytes()[:n])) == nil {
			t.Fatalf("%d bytes of state were accepted", n)
		}
	}
}
