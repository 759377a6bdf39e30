// Package diff compares the files on the disks of two snapshots, in a VM of its own. It returns the
// differences, or passes on a tar archive that the VM makes of them.
//
// The VM boots the kernel and the initramfs of one of the snapshots, with forkd-diff as its init.
// It has one connection to the host, no network, and both disks. Mounting a disk writes to it, so
// each disk gets an empty layer on top for these writes. The two disks may share layers. They can
// differ only in the ranges for which an unshared layer has data. Package diff sends these ranges
// to forkd-diff, and does not read the file systems on the disks itself. The VM is killed at the
// end, and on every error.
package diff

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"time"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/chain"
	"github.com/forkd/forkd/internal/host/helpervm"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/diffproto"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// Config configures a Differ. All fields are required.
type Config struct {
	helpervm.Config
	Store   *store.Store
	Scratch string // directory on the host's disk, for the data that mounts write

	// Initrd returns an initramfs with the files of the given initramfs, and with forkd-diff at the
	// path Program.
	Initrd func(base *os.File) (*os.File, error)

	// Room returns an error if the host has no room for a VM with this much memory, in bytes, or if
	// the file system that contains the given file has no room for more data.
	Room func(memory uint64, disk *os.File) error
}

// Program is the path of forkd-diff in the initramfs.
const Program = "/forkd-diff"

// Limits of comparisons.
const (
	maxVMs     = 2                // maximum number of VMs at a time; a client has at most one
	maxWaiting = 4                // maximum number of requests of one client that wait for a VM
	limit      = 10 * time.Minute // time limit of a whole comparison; an emulated CPU is slow
	maxListed  = 16 << 20         // maximum size, in bytes, of the entries of a Result without their patches
	maxArchive = 64 << 30         // maximum size of an archive, in bytes
	maxWritten = 256 << 20        // maximum number of bytes that a mount of a disk may write; a journal has up to 128 MiB
)

// Limits of the fields of a Request.
const (
	MaxEntries = 20_000
	MaxPatch   = diffproto.MaxPatch // maximum size of all patches together, in bytes
)

// Differ compares disks. Its methods may be called concurrently.
type Differ struct {
	cfg   Config
	place *gate.Gate
}

// New returns a Differ.
func New(cfg Config) *Differ {
	return &Differ{cfg: cfg, place: gate.NewQueued(maxVMs, gate.Queue{Key: maxWaiting, All: 16 * maxWaiting})}
}

// Request asks for the differences between the disks of two snapshots. The disk of each snapshot must be
// complete without the memory of a guest. Callers use the disk-only snapshots of tenancy.DiskOf.
type Request struct {
	Old, New *store.Lease
	Path     string // absolute path of the only file or directory to compare
	Patch    bool   // whether to return patches of text files
	Entries  uint32 // number of entries to return, at most MaxEntries; further differences are only counted
	MaxPatch uint64 // bytes of all patches together, at most the constant MaxPatch
	Partial  bool   // for Export: whether to omit files that an archive cannot represent exactly

	// For Merge: the base of both sides. Old is the side that receives the changes of New.
	Base *store.Lease
	diffproto.Merge

	tar bool // set by Export, and by Merge if apply is not nil
}

// sides returns the leases of the disks, in the order of forkd-diff.
func (r *Request) sides() []*store.Lease {
	if r.Base != nil {
		return []*store.Lease{r.Base, r.New, r.Old}
	}
	return []*store.Lease{r.Old, r.New}
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

// add adds an entry if the entry takes at most *more bytes of memory. It subtracts these bytes from
// *more.
func (r *Result) add(e *diffproto.Entry, more *int) {
	const fixed = 512 // bytes of an Entry without its strings
	n := fixed + len(e.Path) + len(e.Old.Target) + len(e.New.Target)
	for _, name := range e.Xattrs {
		n += len(name) + 16
	}
	if n > *more {
		*more = 0 // after this, no shorter entry is added either, because readers do not expect a gap
		return
	}
	*more -= n
	r.Entries = append(r.Entries, e)
}

// Begin waits until the client of ctx may have a VM. Callers prepare the disks after Begin, so that
// the number of prepared disks is also bounded. Begin returns a context with the time limit of the
// comparison, and a function that the caller must call at the end.
func (d *Differ) Begin(ctx context.Context) (context.Context, func(), error) {
	leave, err := d.place.Wait(ctx, owner.FairShare(owner.Of(ctx).Name, maxVMs))
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not compared within %v: compare a part with path: %w",
		limit, context.DeadlineExceeded))
	return ctx, func() { cancel(); leave() }, nil
}

// Compare compares two disks. The parameter ctx is the context that Begin returned. If the disks
// cannot be compared, the error is an *invalid.Error.
func (d *Differ) Compare(ctx context.Context, req Request) (r Result, err error) {
	err = d.run(ctx, &req, func(conn io.Reader) error { return listen(conn, &req, &r) })
	return r, err
}

