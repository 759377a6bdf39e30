// Package regtest keeps known values in a processor's vector registers, and in PKRU, while a test
// saves, branches or restores the machine. Then it reports which registers have changed. The
// package is only for tests.
//
// It checks registers that a user program of the guest can use: XMM and, where processor and kernel
// support them, PKRU, YMM, and ZMM with the mask registers. It does not check x87, MXCSR or kernel
// registers.
package regtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/cpu"
)

// Names of sets of registers that a processor may have. ZMM includes the mask registers.
const (
	XMM = "xmm"
	YMM = "ymm"
	ZMM = "zmm"
	PKU = "pkru"
)

// All lists the sets of registers that Hold can check if the processor supports all of them.
var All = [...]string{XMM, YMM, ZMM, PKU}

// Held returns the sets of registers in All that this processor and its kernel support.
func Held() []string {
	held := []string{XMM}
	if cpu.X86.HasAVX {
		held = append(held, YMM)
	}
	if has512() {
		held = append(held, ZMM)
	}
	if hasPKRU() {
		held = append(held, PKU)
	}
	return held
}

// has512 reports whether there are ZMM registers and 64-bit mask registers. The mask registers need
// AVX512BW.
func has512() bool { return cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW }

// hasPKRU reports whether the kernel has enabled protection keys (OSPKE).
func hasPKRU() bool {
	if max, _, _, _ := cpuid(0, 0); max < 7 {
		return false
	}
	_, _, c, _ := cpuid(7, 0)
	return c&(1<<4) != 0
}

// registers holds values for all registers, in the layout that the assembly uses. XMM and YMM
// registers are the low bytes of ZMM registers.
type registers struct {
	vector [32][64]byte
	mask   [8]uint64
	pkru   uint32
}

// pkruOpen are the bits of PKRU that must stay zero: if set, they deny access to pages without a
// key.
const pkruOpen = 3

// Signal connects the goroutines in Hold with the goroutine that started them. The assembly depends
// on the layout of Signal.
type Signal struct {
	Held  atomic.Uint32 // number of goroutines that have filled their registers
	LetGo atomic.Uint32 // if this is not zero, Hold returns
}

// Hold fills the registers with values derived from seed, and spins until signal.LetGo is set. It
// returns an error that names the registers whose values have changed. While Hold spins, it
// occupies a processor of the Go scheduler, and the runtime cannot stop the world.
func Hold(seed uint64, signal *Signal) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	want := values(seed)
	var got registers
	if hasPKRU() {
		defer setPKRU(getPKRU())
		setPKRU(want.pkru)
	}
	width := 16
	switch {
	case has512():
		width = 64
		hold512(want, &got, signal)
	case cpu.X86.HasAVX:
		width = 32
		hold256(want, &got, signal)
	default:
		hold128(want, &got, signal)
	}
	if hasPKRU() {
		got.pkru = getPKRU()
	}
	return want.compare(&got, width, hasPKRU())
}

// values returns registers whose values are all different.
func values(seed uint64) *registers {
	r, v := rand.New(rand.NewPCG(seed, 2)), &registers{}
	for i := range v.vector {
		for j := 0; j < len(v.vector[i]); j += 8 {
			binary.LittleEndian.PutUint64(v.vector[i][j:], r.Uint64())
		}
	}
	for i := range v.mask {
		v.mask[i] = r.Uint64()
	}
	v.pkru = r.Uint32() &^ pkruOpen
	return v
}

// compare returns an error that names the registers that differ. It compares vectors of the given
// width in bytes and, if pkru is set, the register PKRU. For the widest vectors, it also compares
// the mask registers.
func (want *registers) compare(got *registers, width int, pkru bool) error {
	var wrong []string
	name := map[int]string{16: XMM, 32: YMM, 64: ZMM}[width]
	for i := range want.vector {
		if i >= 16 && width < 64 {
			break // only AVX-512 has more registers
		}
		if a, b := got.vector[i][:width], want.vector[i][:width]; !bytes.Equal(a, b) {
			wrong = append(wrong, fmt.Sprintf("%s%d is %x, want %x", name, i, a, b))
		}
	}
	for i := range want.mask {
		if width == 64 && got.mask[i] != want.mask[i] {
			wrong = append(wrong, fmt.Sprintf("k%d is %#x, want %#x", i, got.mask[i], want.mask[i]))
		}
	}
	if pkru && got.pkru != want.pkru {
		wrong = append(wrong, fmt.Sprintf("pkru is %#x, want %#x", got.pkru, want.pkru))
	}
	if wrong != nil {
		return fmt.Errorf("registers changed: %s", strings.Join(wrong, "; "))
	}
	return nil
}

// These functions are implemented in assembly. Each function fills the registers from want, waits,
// and stores the registers in got.

//go:noescape
func hold128(want, got *registers, signal *Signal)

//go:noescape
func hold256(want, got *registers, signal *Signal)

//go:noescape
func hold512(want, got *registers, signal *Signal)

func getPKRU() uint32

func setPKRU(v uint32)

func cpuid(leaf, index uint32) (a, b, c, d uint32)
