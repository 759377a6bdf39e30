// Package diff compares the files of two disks of snapshots, in a VM of its own.
//
// The VM boots the kernel and the initramfs of one of the snapshots, with forkd-diff as its init. It has
// both disks, each below an empty layer for what a mount writes, one connection to the host and no
// network. This package computes which parts of the disks may differ from the layers that the disks do
// not share, and passes them on. It does not look into the disks. The VM is killed in every case.
package diff

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/excerpt"
	"github.com/forkd/forkd/internal/host/identity"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/diffproto"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// Config configures a Differ. All fields are required.
type Config struct {
	VMMs     vmpool.VMMs
	Store    *store.Store
	RunDir   string // holds a directory for each VM
	Template string // CPU template
	Cmdline  string // kernel command line

	// Initrd returns the initramfs base with forkd-diff added, as the file Program.
	Initrd func(base *os.File) (*os.File, error)
}

// Program is the path of forkd-diff in the initramfs.
const Program = "/forkd-diff"

// Bounds of a comparison.
const (
	maxVMs      = 2 // at once; one client has one of them
	memoryBytes = 512 << 20
	limit       = 10 * time.Minute // of a whole comparison; an emulated CPU is slow
	exitTime    = time.Second      // from the end of its connection to its exit
	maxListed   = 16 << 20         // bytes of the entries of a Result without their patches
)

// Bounds of a Request.
const (
	MaxEntries = 20_000
	MaxPatch   = diffproto.MaxPatch // bytes
)

// Differ compares disks. Its methods may be called concurrently.
type Differ struct {
	cfg   Config
	place *gate.Gate
}

// New returns a Differ.
func New(cfg Config) *Differ { return &Differ{cfg: cfg, place: gate.New(maxVMs)} }

// Request asks for the differences between the disks of two snapshots. Both are complete without the
// memory of a guest: the disk-only snapshots of tenancy.DiskOf.
type Request struct {
	Old, New *store.Lease
	Path     string // absolute; only this file or directory is compared
	Patch    bool   // of text files
	Entries  uint32 // at most MaxEntries; further ones are only counted
	MaxPatch uint64 // bytes of all patches, at most MaxPatch
}

// Result has the differences in the order of their paths.
type Result struct {
	Entries []*diffproto.Entry
	diffproto.Done
}

// Omitted returns how many differences are not in Entries.
func (r *Result) Omitted() uint64 {
	all := r.Added + r.Changed + r.Deleted
	return all - min(all, uint64(len(r.Entries)))
}

// add adds an entry, unless the entries take too much memory. more is the room that is left, in bytes.
func (r *Result) add(e *diffproto.Entry, more *int) {
	const fixed = 512 // of an Entry and its pointers
	n := fixed + len(e.Path) + len(e.Old.Target) + len(e.New.Target)
	for _, name := range e.Xattrs {
		n += len(name) + 16
	}
	if n > *more {
		*more = 0 // no later entry either, because gaps would mislead
		return
	}
	*more -= n
	r.Entries = append(r.Entries, e)
}

// Begin waits for a place for the client of ctx, which it needs before it prepares the disks: so what is
// prepared is bounded too. The result is the context for all of the comparison, with its time limit, and a
// function that gives the place back.
func (d *Differ) Begin(ctx context.Context) (context.Context, func(), error) {
	leave, err := d.place.Wait(ctx, owner.FairShare(owner.Of(ctx).Name, maxVMs))
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not compared within %v: compare a part with path: %w",
		limit, context.DeadlineExceeded))
	return ctx, func() { cancel(); leave() }, nil
}

// Compare compares two disks. ctx is that of Begin. The error is an *invalid.Error if the disks cannot be
// compared.
func (d *Differ) Compare(ctx context.Context, req Request) (r Result, err error) {
	old, now := req.Old.Manifest(), req.New.Manifest()
	if old.Disk == nil || now.Disk == nil || old.Disk.Base != now.Disk.Base || old.Disk.SizeBytes != now.Disk.SizeBytes {
		return r, invalid.Errorf("from", "the other side was not made from the same image: name a snapshot or sandbox of one family ('forkd tree' shows them)")
	}
	err = d.run(ctx, &req, &r)
	return r, vmpool.Cause(ctx, err)
}

func (d *Differ) run(ctx context.Context, req *Request, r *Result) (err error) {
	shell, err := vmpool.Spawn(ctx, d.cfg.VMMs, d.cfg.RunDir, vm.Shape{MemoryBytes: memoryBytes, VCPUs: 1,
		Template: d.cfg.Template})
	if err != nil {
		return err
	}
	defer func() {
		if refused := (*invalid.Error)(nil); err != nil && ctx.Err() == nil && !errors.As(err, &refused) {
			console, _ := vmpool.Console(d.cfg.VMMs, shell.Dir) // optional: without it the error says less
			err = fmt.Errorf("%w; the console of the VM ends with:\n%s", err, excerpt.Console(console.Bytes, 10))
		}
		err = errors.Join(err, shell.VMM.Kill())
	}()
	running, stop := vmpool.WhileAlive(ctx, shell.VMM)
	defer stop()
	if err := d.boot(running, shell, req); err != nil {
		return vmpool.Cause(running, fmt.Errorf("boot the VM that compares: %w", err))
	}
	conn, err := dialed(running, shell.VMM)
	if err != nil {
		return vmpool.Cause(running, err)
	}
	defer conn.Close()
	err = talk(running, conn, req, r)
	var refused *diffproto.RefusedError
	switch {
	case errors.As(err, &refused) && refused.Field != "":
		return &invalid.Error{Field: refused.Field, Reason: refused.Reason}
	case err != nil && !errors.As(err, &refused):
		select { // a VM that has ended has closed its connection first
		case <-shell.VMM.Done():
			return &vmpool.ExitError{Exit: shell.VMM.Exit()}
		case <-time.After(exitTime):
		}
	}
	return vmpool.Cause(running, err)
}

