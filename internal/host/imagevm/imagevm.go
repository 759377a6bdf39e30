// Package imagevm fills a disk with the files of a container image. It does so in a VM that exists
// only for this purpose.
//
// The VM boots a guest kernel with forkd-unpack as its init. It has one disk, one connection to the
// host and no network. The host writes an empty file system to the disk file, sends the VM a stream
// of package imageproto, and waits for one answer. The host parses neither the stream nor the
// resulting file system. The VM is killed at the end, and on every error.
//
// While the VM runs, the disk file is a disk layer. The layer contains every cluster (4 KiB) of the
// disk, so the VM reads nothing of the base below it. When the layer's bitmap and footer are cut
// off, the file is the finished disk, so no data is copied.
package imagevm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/ext4"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/helpervm"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/imageproto"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// Config configures a Filler. All fields are required.
type Config struct {
	helpervm.Config

	// Initrd makes the initramfs for a kernel, with forkd-unpack as its init.
	Initrd func(kernel string) (*os.File, error)

	// Room returns an error if the host lacks memory for a VM with this much memory, in bytes, or
	// if the file system that contains the given file lacks space for more data.
	Room func(memory uint64, disk *os.File) error
}

// Limits on the VMs.
const (
	maxVMs    = 2                // maximum number of VMs at a time; a client may have one
	fillTime  = 2 * time.Hour    // time limit from the VM's start to the answer; an emulated CPU is slow
	bootTime  = 5 * time.Minute  // time limit until the VM asks for the stream
	exitTime  = time.Second      // time limit from the end of the VM's connection to the answer
	stallTime = 10 * time.Minute // time limit without progress of the stream, and from the end of the stream to the answer
)

// Filler fills disks. Its methods may be called concurrently.
type Filler struct {
	cfg   Config
	place *gate.Gate
}

// New returns a Filler.
func New(cfg Config) *Filler { return &Filler{cfg: cfg, place: gate.New(maxVMs)} }

// Request asks for a disk.
type Request struct {
	Kernel string   // path of a bzImage or ELF kernel; its modules are in the directory "modules" beside it
	Disk   *os.File // file to fill; its previous content is lost
	Size   int64    // size of the disk, in bytes
	UUID   [16]byte // UUID of the file system

	// Stream writes a stream of package imageproto to w. Its context ends when no VM reads the
	// stream any more.
	Stream func(ctx context.Context, w io.Writer) error
}

// Check returns an *invalid.Error if a request has a wrong size or kernel.
func (r *Request) Check() error {
	if r.Size < ext4.MinSize || r.Size > ext4.MaxSize || r.Size%(1<<20) != 0 {
		return invalid.Errorf("disk_mib", "%d bytes: want %d to %d MiB", r.Size, ext4.MinSize>>20, ext4.MaxSize>>20)
	}
	if !filepath.IsAbs(r.Kernel) {
		return invalid.Errorf("kernel", "%.200q: want the absolute path of a file on the daemon's host", r.Kernel)
	}
	if st, err := os.Stat(r.Kernel); err != nil || !st.Mode().IsRegular() {
		return invalid.Errorf("kernel", "%.200q: not a regular file on the daemon's host", r.Kernel)
	}
	return nil
}

// ErrNoPlace means that a client has to wait for a VM.
var ErrNoPlace = errors.New("all builder VMs that the client may have are busy")

// Enter takes a place for one VM of a client. It returns ErrNoPlace if the client would have to
// wait. The returned function gives the place back.
func (f *Filler) Enter(client string) (leave func(), err error) {
	if leave, err = f.place.Enter(share(client)); err != nil {
		return nil, ErrNoPlace
	}
	return leave, nil
}

// Wait takes a place like Enter, but waits for it until ctx ends. The caller must not hold a lock that other
// clients need for their VMs.
func (f *Filler) Wait(ctx context.Context, client string) (leave func(), err error) {
	return f.place.Wait(ctx, share(client))
}

func share(client string) gate.Share { return gate.Share{Key: client, Most: gate.Fair(maxVMs)} }

// Fill makes the disk. The caller must have a place from Enter or Wait. If the VM refuses the stream, Fill
// returns an *invalid.Error. After an error the content of the disk is of no use, and no VM is left.
func (f *Filler) Fill(ctx context.Context, req Request) error {
	if err := req.Check(); err != nil {
		return err
	}
	if err := f.cfg.Room(helpervm.MemoryBytes, req.Disk); err != nil {
		return err
	}
	if err := blank(req.Disk, req.Size, req.UUID); err != nil {
		return err
	}
	if err := f.run(ctx, &req); errors.Is(err, helpervm.ErrFull) {
		return fmt.Errorf("the image is larger than the free space: %w", err)
	} else if err != nil {
		return err
	}
	return req.Disk.Truncate(req.Size)
}

