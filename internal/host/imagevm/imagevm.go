// Package imagevm fills a disk with the files of a container image. It does so in a VM that exists
// only for this purpose.
//
// The VM boots a guest kernel with forkd-unpack as its init. It has one disk, one connection to the
// host and no network. The host writes an empty file system to the disk file, sends the VM a stream
// of package imageproto, and waits for one answer. The host looks neither into the stream nor into
// the resulting file system. The VM is always killed afterwards.
//
// While the VM runs, the disk file is a disk layer. The layer contains every cluster, so the VM
// reads nothing of the base below it. Without the layer's bitmap and footer, the file is the
// finished disk, so no data is copied.
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
	"syscall"
	"time"
	"unicode"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/format/ext4"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/excerpt"
	"github.com/forkd/forkd/internal/host/identity"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/proto/imageproto"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// Config configures a Filler. All fields are required.
type Config struct {
	VMMs     vmpool.VMMs
	RunDir   string // holds a directory for each VM
	Template string // CPU template
	Cmdline  string // kernel command line

	// Initrd makes the initramfs for a kernel, with forkd-unpack as its init.
	Initrd func(kernel string) (*os.File, error)

	// Room returns an error if the host has no room for a VM with so many bytes of memory, or for more data
	// on the disk's file system.
	Room func(memory uint64, disk *os.File) error
}

// Bounds on the VMs.
const (
	maxVMs      = 2 // maximum number at a time; one client may have one of them
	memoryBytes = 512 << 20
	cpuWeight   = 20               // a sandbox has 100
	fillTime    = 2 * time.Hour    // from its start to the answer; an emulated CPU is slow
	bootTime    = 5 * time.Minute  // until it asks for the stream
	exitTime    = time.Second      // from the end of its connection to its exit, or to the answer
	stallTime   = 10 * time.Minute // without progress of the stream, or from its end to the answer
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
	Kernel string   // path of a bzImage or ELF kernel; its modules are beside it, as the cache has them
	Disk   *os.File // its content is lost
	Size   int64    // of the disk, in bytes
	UUID   [16]byte // of the file system

	// Stream writes a stream of package imageproto to w. Its context ends when no VM reads the
	// stream any more.
	Stream func(ctx context.Context, w io.Writer) error
}

// Check returns an error, as an *invalid.Error, if a request has a wrong size or kernel.
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

// Enter takes the place of a VM for a client. The error is ErrNoPlace if the client has to wait. leave frees
// the place.
func (f *Filler) Enter(client string) (leave func(), err error) {
	if leave, err = f.place.Enter(share(client)); err != nil {
		return nil, ErrNoPlace
	}
	return leave, nil
}

// Wait is Enter, but waits until ctx ends. Other clients may have a VM at that time, so the caller must not
// hold what they need.
func (f *Filler) Wait(ctx context.Context, client string) (leave func(), err error) {
	return f.place.Wait(ctx, share(client))
}

func share(client string) gate.Share { return gate.Share{Key: client, Most: gate.Fair(maxVMs)} }

// Fill makes the disk. The caller has a place; see Enter. The error is an *invalid.Error if the VM has
// refused the stream. After an error the content of the disk is of no use, and no VM is left.
func (f *Filler) Fill(ctx context.Context, req Request) error {
	if err := req.Check(); err != nil {
		return err
	}
	if err := f.cfg.Room(memoryBytes, req.Disk); err != nil {
		return err
	}
	if err := blank(req.Disk, req.Size, req.UUID); err != nil {
		return err
	}
	if err := f.run(ctx, &req); err != nil {
		return err
	}
	return req.Disk.Truncate(req.Size)
}

// blank makes disk a layer that contains every cluster, with an empty file system.
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

func (f *Filler) run(ctx context.Context, req *Request) (err error) {
	shell, err := vmpool.Spawn(ctx, f.cfg.VMMs, f.cfg.RunDir, vm.Shape{MemoryBytes: memoryBytes, VCPUs: 1,
		Template: f.cfg.Template})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && ctx.Err() == nil && !isRefused(err) && !errors.Is(err, ErrFull) {
			console, _ := vmpool.Console(f.cfg.VMMs, shell.Dir) // optional: without it the error says less
			err = fmt.Errorf("%w; the console of the builder VM ends with:\n%s", err, excerpt.Console(console.Bytes,
				10))
		}
		err = errors.Join(err, shell.VMM.Kill()) // from here on, nothing writes to the disk
	}()
	// Without cgroups there are no weights, and no limits for sandboxes either.
	_ = shell.VMM.Limit(vm.Limits{CPUWeight: cpuWeight}, memoryBytes)
	running, stop := vmpool.WhileAlive(ctx, shell.VMM)
	defer stop()
	running, unwatch := whileRoom(running, shell.VMM)
	defer unwatch()
	running, w := newWatchdog(running)
	defer w.end()
	if err := f.boot(running, shell, req); err != nil {
		return vmpool.Cause(running, fmt.Errorf("boot the builder VM: %w", err))
	}
	conn, err := dialed(running, w, shell.VMM)
	if err != nil {
		return vmpool.Cause(running, err)
	}
	defer conn.Close()
	if err = pass(running, w, conn, req.Stream); errors.Is(err, errLost) {
		select { // a VM that has ended has closed its connection first
		case <-shell.VMM.Done():
			return &vmpool.ExitError{Exit: shell.VMM.Exit()}
		case <-time.After(exitTime):
		}
	}
	if isRefused(err) {
		return err
	}
	return vmpool.Cause(running, err)
}

