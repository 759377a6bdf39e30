package vmmproto

import (
	"math"
	"reflect"
	"testing"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vm"
)

type body interface {
	Message
	Parse(*codec.Reader) error
}

// Parsing a message and encoding it again gives the same bytes. A truncated message is refused.
func TestMessagesRoundTrip(t *testing.T) {
	extents := []vm.Extent{{GPA: 0, Length: vm.PageSize, Layer: 0, Offset: 0},
		{GPA: 4 * vm.PageSize, Length: 2 * vm.PageSize, Layer: 1, Offset: vm.PageSize}}
	ranges := []vm.Range{{GPA: vm.PageSize, Length: 3 * vm.PageSize}, {GPA: 1 << 32, Length: vm.PageSize}}
	disks := []Disk{{SizeBytes: 1 << 30, Layers: 3}, {Volume: true}, {SizeBytes: 1 << 20, Layers: 2, Volume: true}}
	id := [16]byte{1, 2, 15: 3}
	save := SaveResult{Extents: extents, LayerBytes: 1, DirtyBytes: 2, StateBytes: 3}
	for _, m := range []body{
		&Create{Version: Version, Shape: vm.Shape{MemoryBytes: 1 << 30, VCPUs: 2, Template: vm.TemplateHost},
			CPUID: []byte{1}},
		&Created{CPUID: []byte{1, 2}},
		&Boot{Cmdline: "quiet", Initrd: true, Disks: disks, VMGenID: id, Net: true},
		&Restore{Layers: 2, Extents: extents, Disks: disks, VMGenID: id, Resume: true, Net: true,
			FirstWrites: ranges},
		&SetNet{Net: true},
		&Written{Ranges: ranges},
		&RestoreResult{Map: 1, State: 2, Run: 3},
		&save,
		&Branch{Mode: vm.BranchDiff, MaxExtents: 9, Disks: 1, Serial: 7, StormFaults: 5, Keep: true, SinceRestore: true},
		&BranchResult{Save: save, Serial: 7, Mode: vm.BranchDiff, Fallback: "why", Kept: true, Pause: 1, Arm: 2},
		&Branched{Serial: 7, Failed: &Error{Code: vm.ErrNoSpace, Text: "full"}, Copy: 1, Faults: 2, Stop: 3},
		&Branched{Serial: 7, Copy: 1},
		&Merge{Disk: 1, First: 2},
		&SetVolume{Disk: 1, SizeBytes: 1 << 30, Layers: 3},
		&Rebase{Serial: 7},
		&RebaseResult{Bytes: 1, Mappings: 2, Took: 3},
		&Error{Code: vm.ErrCPU, Text: "no avx"},
		&Stats{GuestDirtyBytes: 1, Paused: true, Exits: 2, TopSwaps: 3, Rebases: 4, DiskFull: true,
			Volumes: 5},
		&Exit{Reason: vm.ExitReason(2), Detail: "panic"},
	} {
		var w codec.Writer
		m.Append(&w)
		got := reflect.New(reflect.TypeOf(m).Elem()).Interface().(body)
		r := codec.NewReader(w.Bytes())
		if err := got.Parse(r); err != nil || r.Done() != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%T: %+v became %+v: %v, %v", m, m, got, err, r.Done())
		}
		cut := reflect.New(reflect.TypeOf(m).Elem()).Interface().(body)
		if cut.Parse(codec.NewReader(w.Bytes()[:len(w.Bytes())-1])) == nil {
			t.Errorf("%T without its last byte: accepted", m)
		}
	}
}

// Parse limits the pages in Written. A guest that controls its VMM cannot make other VMMs copy more
// pages than a forked sandbox could have written.
func TestWrittenIsBounded(t *testing.T) {
	most := vm.Range{GPA: vm.PageSize, Length: MaxWritten * vm.PageSize}
	for _, c := range []struct {
		ranges []vm.Range
		ok     bool
	}{
		{[]vm.Range{most}, true},
		{[]vm.Range{most, {GPA: 1 << 32, Length: vm.PageSize}}, false},
		{[]vm.Range{{Length: 1 << 40}}, false},
		{[]vm.Range{{Length: math.MaxUint64 &^ (vm.PageSize - 1)}, {Length: vm.PageSize}}, false},
		{[]vm.Range{{GPA: 1, Length: vm.PageSize}}, false},
		{[]vm.Range{{Length: 1}}, false},
		{[]vm.Range{{Length: vm.PageSize}, {GPA: vm.PageSize, Length: vm.PageSize}}, true},
		{[]vm.Range{{Length: 2 * vm.PageSize}, {GPA: vm.PageSize, Length: vm.PageSize}}, false},
		{[]vm.Range{{GPA: vm.PageSize, Length: vm.PageSize}, {Length: vm.PageSize}}, false},
		{[]vm.Range{{GPA: math.MaxUint64 &^ (vm.PageSize - 1), Length: vm.PageSize}}, false},
	} {
		var w codec.Writer
		(&Written{Ranges: c.ranges}).Append(&w)
		if err := new(Written).Parse(codec.NewReader(w.Bytes())); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.ranges, err)
		}
	}
}

func TestDurationsAreNeverNegative(t *testing.T) {
	var w codec.Writer
	(&RestoreResult{Map: -1}).Append(&w)
	var got RestoreResult
	if err := got.Parse(codec.NewReader(w.Bytes())); err != nil || got.Map != math.MaxInt64 {
		t.Errorf("%+v, %v", got, err)
	}
}