// Export is like Compare, but makes a tar archive of the differences. When the comparison has
// succeeded, Export calls begin, and then writes the archive to the writer that begin has returned.
// The archive comes from the VM, so its readers must not trust it. If Export returns an error after
// it has called begin, the archive is incomplete.
func (d *Differ) Export(ctx context.Context, req Request, begin func() io.Writer) error {
	req.Patch, req.Entries, req.MaxPatch, req.tar = false, math.MaxUint32, 0, true
	return d.run(ctx, &req, func(conn io.Reader) error { return receive(conn, &req, begin) })
}

// Merge finds the changes of req.New since req.Base that req.Old lacks. Merge calls apply if apply
// is not nil, there are changes, and no conflict is left. It then writes the archive of these
// changes to the writer that apply has returned. The archive comes from the VM, so its readers must
// not trust it. If Merge returns an error after it has called apply, the archive is incomplete.
func (d *Differ) Merge(ctx context.Context, req Request, apply func() io.Writer) (r Result, err error) {
	req.Path, req.Patch, req.MaxPatch, req.tar = "/", false, 0, apply != nil
	err = d.run(ctx, &req, func(conn io.Reader) error { return merge(conn, &req, &r, apply) })
	return r, err
}

// run starts a VM that makes the comparison, and calls listen, which reads the VM's answer.
func (d *Differ) run(ctx context.Context, req *Request, listen func(io.Reader) error) error {
	first := req.New.Manifest().Disk
	for _, side := range req.sides() {
		disk := side.Manifest().Disk
		if disk == nil || first == nil || disk.Base != first.Base || disk.SizeBytes != first.SizeBytes {
			return invalid.Errorf("from", "the other side was not made from the same image: name a snapshot or sandbox of one family ('forkd tree' shows them)")
		}
	}
	err := d.cfg.Run(ctx, helpervm.Task{Name: "the VM that compares", Port: diffproto.Port, MaxWritten: maxWritten,
		Boot: func(undo *cleanup.Stack) (vmmproto.Boot, vmmclient.BootFiles, error) {
			return d.boot(undo, req)
		},
		Talk: func(ctx context.Context, conn net.Conn) error {
			ask := func(ctx context.Context, conn net.Conn) error { return ask(ctx, conn, req) }
			err := talk(ctx, conn, ask, listen)
			var refused *diffproto.RefusedError
			var unsent *unsentError
			switch {
			case errors.As(err, &unsent):
				return unsent.error
			case errors.As(err, &refused) && refused.Field != "":
				return &invalid.Error{Field: refused.Field, Reason: refused.Reason}
			case err != nil && refused == nil:
				return fmt.Errorf("%w: %w", helpervm.ErrLost, err)
			}
			return err
		}})
	return vmpool.Cause(ctx, err)
}

// boot opens the files that the VM boots from.
func (d *Differ) boot(undo *cleanup.Stack, req *Request) (boot vmmproto.Boot, files vmmclient.BootFiles, err error) {
	kernel, base, err := d.cfg.Store.Boot(req.New.Manifest().Tag, req.New.Manifest().Boot)
	if err != nil {
		return boot, files, err
	}
	undo.Add(func() { kernel.Close(); base.Close() })
	for _, lease := range req.sides() {
		layers, err := chain.Reopened(undo, lease.Disk())
		if err != nil {
			return boot, files, err
		}
		size := lease.Manifest().Disk.SizeBytes
		top, err := d.top(size)
		if err != nil {
			return boot, files, err
		}
		undo.Add(func() { top.Close() })
		boot.Disks = append(boot.Disks, vmmproto.Disk{SizeBytes: size})
		files.Disks = append(files.Disks, append(layers, top))
	}
	st, err := base.Stat()
	if err == nil && st.Size() > maxInitramfs {
		err = invalid.Errorf("from", "the initramfs of its snapshot has %d MiB, and the VM that compares can boot %d: compare in the sandboxes",
			st.Size()>>20, maxInitramfs>>20)
	}
	if err == nil {
		err = d.cfg.Room(helpervm.MemoryBytes+uint64(st.Size()), files.Disks[0][len(files.Disks[0])-1])
	}
	if err != nil {
		return boot, files, err
	}
	initrd, err := d.cfg.Initrd(base)
	if err != nil {
		return boot, files, err
	}
	undo.Add(func() { initrd.Close() })
	boot.Cmdline, files.Kernel, files.Initrd = " rdinit="+Program, kernel, initrd
	return boot, files, nil
}

// maxInitramfs is the largest initramfs that the VM can boot, in bytes: the VM's memory holds the
// archive and the unpacked files. The file may come from another host, and the daemon copies it for
// each comparison.
const maxInitramfs = helpervm.MemoryBytes / 4