// ErrFull means that the disk's file system is full. The VM is paused then. Waiting for space would keep
// all that the VM has written, and sandboxes would stand still for lack of it.
var ErrFull = fmt.Errorf("the host's disk is full: the image is larger than the free space: %w", syscall.ENOSPC)

// whileRoom returns a context that is cancelled with the cause ErrFull when the VM pauses itself because
// the disk is full.
func whileRoom(ctx context.Context, v vmpool.VMM) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-v.Stalled():
			cancel(ErrFull)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

func (f *Filler) boot(ctx context.Context, shell *vmpool.Shell, req *Request) error {
	var undo cleanup.Stack
	defer undo.Run()
	open := func(file *os.File, err error) (*os.File, error) {
		if err == nil {
			undo.Add(func() { file.Close() })
		}
		return file, err
	}
	kernel, err := open(os.Open(req.Kernel))
	if err != nil {
		return err
	}
	initrd, err := open(f.cfg.Initrd(req.Kernel))
	if err != nil {
		return err
	}
	base, err := open(emptyBase(shell.Dir, req.Size))
	if err != nil {
		return err
	}
	// Open the file again, because the VMM must not share a file offset with the daemon.
	top, err := open(os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", req.Disk.Fd()), os.O_RDWR, 0))
	if err != nil {
		return err
	}
	size := uint64(req.Size)
	err = shell.VMM.Boot(ctx, vmmproto.Boot{Cmdline: f.cfg.Cmdline, VMGenID: identity.NewGenerationID(),
		Disks: []vmmproto.Disk{{SizeBytes: size}}},
		vmmclient.BootFiles{Kernel: kernel, Initrd: initrd, Disks: [][]*os.File{{base, top}}})
	if err != nil {
		return err
	}
	return shell.VMM.Resume(ctx)
}

// emptyBase returns a file of zeros that has no name any more.
func emptyBase(dir string, size int64) (*os.File, error) {
	name := filepath.Join(dir, "base")
	w, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer os.Remove(name)
	if err := errors.Join(w.Truncate(size), w.Close()); err != nil {
		return nil, err
	}
	return os.Open(name)
}

// dialed waits until forkd-unpack asks for the stream.
func dialed(ctx context.Context, w *watchdog, v vmpool.VMM) (net.Conn, error) {
	w.expect(bootTime, "the builder VM has not come up within %v")
	for {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case c, ok := <-v.Conns():
			switch {
			case !ok:
				<-ctx.Done() // the VM is about to end, and its exit is the cause
			case c.Port == imageproto.Port:
				return c.Conn, nil
			default:
				c.Conn.Close()
			}
		}
	}
}

// pass passes the stream on and waits for the answer, which may come early.
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
		if ctx.Err() != nil || errors.Is(err, errLost) {
			// A guest that takes nothing more may still keep its own direction open.
			_ = conn.SetReadDeadline(time.Now().Add(exitTime))
			if early := <-answered; isRefused(early) {
				return early
			}
		}
		return vmpool.Cause(ctx, err)
	}
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // a guest that wants more than there is gets an end, and refuses the stream
	}
	w.expect(stallTime, "the builder VM has not answered for %v")
	err := <-answered
	if isRefused(err) {
		return err
	}
	return vmpool.Cause(ctx, err)
}

// isRefused reports whether forkd-unpack has refused the stream. A later error, such as the end of
// the client's connection, explains no more than the refusal.
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
		err = fmt.Errorf("%w: %w", errLost, err)
	}
	return n, err
}

// errLost means that the connection to the VM can no longer be used.
var errLost = errors.New("the connection to the builder VM is lost")

// answer reads forkd-unpack's answer.
func answer(conn net.Conn) error {
	err := imageproto.ReadAnswer(conn)
	var refused *imageproto.RefusedError
	if errors.As(err, &refused) {
		return &invalid.Error{Field: "image", Reason: printable(refused.Reason)}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	return nil
}

// maxReason bounds a quoted reason, in bytes.
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