// blank writes a layer to the given file. The layer contains every cluster, with an empty file
// system.
func blank(disk *os.File, size int64, uuid [16]byte) error {
	if err := disklayer.Format(disk, uint64(size)); err != nil {
		return err
	}
	if err := ext4.Format(disk, size, uuid); err != nil {
		return err
	}
	l, err := disklayer.Open(disk)
	if err != nil {
		return err
	}
	return errors.Join(l.Set(0, uint64(size)/disklayer.ClusterSize), l.Close())
}

func (f *Filler) run(ctx context.Context, req *Request) error {
	var w *watchdog
	return f.cfg.Run(ctx, helpervm.Task{Name: "the builder VM", Port: imageproto.Port,
		Boot: func(undo *cleanup.Stack) (vmmproto.Boot, vmmclient.BootFiles, error) {
			return f.boot(undo, req)
		},
		Watch: func(ctx context.Context) (context.Context, func()) {
			ctx, w = newWatchdog(ctx)
			w.expect(bootTime, "the builder VM has not come up within %v")
			return ctx, w.end
		},
		Talk: func(ctx context.Context, conn net.Conn) error { return pass(ctx, w, conn, req.Stream) }})
}

// boot opens the files that the builder VM boots from.
func (f *Filler) boot(undo *cleanup.Stack, req *Request) (boot vmmproto.Boot, files vmmclient.BootFiles,
	err error) {
	open := func(file *os.File, err error) (*os.File, error) {
		if err == nil {
			undo.Add(func() { file.Close() })
		}
		return file, err
	}
	if files.Kernel, err = open(os.Open(req.Kernel)); err != nil {
		return boot, files, err
	}
	if files.Initrd, err = open(f.cfg.Initrd(req.Kernel)); err != nil {
		return boot, files, err
	}
	base, err := open(emptyBase(filepath.Dir(req.Disk.Name()), req.Size))
	if err != nil {
		return boot, files, err
	}
	// Open the file again, because the VMM must not share a file offset with the daemon.
	top, err := open(os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", req.Disk.Fd()), os.O_RDWR, 0))
	if err != nil {
		return boot, files, err
	}
	boot.Disks, files.Disks = []vmmproto.Disk{{SizeBytes: uint64(req.Size)}}, [][]*os.File{{base, top}}
	return boot, files, nil
}

// emptyBase returns an unlinked file of zeros on the file system of dir. This file system must not
// be in RAM, where each hole that a VM reads would take memory.
func emptyBase(dir string, size int64) (*os.File, error) {
	w, err := os.CreateTemp(dir, "base")
	if err != nil {
		return nil, err
	}
	defer w.Close()
	if err := errors.Join(os.Remove(w.Name()), w.Truncate(size)); err != nil {
		return nil, err
	}
	return disklayer.Reopen(w)
}

// pass passes the stream to the VM and waits for the answer. The VM may answer before the end of the
// stream.
func pass(ctx context.Context, w *watchdog, conn net.Conn, stream func(context.Context, io.Writer) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	answered := make(chan error, 1)
	go func() {
		err := answer(conn)
		answered <- err
		if err != nil {
			cancel(err) // the VM does not need the rest of the stream
		}
	}()
	w.expectSource()
	if err := stream(ctx, guest{ctx, w, conn}); err != nil {
		if ctx.Err() != nil || errors.Is(err, helpervm.ErrLost) {
			// Limit the wait for the answer: a guest that has stopped reading may keep the other
			// direction of the connection open.
			_ = conn.SetReadDeadline(time.Now().Add(exitTime))
			if early := <-answered; isRefused(early) {
				return early
			}
		}
		return vmpool.Cause(ctx, err)
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // if the stream is too short, the guest notices the end and refuses the stream
	}
	w.expect(stallTime, "the builder VM has not answered for %v")
	err := <-answered
	if isRefused(err) {
		return err
	}
	return vmpool.Cause(ctx, err)
}

// isRefused reports whether forkd-unpack has refused the stream. Then the refusal is the error to
// return: a later error, such as the end of the client's connection, is only its consequence.
func isRefused(err error) bool {
	var refused *invalid.Error
	return errors.As(err, &refused)
}

// guest is the connection to forkd-unpack.
type guest struct {
	ctx  context.Context
	w    *watchdog
	conn net.Conn
}

// Write implements io.Writer.
func (g guest) Write(b []byte) (int, error) {
	g.w.expect(stallTime, "the builder VM has taken nothing for %v")
	defer g.w.expectSource()
	if err := context.Cause(g.ctx); err != nil {
		return 0, err
	}
	n, err := g.conn.Write(b)
	if err != nil {
		err = fmt.Errorf("%w: %w", helpervm.ErrLost, err)
	}
	return n, err
}

// answer reads forkd-unpack's answer.
func answer(conn net.Conn) error {
	err := imageproto.ReadAnswer(conn)
	var refused *imageproto.RefusedError
	if errors.As(err, &refused) {
		return &invalid.Error{Field: "image", Reason: printable(refused.Reason)}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", helpervm.ErrLost, err)
	}
	return nil
}

// maxReason is the maximum length of a quoted reason, in bytes.
const maxReason = 1000

// printable returns a text from a VM, shortened and without characters that are not safe to print.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text[:min(len(text), maxReason)], "?"))
}