func (d *Differ) boot(ctx context.Context, shell *vmpool.Shell, req *Request) error {
	var undo cleanup.Stack
	defer undo.Run()
	kernel, base, err := d.cfg.Store.Boot(req.New)
	if err != nil {
		return err
	}
	undo.Add(func() { kernel.Close(); base.Close() })
	initrd, err := d.cfg.Initrd(base)
	if err != nil {
		return err
	}
	undo.Add(func() { initrd.Close() })
	boot := vmmproto.Boot{Cmdline: d.cfg.Cmdline + " rdinit=" + Program, VMGenID: identity.NewGenerationID()}
	files := vmmclient.BootFiles{Kernel: kernel, Initrd: initrd}
	for i, lease := range []*store.Lease{req.Old, req.New} {
		layers, err := chain.Reopened(&undo, lease.Disk())
		if err != nil {
			return err
		}
		size := lease.Manifest().Disk.SizeBytes
		path := filepath.Join(shell.Dir, fmt.Sprintf("unused.%d", i))
		top, err := chain.NewTop(path, size, disklayer.Format)
		if err != nil {
			return err
		}
		undo.Add(func() { top.Close() })
		if err := os.Remove(path); err != nil {
			return err
		}
		boot.Disks = append(boot.Disks, vmmproto.Disk{SizeBytes: size})
		files.Disks = append(files.Disks, append(layers, top))
	}
	if err := shell.VMM.Boot(ctx, boot, files); err != nil {
		return err
	}
	return shell.VMM.Resume(ctx)
}

// dialed waits until forkd-diff dials the host.
func dialed(ctx context.Context, v vmpool.VMM) (net.Conn, error) {
	for {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case c, ok := <-v.Conns():
			switch {
			case !ok:
				<-ctx.Done() // the VM is ending; its exit is the cause
			case c.Port == diffproto.Port:
				return c.Conn, nil
			default:
				c.Conn.Close()
			}
		}
	}
}

// talk asks forkd-diff and reads its answer.
func talk(ctx context.Context, conn net.Conn, req *Request, r *Result) error {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	asking, cancel := context.WithCancel(ctx)
	asked := make(chan error, 1)
	go func() { asked <- ask(asking, conn, req) }() // forkd-diff may refuse before it has read all of this
	err := listen(conn, req, r)
	cancel()
	conn.Close() // an answer ends the question too
	if failed := <-asked; err != nil && failed != nil && !errors.Is(failed, net.ErrClosed) && ctx.Err() == nil {
		err = errors.Join(failed, err)
	}
	return err
}

// ask sends the request, and which parts of the disks may differ.
func ask(ctx context.Context, w io.Writer, req *Request) error {
	err := diffproto.WriteRequest(w, diffproto.Request{Path: req.Path, Patch: req.Patch, MaxEntries: req.Entries,
		MaxPatch: req.MaxPatch})
	if err != nil {
		return err
	}
	ranges := diffproto.NewRangeWriter(w)
	err = disklayer.Written(ctx, apart(req.Old, req.New), func(first, n uint64) error {
		return ranges.Add(diffproto.Range{Offset: first * disklayer.ClusterSize, Length: n * disklayer.ClusterSize})
	})
	return errors.Join(err, ranges.Close())
}

// apart returns the disk layers of both snapshots without those at the bottom that they share.
func apart(a, b *store.Lease) []*os.File {
	layersA, layersB := a.Manifest().Disk.Layers, b.Manifest().Disk.Layers
	n := shared(layersA, layersB)
	return append(append([]*os.File(nil), a.Disk()[1+n:]...), b.Disk()[1+n:]...)
}

// shared returns how many layers at the bottom of two disks are the same.
func shared(a, b []snapshot.File) int {
	n := 0
	for n < len(a) && n < len(b) && a[n].Owner == b[n].Owner {
		n++
	}
	return n
}

// listen reads forkd-diff's answer.
func listen(conn io.Reader, req *Request, r *Result) error {
	in := diffproto.NewReader(conn)
	room, patches, entries := maxListed, req.MaxPatch, req.Entries
	for {
		e, done, err := in.Next()
		switch {
		case err != nil:
			return err
		case done != nil:
			r.Done = *done
			return nil
		case entries == 0 || uint64(len(e.Patch)) > patches:
			return errors.New("read from forkd-diff: more than was asked for")
		}
		entries--
		patches -= uint64(len(e.Patch))
		r.add(e, &room)
	}
}
