package sandbox

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/console"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/process"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// takenOver provides VMMs that their guests have compromised. The daemon talks to each of them
// through the real client and a real socket, but the VMM's process only sleeps. The answers are
// those of a real VMM, with random changes.
type takenOver struct {
	bin string // path of the program that the processes run

	mu    sync.Mutex
	words words // makes the random choices
	lives sync.WaitGroup
}

// words are random bytes. When all bytes are used, every further answer is correct.
type words struct{ left []byte }

func (w *words) byte() byte {
	if len(w.left) == 0 {
		return 0
	}
	b := w.left[0]
	w.left = w.left[1:]
	return b
}

// below returns a random number from 0 to n-1.
func (w *words) below(n int) int { return (int(w.byte())<<8 | int(w.byte())) % max(n, 1) }

func (h *takenOver) Spawn(_ context.Context, c vmpool.ShellConfig) (_ vmpool.VMM, err error) {
	if err := os.Mkdir(c.Dir, 0o700); err != nil {
		return nil, err
	}
	ring, err := os.Create(filepath.Join(c.Dir, "console.ring"))
	if err != nil {
		return nil, err
	}
	defer ring.Close()
	if err := console.Format(ring); err != nil {
		return nil, err
	}
	listener, err := ctlsock.Listen(filepath.Join(c.Dir, vmmclient.ControlSocket))
	if err != nil {
		return nil, err
	}
	defer unix.Close(listener)
	p, err := process.Start(process.Spec{Name: "forkd-vmm", Bin: h.bin, Record: filepath.Join(c.Dir, "vmm.pid")})
	if err != nil {
		return nil, err
	}
	v, err := vmmclient.Attach(nil, c.ID, c.Dir)
	if err != nil {
		return nil, errors.Join(err, p.Kill(), p.Wait())
	}
	conn, err := ctlsock.Accept(listener)
	if err != nil {
		return nil, errors.Join(err, v.Kill(), p.Wait())
	}
	vmm := &takenOverVMM{all: h, ctl: conn, proc: p, memory: c.Shape.MemoryBytes}
	h.lives.Go(func() { // when the process ends, the kernel closes the connection
		_ = p.Wait()
		conn.Shutdown()
	})
	h.lives.Go(vmm.serve)
	return v, nil
}

func (h *takenOver) Attach(string, string) (vmpool.VMM, error) { return nil, errors.New("not found") }
func (h *takenOver) CheckLimits(string, vm.Limits) error       { return nil }
func (h *takenOver) OpenConsole(dir string) (*os.File, error)  { return vmmclient.OpenConsole(dir) }
func (h *takenOver) AwaitStarts()                              {}
func (h *takenOver) Node() snapshot.Node                       { return snapshot.Node{} }

// takenOverVMM is the VMM's side of one connection.
type takenOverVMM struct {
	all    *takenOver
	ctl    *ctlsock.Conn
	proc   *process.Process
	memory uint64
	stats  vmmproto.Stats
	kept   []int // descriptors that the VMM should have closed
}

func (v *takenOverVMM) serve() {
	defer func() { ctlsock.CloseAll(v.kept); _ = v.ctl.Close() }()
	for {
		kind, body, fds, err := v.ctl.Receive()
		if err != nil {
			return
		}
		v.all.mu.Lock()
		ok := v.answer(kind, append([]byte(nil), body...), fds)
		v.all.mu.Unlock()
		if !ok { // exit instead of staying silent, because other tests check VMMs that do not answer
			_ = v.proc.Kill()
			v.ctl.Shutdown()
			return
		}
	}
}

// answer executes a request as a VMM would, or with random changes. It reports whether it has sent
// an answer.
func (v *takenOverVMM) answer(kind vmmproto.Kind, body []byte, fds []int) bool {
	w := &v.all.words
	var good vmmproto.Message
	var live uint64 // serial of a live branch
	switch kind {
	case vmmproto.KindRestore:
		good = &vmmproto.RestoreResult{}
	case vmmproto.KindPause, vmmproto.KindResume:
		v.stats.Paused = kind == vmmproto.KindPause
	case vmmproto.KindStats:
		good = &v.stats
	case vmmproto.KindWritten:
		good = &vmmproto.Written{}
	case vmmproto.KindRebase:
		v.stats.Rebases++
		good = &vmmproto.RebaseResult{Bytes: vm.PageSize, Mappings: 2}
	case vmmproto.KindBranch:
		var req vmmproto.Branch
		if req.Parse(codec.NewReader(body)) != nil {
			return false
		}
		v.stats.TopSwaps++
		if req.Mode == vm.BranchLive {
			live = req.Serial
		}
		good = &vmmproto.BranchResult{Mode: req.Mode, Kept: req.Keep, Save: v.save(fds)}
	}
	if w.byte()%8 == 7 {
		v.kept = append(v.kept, fds...)
	} else {
		ctlsock.CloseAll(fds)
	}
	var reply codec.Writer
	if good != nil {
		good.Append(&reply)
	}
	if !v.send(vmmproto.KindOK, reply.Bytes()) {
		return false
	}
	if live != 0 {
		var end codec.Writer
		(&vmmproto.Branched{Serial: live}).Append(&end)
		_ = v.send(vmmproto.KindBranched, end.Bytes())
		_ = v.ctl.Send(vmmproto.KindBranched, end.Bytes()) // unchanged, because the daemon waits for this message
	}
	return true
}

