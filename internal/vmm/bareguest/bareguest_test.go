package bareguest

import (
	"bytes"
	"slices"
	"testing"
)

// Decode returns the program that was encoded. The code for each Kind fits into handlerSize.
func TestPrograms(t *testing.T) {
	var all Program
	for _, target := range Targets() {
		for _, a := range Attacks(target, FreePages(), 1) {
			if len(a.Program) == 0 {
				t.Errorf("%s does nothing", a.Name)
			}
			all = append(all, a.Program...)
		}
	}
	for _, a := range slices.Concat(Probes(1), Ends()) {
		all = append(all, a.Program...)
	}
	if got := Decode(all.Encode()); !slices.Equal(got, all) {
		t.Error("decoding gives another program")
	}
	for k, code := range handlerCode() {
		if len(code) == 0 || len(code)+5 > handlerSize { // 5 bytes for the jump
			t.Errorf("kind %d has %d bytes of code", k, len(code))
		}
	}
	if handlers+Kinds*handlerSize > faultCode {
		t.Error("the handlers are not all before the next part")
	}
	if !bytes.Equal(Kernel(all), Kernel(all)) {
		t.Error("a program gives two kernels")
	}
	again := Attacks(Targets()[0], FreePages(), 7)
	for i, a := range Attacks(Targets()[0], FreePages(), 7) {
		if !slices.Equal(a.Program, again[i].Program) {
			t.Errorf("%s: one seed gives two programs", a.Name)
		}
	}
}
