package machine

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/kvm"
)

// fill fills a KVM struct with random bytes.
func fill[T kvm.State](r *rand.Rand, v *T) {
	raw := kvm.Raw(v)
	for i := range raw {
		raw[i] = byte(r.Uint32())
	}
}

func randomVCPU() *vcpuState {
	r := rand.New(rand.NewPCG(3, 4))
	s := &vcpuState{cpuid: make([]kvm.CPUIDEntry, 40), msrs: make([]kvm.MSREntry, 50)}
	fill(r, &s.mp)
	fill(r, &s.regs)
	fill(r, &s.sregs)
	fill(r, &s.xsave)
	fill(r, &s.xcrs)
	fill(r, &s.debug)
	fill(r, &s.lapic)
	fill(r, &s.events)
	for i := range s.cpuid {
		fill(r, &s.cpuid[i])
	}
	for i := range s.msrs {
		fill(r, &s.msrs[i])
	}
	return s
}

func randomVM() *vmState {
	r := rand.New(rand.NewPCG(5, 6))
	s := &vmState{clock: r.Uint64(), tscKHz: r.Uint32()}
	for i, id := range irqchips {
		fill(r, &s.chips[i])
		s.chips[i].Id = id
	}
	return s
}

type component interface {
	Save(w *codec.Writer)
	Restore(r *codec.Reader) error
}

// Every component restores the state that it has saved. It refuses state of other versions, and
// state that is truncated at any position.
func TestComponentsRoundTrip(t *testing.T) {
	for name, c := range map[string]struct{ saved, empty component }{
		"vcpu":  {randomVCPU(), &vcpuState{}},
		"vm":    {randomVM(), &vmState{}},
		"shape": {sampleShape(), &machineShape{}},
	} {
		t.Run(name, func(t *testing.T) {
			var first, second codec.Writer
			c.saved.Save(&first)
			r := codec.NewReader(first.Bytes())
			if err := c.empty.Restore(r); err != nil || r.Done() != nil {
				t.Fatal(err, r.Err())
			}
			c.empty.Save(&second)
			if !bytes.Equal(first.Bytes(), second.Bytes()) {
				t.Fatal("saving what was restored gives other bytes")
			}
			for n := 0; n < len(first.Bytes()); n += 1 + n/64 {
				r := codec.NewReader(first.Bytes()[:n])
				if c.empty.Restore(r) == nil && r.Done() == nil {
					t.Fatalf("%d of %d bytes were accepted", n, len(first.Bytes()))
				}
			}
			other := bytes.Clone(first.Bytes())
			other[0]++
			if c.empty.Restore(codec.NewReader(other)) == nil {
				t.Fatal("another version was accepted")
			}
		})
	}
}

func sampleState() []byte {
	w := newStateWriter()
	w.section("machine", sampleShape().Save)
	w.section("vm", randomVM().Save)
	w.section("vcpu", randomVCPU().Save)
	return w.finish()
}

func TestStateRefusesForeignAndDamagedFiles(t *testing.T) {
	good := sampleState()
	if _, err := newStateReader(good); err != nil {
		t.Fatal(err)
	}
	flip := func(at int) []byte {
		p := bytes.Clone(good)
		p[at] ^= 0x10
		return p
	}
	for _, c := range []struct {
		name, want string
		bytes      []byte
	}{
		{"empty", "not a forkd machine state", nil},
		{"foreign", "not a forkd machine state", flip(0)},
		{"version", "format version", flip(len(stateMagic))},
		{"bit flip", "damaged", flip(len(good) / 2)},
		{"truncated", "damaged", good[:len(good)-100]},
	} {
		if _, err := newStateReader(c.bytes); !errors.Is(err, vm.ErrBadState) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	r, _ := newStateReader(good)
	if err := r.section("vcpu", func(*codec.Reader) error { return nil }); !errors.Is(err, vm.ErrBadState) {
		t.Error("a section of another name was taken")
	}
}

// State files may be forged. Restoring arbitrary bytes may fail or succeed, but must not crash.
func FuzzState(f *testing.F) {
	good := sampleState()
	f.Add(good[len(stateMagic)+4 : len(good)-4])
	f.Fuzz(func(t *testing.T, p []byte) {
		r := &stateReader{codec.NewReader(p)}
		var saved machineShape
		if r.section("machine", saved.Restore) == nil {
			_ = sampleShape().check(&saved)
		}
		_ = r.section("vm", (&vmState{}).Restore)
		_ = r.section("vcpu", (&vcpuState{}).Restore)
		_ = r.section("serial", newSerial(nil, new(countingInterrupt)).Restore)
	})
}

func TestBoundKeepsRegionsApart(t *testing.T) {
	mem, err := guestmem.New(uint64(guestmem.HoleStart) + 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	var ranges []guestmem.Range
	for i := range guestmem.GPA(10) {
		ranges = append(ranges, guestmem.Range{GPA: i * 8192, Length: 4096})
	}
	ranges = append(ranges, guestmem.Range{GPA: guestmem.HoleStart - 4096, Length: 4096},
		guestmem.Range{GPA: guestmem.HoleEnd, Length: 4096})
	got := bound(mem, ranges, 3)
	if len(got) > 3 {
		t.Fatalf("%d ranges, want 3 at most: %+v", len(got), got)
	}
	for _, r := range got {
		if r.GPA < guestmem.HoleStart && r.GPA+guestmem.GPA(r.Length) > guestmem.HoleStart {
			t.Fatalf("%+v spans the device hole", r)
		}
	}
	if g := gaps(got, ranges); len(g) == 0 || gaps(ranges, ranges) != nil {
		t.Fatalf("gaps %+v", g)
	}
}

func TestBranchRefusesAnUnknownMode(t *testing.T) {
	var w codec.Writer
	(&vmmproto.Branch{Mode: 9}).Append(&w)
	if (&vmmproto.Branch{}).Parse(codec.NewReader(w.Bytes())) == nil {
		t.Fatal("mode 9 was parsed")
	}
}