// save writes the files of a branch, or leaves them empty, and returns a description of the layer.
func (v *takenOverVMM) save(fds []int) vmmproto.SaveResult {
	w := &v.all.words
	_, _ = unix.Pwrite(fds[0], []byte("state"), 0)
	_ = unix.Ftruncate(fds[1], int64(v.memory))
	r := vmmproto.SaveResult{LayerBytes: v.memory, DirtyBytes: vm.PageSize, StateBytes: 5}
	extents := []int{1, 2, 300}[w.below(3)] // 300 is more than a snapshot's map may have
	page := make([]byte, vm.PageSize)
	for i := range extents {
		at := uint64(i) * 3 * vm.PageSize
		_, _ = unix.Pwrite(fds[1], page, int64(at))
		r.Extents = append(r.Extents, vm.Extent{GPA: at, Length: vm.PageSize, Offset: at})
	}
	switch w.byte() % 16 {
	case 13:
		_ = unix.Ftruncate(fds[1], 0)
	case 14:
		_ = unix.Ftruncate(fds[1], int64(2*v.memory))
	case 15:
		_ = unix.Ftruncate(fds[0], 0)
	}
	return r
}

// send sends a message, or sometimes a wrong message. It reports whether the daemon has received an
// OK or an error.
func (v *takenOverVMM) send(kind vmmproto.Kind, body []byte) bool {
	w := &v.all.words
	var fds []int
	times := 1
	switch w.byte() % 24 {
	case 10: // hang up
		return false
	case 11: // a message of another kind
		kind = vmmproto.Kind(w.byte())
	case 12: // a shorter message
		body = body[:w.below(len(body)+1)]
	case 13: // a longer message
		body = append(body, make([]byte, w.below(1<<16))...)
	case 14: // the message several times
		times = 2 + w.below(40)
	case 15: // the message with a descriptor
		fds = []int{0}
	case 16: // additional messages before this one
		for range w.below(40) {
			_ = v.ctl.Send(vmmproto.Kind(w.byte()), body)
		}
	case 17:
		kind = vmmproto.KindError
		var e codec.Writer
		(&vmmproto.Error{Code: vm.ErrorCode(w.byte() % 12), Text: string(make([]byte, w.below(1<<16)))}).Append(&e)
		body = e.Bytes()
	case 18, 19: // some random bytes in the message
		for range 1 + w.below(8) {
			if len(body) > 0 {
				body[w.below(len(body))] = w.byte()
			}
		}
	case 20, 21, 22, 23: // some numbers in the message are replaced by typical limits
		numbers := []uint64{0, 1, vm.PageSize, v.memory, v.memory - vm.PageSize, v.memory + vm.PageSize, 1 << 32, 1 << 60,
			1<<63 - 1, 1<<64 - 1,
			1<<64 - vm.PageSize, vm.HoleStart, vm.HoleEnd, 3 * vm.PageSize}
		for range 1 + w.below(4) {
			if len(body) >= 8 {
				binary.LittleEndian.PutUint64(body[w.below(len(body)-7):], numbers[w.below(len(numbers))])
			}
		}
	}
	for range times {
		if v.ctl.Send(kind, body, fds...) != nil {
			return false
		}
	}
	return kind == vmmproto.KindOK || kind == vmmproto.KindError
}

// layersOver returns the files in a directory that are longer than the given number of bytes, or
// that take more than this number of bytes on disk.
func layersOver(dir string, most int64) (found []string) {
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		var st unix.Stat_t
		if unix.Lstat(path, &st) == nil && st.Blocks*512 > most {
			found = append(found, fmt.Sprintf("%s: %d bytes", path, st.Blocks*512))
		}
		return nil
	})
	return found
}
