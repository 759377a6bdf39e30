package vmmclient

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

const guestBytes = 1 << 20 // memory of the guests below

func tempFile(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// answer receives the next request and answers it with m.
func answer(t *testing.T, vmm *ctlsock.Conn, kind vmmproto.Kind, m vmmproto.Message) {
	t.Helper()
	_, _, fds, err := vmm.Receive()
	ctlsock.CloseAll(fds)
	if err != nil {
		t.Error(err)
		return
	}
	var w codec.Writer
	m.Append(&w)
	if err := vmm.Send(kind, w.Bytes()); err != nil {
		t.Error(err)
	}
}

// ended checks that the process of a VMM was killed, and that Exit says why.
func ended(t *testing.T, v *VMM) {
	t.Helper()
	within(t, "the end of a VMM that broke the protocol", func() { <-v.Done() })
	if x := v.Exit(); x.Reason != vm.ExitInternal || !strings.Contains(x.Detail, "broke the control protocol") {
		t.Errorf("it exited with %+v", x)
	}
}

// The daemon relies on the VMM's description of the layer that the VMM has saved. A VMM that sends
// an impossible description is killed, and the description is not used.
func TestLayersThatCannotBe(t *testing.T) {
	const page = vm.PageSize
	good := vmmproto.SaveResult{LayerBytes: guestBytes, DirtyBytes: page, StateBytes: 5,
		Extents: []vm.Extent{{Length: page}, {GPA: 2 * page, Length: page, Offset: 2 * page}}}
	many := make([]vm.Extent, 5)
	for i := range many {
		many[i] = vm.Extent{GPA: uint64(2*i) * page, Length: page, Offset: uint64(2*i) * page}
	}
	for name, change := range map[string]func(*vmmproto.SaveResult){
		"": func(*vmmproto.SaveResult) {},
		"two extents 2^60 apart": func(r *vmmproto.SaveResult) {
			r.Extents[1].GPA, r.Extents[1].Offset = 1<<60, 1<<60
		},
		"far from its place": func(r *vmmproto.SaveResult) { r.Extents[1].Offset = 8 * page },
		"descending": func(r *vmmproto.SaveResult) {
			r.Extents[0], r.Extents[1] = r.Extents[1], r.Extents[0]
		},
		"one twice":               func(r *vmmproto.SaveResult) { r.Extents[1] = r.Extents[0] },
		"more than was asked for": func(r *vmmproto.SaveResult) { r.Extents = many },
		"in a layer of another":   func(r *vmmproto.SaveResult) { r.Extents[0].Layer = 1 },
		"behind the memory": func(r *vmmproto.SaveResult) {
			r.Extents[1].GPA, r.Extents[1].Offset = guestBytes, guestBytes
		},
		"no whole page": func(r *vmmproto.SaveResult) { r.Extents[1].Length = 1 },
		"empty":         func(r *vmmproto.SaveResult) { r.Extents[1].Length = 0 },
		"endless": func(r *vmmproto.SaveResult) {
			r.Extents[1].Length = math.MaxUint64 &^ (page - 1)
		},
		"a layer of another length":  func(r *vmmproto.SaveResult) { r.LayerBytes *= 2 },
		"more written than there is": func(r *vmmproto.SaveResult) { r.DirtyBytes = guestBytes + 1 },
		"in the device hole": func(r *vmmproto.SaveResult) {
			r.Extents[1] = vm.Extent{GPA: vm.HoleStart, Length: page}
		},
		"above the hole, where nothing is": func(r *vmmproto.SaveResult) {
			r.Extents[1] = vm.Extent{GPA: vm.HoleEnd, Length: page}
		},
	} {
		save := good
		save.Extents = append([]vm.Extent(nil), good.Extents...)
		change(&save)
		t.Run(name, func(t *testing.T) {
			v, vmm := scripted(t)
			go answer(t, vmm, vmmproto.KindOK, &vmmproto.BranchResult{Save: save, Mode: vm.BranchDiff})
			files := BranchFiles{MemoryBytes: guestBytes, State: tempFile(t), Layer: tempFile(t)}
			_, err := v.Branch(t.Context(), vmmproto.Branch{Mode: vm.BranchDiff, MaxExtents: 4}, files)
			check(t, v, name == "", err)
		})
	}
	for name, r := range map[string]vmmproto.BranchResult{
		"another mode":        {Save: good, Mode: vm.BranchFull},
		"no mode":             {Save: good, Mode: 77},
		"kept without asking": {Save: good, Mode: vm.BranchDiff, Kept: true},
	} {
		t.Run(name, func(t *testing.T) {
			v, vmm := scripted(t)
			go answer(t, vmm, vmmproto.KindOK, &r)
			files := BranchFiles{MemoryBytes: guestBytes, State: tempFile(t), Layer: tempFile(t)}
			_, err := v.Branch(t.Context(), vmmproto.Branch{Mode: vm.BranchDiff, MaxExtents: 4}, files)
			check(t, v, false, err)
		})
	}
}

// A disk-only branch has no memory. A VMM that claims to have saved memory is killed.
func TestDisksThatCannotBe(t *testing.T) {
	for name, r := range map[string]vmmproto.BranchResult{
		"":             {Mode: vm.BranchDisk},
		"another mode": {Mode: vm.BranchDiff},
		"a state":      {Mode: vm.BranchDisk, Save: vmmproto.SaveResult{StateBytes: 1}},
		"a layer":      {Mode: vm.BranchDisk, Save: vmmproto.SaveResult{LayerBytes: 1}},
		"dirty pages":  {Mode: vm.BranchDisk, Save: vmmproto.SaveResult{DirtyBytes: 1}},
		"extents":      {Mode: vm.BranchDisk, Save: vmmproto.SaveResult{Extents: []vm.Extent{{Length: vm.PageSize}}}},
		"kept":         {Mode: vm.BranchDisk, Kept: true},
	} {
		t.Run(name, func(t *testing.T) {
			v, vmm := scripted(t)
			go answer(t, vmm, vmmproto.KindOK, &r)
			_, err := v.Branch(t.Context(), vmmproto.Branch{Mode: vm.BranchDisk},
				BranchFiles{Tops: []*os.File{tempFile(t)}, Frozen: []*os.File{tempFile(t)}})
			check(t, v, name == "", err)
		})
	}
}

// check fails the test if a good answer was refused, or if a bad answer has not ended the VMM.
func check(t *testing.T, v *VMM, good bool, err error) {
	t.Helper()
	if good {
		if err != nil {
			t.Error(err)
		}
		return
	}
	if !errors.Is(err, ErrHostile) {
		t.Errorf("got %v", err)
	}
	ended(t, v)
}

// A VMM that sends an answer of the wrong form is killed.
func TestAnswersThatCannotBeRead(t *testing.T) {
	for name, body := range map[string][]byte{"short": {1}, "empty": nil, "too long": make([]byte, 100)} {
		t.Run(name, func(t *testing.T) {
			v, vmm := scripted(t)
			go func() {
				_, _, _, _ = vmm.Receive()
				_ = vmm.Send(vmmproto.KindOK, body)
			}()
			_, err := v.Stats(t.Context())
			check(t, v, false, err)
		})
	}
}

// A VMM is killed if it sends too many messages without a request, or unexpected descriptors. A VMM
// is not killed for messages that it may send by itself.
func TestUnaskedMessagesEndTheVMM(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ctlsock.CloseAll(pair[:])
	encoded := func(m vmmproto.Message) []byte {
		var w codec.Writer
		m.Append(&w)
		return w.Bytes()
	}
	branched, exit := encoded(&vmmproto.Branched{Serial: 1}), encoded(&vmmproto.Exit{Reason: vm.ExitPowerOff})
	for name, c := range map[string]struct {
		kind vmmproto.Kind
		body []byte
		fds  []int
		n    int
	}{
		"stalled without end":          {vmmproto.KindStalled, nil, nil, maxUnasked + 1},
		"ends of branches without end": {vmmproto.KindBranched, branched, nil, maxUnasked + 1},
		"exits without end":            {vmmproto.KindExit, exit, nil, maxUnasked + 1},
		"an answer":                    {vmmproto.KindOK, nil, nil, 1},
		"an error":                     {vmmproto.KindError, encoded(&vmmproto.Error{Code: vm.ErrOther, Text: "x"}), nil, 1},
		"an unknown message":           {200, nil, nil, 1},
		"a request":                    {vmmproto.KindPause, nil, nil, 1},
		"descriptors with an end":      {vmmproto.KindBranched, branched, pair[:], 1},
		"descriptors with an exit":     {vmmproto.KindExit, exit, pair[:1], 1},
		"a stream before a boot":       {vmmproto.KindConn, encoded(&vmmproto.GuestConn{Port: 1}), nil, 1},
		"a stream with a descriptor":   {vmmproto.KindConn, encoded(&vmmproto.GuestConn{Port: 1}), pair[:1], 1},
		"a stream without a port":      {vmmproto.KindConn, nil, nil, 1},
		"half an exit":                 {vmmproto.KindExit, exit[:2], nil, 1},
		"more than an end":             {vmmproto.KindBranched, append(branched, 0), nil, 1},
		"stalled with a body":          {vmmproto.KindStalled, []byte{1}, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			v, vmm := scripted(t)
			for range c.n {
				_ = vmm.Send(c.kind, c.body, c.fds...) // fails if the client has hung up
			}
			ended(t, v)
		})
	}
	v, vmm := scripted(t)
	for range 3 { // each answer restarts the count of messages
		for range maxUnasked {
			if err := vmm.Send(vmmproto.KindStalled, nil); err != nil {
				t.Fatal(err)
			}
		}
		go answer(t, vmm, vmmproto.KindOK, &vmmproto.Stats{})
		if _, err := v.Stats(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// The daemon shortens texts in messages of a VMM, and removes all characters that a terminal would
// interpret.
func TestWordsAreCut(t *testing.T) {
	long := "beg\x1b]52;c;ZXZpbA==\ain\u009b2J\u202e" + strings.Repeat("\xff", 500<<10)
	v, vmm := scripted(t)
	checkText := func(what, text string) {
		t.Helper()
		if len(text) > vmmproto.MaxText+100 || !strings.Contains(text, "beg") ||
			strings.ContainsAny(text, "\x1b\a\u009b\u202e") {
			t.Errorf("%s: %d bytes, %.60q", what, len(text), text)
		}
	}
	go answer(t, vmm, vmmproto.KindError, &vmmproto.Error{Code: vm.ErrOther, Text: long})
	checkText("an error", v.Pause(t.Context()).Error())
	go answer(t, vmm, vmmproto.KindOK, &vmmproto.BranchResult{Mode: vm.BranchDiff, Fallback: long,
		Save: vmmproto.SaveResult{LayerBytes: guestBytes}})
	r, err := v.Branch(t.Context(), vmmproto.Branch{Mode: vm.BranchLive},
		BranchFiles{MemoryBytes: guestBytes, State: tempFile(t), Layer: tempFile(t)})
	if err != nil {
		t.Fatal(err)
	}
	checkText("why it was not live", r.Fallback)
	v.expect(9)
	var w codec.Writer
	(&vmmproto.Branched{Serial: 9, Failed: &vmmproto.Error{Code: vm.ErrOther, Text: long}}).Append(&w)
	if err := vmm.Send(vmmproto.KindBranched, w.Bytes()); err != nil {
		t.Fatal(err)
	}
	_, err = v.WaitCopied(t.Context(), 9)
	checkText("the end of a branch", err.Error())
	w = codec.Writer{}
	(&vmmproto.Exit{Reason: vm.ExitPanic, Detail: long}).Append(&w)
	if err := vmm.Send(vmmproto.KindExit, w.Bytes()); err != nil {
		t.Fatal(err)
	}
	_ = vmm.Close()
	if err := v.proc.Kill(); err != nil {
		t.Fatal(err)
	}
	<-v.Done()
	checkText("its exit", v.Exit().Detail)
}
