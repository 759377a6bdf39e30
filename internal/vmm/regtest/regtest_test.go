package regtest

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"
)

// Registers of each width keep their values, even if the kernel runs other threads in between.
func TestHold(t *testing.T) {
	t.Logf("this processor has %v", Held())
	holds := map[string]func(want, got *registers, signal *Signal){XMM: hold128}
	if cpu.X86.HasAVX {
		holds[YMM] = hold256
	}
	if has512() {
		holds[ZMM] = hold512
	}
	for name, hold := range holds {
		var got registers
		want := values(1)
		during(func(signal *Signal) { hold(want, &got, signal) })
		if err := want.compare(&got, map[string]int{XMM: 16, YMM: 32, ZMM: 64}[name], false); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for seed := range uint64(3) {
		var err error
		during(func(signal *Signal) { err = Hold(seed, signal) })
		if err != nil {
			t.Error(err)
		}
	}
}

// during is a helper that runs f, and sets LetGo when the kernel has had 20 ms to run other threads
// on f's CPU.
func during(f func(signal *Signal)) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.NumCPU() + 2))
	var signal Signal
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(&signal)
	}()
	for signal.Held.Load() == 0 {
		runtime.Gosched()
	}
	for range 20 {
		_ = unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
	}
	signal.LetGo.Store(1)
	<-done
}

func TestChangedRegistersAreNamed(t *testing.T) {
	for _, c := range []struct {
		change func(r *registers)
		name   string
		width  int // width, in bytes, of the narrowest registers that include the changed byte
		pkru   bool
	}{
		{func(r *registers) { r.vector[15][15] ^= 1 }, "xmm15 ", 16, false},
		{func(r *registers) { r.vector[0][31] ^= 1 }, "ymm0 ", 32, false},
		{func(r *registers) { r.vector[31][63] ^= 1 }, "zmm31 ", 64, false},
		{func(r *registers) { r.mask[7] ^= 1 << 63 }, "k7 ", 64, false},
		{func(r *registers) { r.pkru ^= 1 << 31 }, "pkru ", 16, true},
	} {
		for _, width := range []int{16, 32, 64} {
			want, got := values(5), values(5)
			c.change(got)
			err := want.compare(got, width, c.pkru)
			seen := err != nil && (width > c.width || strings.Contains(fmt.Sprint(err), c.name))
			if seen != (width >= c.width) {
				t.Errorf("%d bytes wide, %schanged: %v", width, c.name, err)
			}
		}
	}
}

// All values differ. If two were equal, Hold would not notice an exchange of their registers.
func TestValuesDiffer(t *testing.T) {
	a, b := values(1), values(2)
	var all []string
	for _, v := range []*registers{a, b} {
		for _, r := range v.vector {
			for i := 0; i < len(r); i += 16 {
				all = append(all, string(r[i:i+16]))
			}
		}
	}
	slices.Sort(all)
	if n := len(slices.Compact(slices.Clone(all))); n != len(all) {
		t.Errorf("%d of %d values differ", n, len(all))
	}
	if a.mask == b.mask || a.pkru == b.pkru || a.pkru&pkruOpen != 0 {
		t.Errorf("masks %x and %x, pkru %#x and %#x", a.mask, b.mask, a.pkru, b.pkru)
	}
}