// top returns an empty layer, which receives the writes to a disk while it is mounted. The layer's
// file is already unlinked.
func (d *Differ) top(size uint64) (*os.File, error) {
	f, err := os.CreateTemp(d.cfg.Scratch, "top")
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.Remove(f.Name()), disklayer.Format(f, size)); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// talk calls ask(ctx, conn) to send a request to forkd-diff, and listen(conn) to read the answer.
func talk(ctx context.Context, conn net.Conn, ask func(context.Context, net.Conn) error,
	listen func(io.Reader) error) error {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	asking, cancel := context.WithCancel(ctx)
	asked := make(chan error, 1)
	go func() {
		err := ask(asking, conn) // forkd-diff may refuse before it has read the whole request
		if lost := (*net.OpError)(nil); err != nil && !errors.As(err, &lost) {
			conn.Close() // otherwise forkd-diff waits for the rest of the request
		}
		asked <- err
	}()
	err := listen(conn)
	cancel()
	conn.Close() // after the answer, the goroutine must not continue to ask
	failed := <-asked
	switch {
	case failed == nil || ctx.Err() != nil:
		return err
	case err == nil: // the answer came before all ranges were sent, so forkd-diff has compared only some of them
		return fmt.Errorf("tell forkd-diff what may differ: %w", failed)
	case errors.Is(failed, net.ErrClosed):
		return err
	}
	return errors.Join(failed, err)
}

// ask sends the request and the ranges in which the disks may differ.
func ask(ctx context.Context, w io.Writer, req *Request) error {
	question := diffproto.Request{Path: req.Path, Patch: req.Patch, MaxEntries: req.Entries, MaxPatch: req.MaxPatch,
		Tar: req.tar, Partial: req.Partial}
	if req.Base != nil {
		question.Merge = &req.Merge
	}
	if err := diffproto.WriteRequest(w, question); err != nil {
		return err
	}
	ranges := diffproto.NewRangeWriter(w)
	err := disklayer.Written(ctx, apart(req.sides()), func(first, n uint64) error {
		return ranges.Add(diffproto.Range{Offset: first * disklayer.ClusterSize, Length: n * disklayer.ClusterSize})
	})
	if err != nil {
		return err // forkd-diff compares nothing before it has received the end of the ranges
	}
	return ranges.Close()
}

// apart returns the disk layers that the snapshots do not all share. Shared layers are at the bottom of all disks.
func apart(sides []*store.Lease) (list []*os.File) {
	n := math.MaxInt
	for _, side := range sides {
		n = min(n, Shared(sides[0], side))
	}
	for _, side := range sides {
		list = append(list, side.Disk()[1+n:]...)
	}
	return list
}

// Shared returns how many layers the disks of two snapshots share.
func Shared(a, b *store.Lease) int { return shared(a.Manifest().Disk.Layers, b.Manifest().Disk.Layers) }

// shared returns how many layers two disks share. Shared layers are at the bottom of both disks.
func shared(a, b []snapshot.File) int {
	n := 0
	for n < len(a) && n < len(b) && a[n].Owner == b[n].Owner {
		n++
	}
	return n
}

// listen reads forkd-diff's answer.
func listen(conn io.Reader, req *Request, r *Result) error {
	return list(diffproto.NewReader(conn, req.Path), req, r)
}

// merge reads forkd-diff's answer to a request for a merge.
func merge(conn io.Reader, req *Request, r *Result, apply func() io.Writer) error {
	in := diffproto.NewReader(conn, req.Path)
	if err := list(in, req, r); err != nil {
		return err
	}
	isLeft := r.Conflicts > 0 && req.Prefer == diffproto.Refuse
	if apply == nil || isLeft || r.Added+r.Changed+r.Deleted == 0 {
		return nil
	}
	return passOn(in, apply())
}

// list reads the entries of a comparison and the Done after the last entry, and stores them in r.
func list(in *diffproto.Reader, req *Request, r *Result) error {
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

// unsentError is an error for which the VM is not to blame: the archive is too large, or it cannot
// be written.
type unsentError struct{ error }

// receive reads forkd-diff's answer to a request for an archive.
func receive(conn io.Reader, req *Request, begin func() io.Writer) error {
	in := diffproto.NewReader(conn, req.Path)
	_, done, err := in.Next()
	if err != nil {
		return err
	}
	if done == nil {
		return errors.New("read from forkd-diff: an entry, but an archive was asked for")
	}
	return passOn(in, begin())
}

// passOn copies the archive from forkd-diff to out.
func passOn(in *diffproto.Reader, out io.Writer) error {
	for left := int64(maxArchive); ; {
		piece, err := in.NextPiece()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if left -= int64(len(piece)); left < 0 {
			return &unsentError{invalid.Errorf("path", "the archive has more than %d GiB: export a part of it", maxArchive>>30)}
		}
		if _, err := out.Write(piece); err != nil {
			return &unsentError{err}
		}
	}
}
