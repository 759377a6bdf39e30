package torture

import (
	"context"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/format/memlayer"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/proto/agentproto"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/test/torture/guest"
)

// Snapshot holds the files of a branch, and the state that its children must have. The files have
// no names. The garbage collector closes a file when no snapshot refers to it any more.
type Snapshot struct {
	name    string
	depth   int // number of memory layers below this snapshot's own
	extents []vm.Extent
	layers  []*os.File // memory layers, the base first
	state   *os.File
	disks   []*os.File
	size    uint64 // size of the disk in bytes
	at      guest.Instant
}

// ask sends a request to the guest program. If the program reports damage, ask returns an error.
func (v *running) ask(ctx context.Context, words ...string) (guest.Report, error) {
	var r guest.Report
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	conn, err := agentclient.DialUnix(filepath.Join(v.Dir(), vmmclient.VsockSocket))(ctx, guest.Port)
	if err != nil {
		return r, fmt.Errorf("%s: ask the guest program: %w", v.name, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err = fmt.Fprintln(conn, strings.Join(words, " ")); err == nil {
		err = json.NewDecoder(io.LimitReader(conn, 1<<20)).Decode(&r)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		log, _ := v.exec(ctx, "/bin/sh", "-c", "cat "+guest.Log+"; dmesg | tail -n 20")
		return r, fmt.Errorf("%s: ask the guest program: %w; in the guest: %s", v.name, err, log)
	}
	if err := r.Damage(); err != nil {
		return r, fmt.Errorf("%s: %w", v.name, err)
	}
	return r, nil
}

// setMark sets a new, unique mark in the guest. Copies of the guest must have this mark until the
// next mark is set.
func (v *running) setMark(ctx context.Context, words ...string) (guest.Instant, error) {
	at := guest.Instant{Mark: v.rig.names.Add(1)}
	r, err := v.ask(ctx, append([]string{"mark", fmt.Sprint(at.Mark)}, words...)...)
	at.Seq = r.Seq
	return at, err
}

// newSnapshot makes the files of a snapshot of v.
func (v *running) newSnapshot(kind string) (s *Snapshot, layer *os.File, err error) {
	s = &Snapshot{name: fmt.Sprintf("%s%d", kind, v.rig.names.Add(1)), size: v.size}
	if s.state, err = v.rig.file(); err != nil {
		return nil, nil, err
	}
	layer, err = v.rig.file()
	return s, layer, err
}

// put sets the layers of s: the layers of base, if base is not nil, with the given file on top.
func (s *Snapshot) put(base *Snapshot, layer *os.File, own []vm.Extent) {
	s.extents, s.layers = own, []*os.File{layer}
	if base == nil {
		return
	}
	for i := range own {
		own[i].Layer = uint32(len(base.layers))
	}
	s.depth = base.depth + 1
	s.extents = memlayer.Overlay(base.extents, own)
	s.layers = append(slices.Clone(base.layers), layer)
}

// save pauses v for good and makes a snapshot of it.
func (v *running) save(ctx context.Context) (*Snapshot, error) {
	s, layer, err := v.newMarked(ctx, "base")
	if err != nil {
		return nil, err
	}
	if err := v.Pause(ctx); err != nil {
		return nil, err
	}
	p, err := v.branchTo(ctx, vmmproto.Branch{Mode: vm.BranchDiff, MaxExtents: maxExtents}, s, layer)
	if err != nil {
		return nil, err
	}
	s.put(nil, layer, p.result.Save.Extents)
	return s, nil
}

// fork starts a child of s. The child continues to write at once.
func (r *Rig) fork(ctx context.Context, s *Snapshot, kind string) (*running, error) {
	v, err := r.spawn(ctx, kind)
	if err != nil {
		return nil, err
	}
	if err := v.restore(ctx, s); err != nil {
		return nil, errors.Join(v.explain(err), v.Kill())
	}
	return v, nil
}

// restore makes v a copy of s. A new VM becomes a child; a running VM is rolled back.
func (v *running) restore(ctx context.Context, s *Snapshot) error {
	top, err := v.rig.newTop(s.size)
	if err != nil {
		return err
	}
	v.base, v.origin, v.size, v.files = s, s, s.size, append(slices.Clone(s.disks), top)
	var undo cleanup.Stack
	defer undo.Run()
	own, err := chain.Reopened(&undo, slices.Concat([]*os.File{s.state}, s.layers, s.disks)) // a VMM may only read them
	if err != nil {
		return err
	}
	state, layers, disks := own[0], own[1:1+len(s.layers)], own[1+len(s.layers):]
	_, err = v.Restore(ctx, vmmproto.Restore{
		Extents: s.extents, Disks: []vmmproto.Disk{{SizeBytes: s.size}}, VMGenID: newID(), Resume: true,
	}, vmmclient.RestoreFiles{State: state, Layers: layers, Disks: [][]*os.File{append(disks, top)}})
	if err != nil {
		return fmt.Errorf("restore %s: %w", s.name, err)
	}
	entropy := make([]byte, 32)
	_, _ = crand.Read(entropy)
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	_, err = v.agent.Forked(ctx, agentproto.Forked{
		Entropy: entropy, RealtimeNanos: time.Now().UnixNano(), Hostname: v.name,
	})
	if err != nil {
		return fmt.Errorf("restore %s: confirm: %w", s.name, err)
	}
	return nil
}

// verifyCopy checks that v is a copy of s. v may have continued since the moment at which s was
// taken, but must not have received other requests since v was restored.
func (v *running) verifyCopy(ctx context.Context, s *Snapshot) error {
	r, err := v.ask(ctx, "verify")
	if err != nil {
		return fmt.Errorf("copy of %s (depth %d): %w", s.name, s.depth, err)
	}
	if err := r.Check(s.at, v.rig.cfg.Guest); err != nil {
		return fmt.Errorf("%s: copy of %s: %w", v.name, s.name, err)
	}
	return nil
}

// check forks a child of s, verifies it and kills it.
func (r *Rig) check(ctx context.Context, s *Snapshot, kind string) error {
	v, err := r.fork(ctx, s, kind)
	if err != nil {
		return err
	}
	err = v.explain(v.verifyCopy(ctx, s))
	if err == nil {
		r.rep.verified()
	}
	return errors.Join(err, v.Kill())
}
