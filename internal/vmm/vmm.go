// Package vmm implements the forkd-vmm process. It serves the control socket and drives one
// machine.
//
// The process works on descriptors that the daemon sends. The only file that it opens is its own
// page map in /proc. Then it enters its jail (package jail), where it can open nothing. When the
// daemon hangs up, a VMM without a guest exits. A VMM with a guest continues, and waits for another
// daemon. When the guest stops, the process reports the end to the daemon and exits.
package vmm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/format/console"
	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/ctlsock"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
	"github.com/forkd/forkd/internal/vmm/guestmem"
	"github.com/forkd/forkd/internal/vmm/kvm"
	"github.com/forkd/forkd/internal/vmm/machine"
)

// ListenerFD is the descriptor of the listening control socket, which the process inherits.
const ListenerFD = 3

// Exit codes of the process.
const (
	exitClean    = 0 // the guest stopped, or the daemon hung up before there was a guest
	exitProtocol = 2 // the control socket is unusable
)

// Main enters the jail, serves the control socket until the machine ends, and returns the exit code
// of the process. It does not read from the socket before it is in the jail.
func Main() int {
	growStack()
	var tracker *guestmem.Tracker
	// Drop CAP_SYS_ADMIN first, because a page map that is opened with this capability reveals
	// physical addresses of the host.
	err := jail.Unprivileged(func() (err error) {
		tracker, err = guestmem.NewTracker(jail.Proc)
		return err
	})
	if err == nil {
		err = jail.Enter(jail.Config{Filter: allowed[:], Files: maxFiles})
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "forkd-vmm: cannot enter the jail: %v\n", err)
		return jail.ExitCode
	}
	narrow := func() error { return jail.Narrow(denied[:]) }
	return Serve(tracker, jail.LimitFiles, narrow, MaxProcs)
}

// growStack grows this goroutine's stack to 16 KiB in one step. The goroutine needs 16 KiB in any
// case. If the stack grew in two steps, the runtime would copy it once more, and would allocate a
// stack of 8 KiB for the first step. The runtime allocates four stacks of 8 KiB at once, and a VMM
// would use only one of them.
//
//go:noinline
func growStack() byte {
	var room [9 << 10]byte
	return room[os.Getpagesize()]
}

// Serve is the part of Main that runs in the jail. It is exported for benchmarks that measure the
// cost of the jail and of threads. The parameter maxProcs bounds the threads that run Go code.
//
// Serve calls limitFiles when it knows the maximum length of the files that the process will write.
// It calls narrow when there is a machine, to drop the rights that only the creation of a machine
// needs.
func Serve(tracker *guestmem.Tracker, limitFiles func(most uint64) error, narrow func() error, maxProcs int) int {
	s := &server{listener: ListenerFD, tracker: tracker, limitFiles: limitFiles, narrow: narrow, maxProcs: maxProcs}
	s.dials.forward = s.event
	for {
		conn, err := ctlsock.Accept(s.listener)
		if err != nil {
			fmt.Fprintf(os.Stderr, "forkd-vmm: %v\n", err)
			return exitProtocol
		}
		s.attach(conn)
		err = s.serve(conn)
		s.attach(nil)
		_ = conn.Close()
		if !s.started {
			return exitClean
		}
		if !hungUp(err) { // a daemon's hang-up is no error; another daemon may connect
			fmt.Fprintf(os.Stderr, "forkd-vmm: control connection: %v\n", err)
		}
	}
}

// hungUp reports whether the connection ended because the daemon has exited.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)
}

type server struct {
	listener int
	tracker  *guestmem.Tracker // for the machine, when it is created
	frames   frames            // set when the machine is created
	machine  *machine.Machine
	ring     *console.Ring
	memory   uint64 // size of the machine's memory, in bytes
	started  bool   // whether the VM was booted or restored; if so, the process continues without a daemon

	dials      dials // the guest's streams to the host
	limitFiles func(most uint64) error
	narrow     func() error
	maxProcs   int // MaxProcs, except in benchmarks

	answer *kvm.Notice // the answer to the current request if a vCPU's thread sends it; nil if serve sends it

	mu   sync.Mutex
	conn *ctlsock.Conn // nil while no daemon is connected
}

func (s *server) attach(c *ctlsock.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = c
}

// event sends an event if a daemon is connected.
func (s *server) event(kind vmmproto.Kind, body []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return errors.New("no daemon is connected")
	}
	return s.conn.Send(kind, body)
}

// exited tells the daemon that the machine has ended, and exits the process. It cleans up nothing,
// because KVM and the kernel clean up faster when a process exits.
func (s *server) exited(e vm.Exit) {
	e = namePanic(e, s.ring.Tail())
	s.ring.WriteString(fmt.Sprintf("\nforkd-vmm: machine stopped: %s %s\n", e.Reason, e.Detail))
	var w codec.Writer
	(*vmmproto.Exit)(&e).Append(&w)
	_ = s.event(vmmproto.KindExit, w.Bytes())
	os.Exit(exitClean)
}

// stalled tells the daemon that the machine is paused because the disk is full. A daemon that
// connects later sees this in the statistics.
func (s *server) stalled() { _ = s.event(vmmproto.KindStalled, nil) }

func (s *server) serve(conn *ctlsock.Conn) error {
	for {
		kind, body, fds, err := conn.Receive()
		if err != nil {
			return err
		}
		var w codec.Writer
		files := donate(fds)
		s.answer = nil
		err = s.handle(kind, codec.NewReader(body), files, &w)
		files.closeRest()
		if s.answer.Sent() { // the answer is already sent, so no error can follow
			continue
		}
		if err != nil {
			var failure codec.Writer
			vmmproto.ErrorOf(err).Append(&failure)
			err = conn.Send(vmmproto.KindError, failure.Bytes())
		} else {
			err = conn.Send(vmmproto.KindOK, w.Bytes())
		}
		if err != nil {
			return err
		}
	}
}

// handle carries out one request and writes its result.
func (s *server) handle(kind vmmproto.Kind, r *codec.Reader, files *donated, w *codec.Writer) error {
	if s.machine == nil && kind != vmmproto.KindCreate {
		return errors.New("no machine has been created")
	}
	switch kind {
	case vmmproto.KindCreate:
		return s.create(r, files, w)
	case vmmproto.KindBoot:
		return s.boot(r, files)
	case vmmproto.KindRestore:
		return s.restore(r, files, w)
	case vmmproto.KindResume:
		return s.machine.Resume()
	case vmmproto.KindPause:
		return s.machine.Pause()
	case vmmproto.KindBranch:
		return s.branch(r, files, w)
	case vmmproto.KindStats:
		stats, err := s.machine.Stats()
		(*vmmproto.Stats)(&stats).Append(w)
		return err
	case vmmproto.KindWritten:
		written, err := s.machine.Written(vmmproto.MaxWritten)
		(&vmmproto.Written{Ranges: written}).Append(w)
		return err
	case vmmproto.KindMerge:
		return s.merge(r, files)
	case vmmproto.KindRebase:
		return s.rebase(r, files, w)
	case vmmproto.KindNet:
		return s.setNet(r)
	case vmmproto.KindVolume:
		return s.setVolume(r, files)
	}
	return fmt.Errorf("unknown request %d", kind)
}

func (s *server) create(r *codec.Reader, files *donated, w *codec.Writer) error {
	var req vmmproto.Create
	if err := errors.Join(req.Parse(r), r.Done()); err != nil {
		return fmt.Errorf("parse create: %w", err)
	}
	if req.Version != vmmproto.Version {
		return vm.WithCode(vm.ErrVersion, fmt.Errorf("daemon speaks control protocol %d, this forkd-vmm %d: "+
			"use the two of one build", req.Version, vmmproto.Version))
	}
	if s.machine != nil {
		return errors.New("the machine exists already")
	}
	if len(files.fds) != 4 {
		return errors.New("create wants four descriptors: kvm, vsock listener, console ring, listener for frame sockets")
	}
	kvmFD, vsock, ringFile := files.takeFD(), files.take(), files.take()
	s.frames = frames(files.takeFD())
	ring, err := console.Open(ringFile)
	_ = ringFile.Close()
	if err != nil {
		return err
	}
	sys, err := kvm.NewSystem(kvmFD)
	if err != nil {
		return err
	}
	supported, err := kvm.SetRawSlice[kvm.CPUIDEntry](req.CPUID)
	if err != nil {
		return fmt.Errorf("parse create: %w", err)
	}
	var answer vmmproto.Created
	if len(supported) == 0 {
		if supported, err = machine.Supported(sys); err != nil {
			return err
		}
		answer.CPUID = kvm.RawSlice(supported)
	}
	answer.Append(w)
	s.ring, s.memory = ring, req.Shape.MemoryBytes
	s.machine, err = machine.New(machine.Config{
		KVM: sys, Supported: supported, Tracker: s.tracker, Shape: req.Shape, Console: ring, VsockListener: vsock,
		GuestConn: s.dials.take, Exited: s.exited, Stalled: s.stalled,
	})
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(min(int(req.Shape.VCPUs), s.maxProcs))
	if err := jail.OnTime(); err != nil {
		return err
	}
	// Drop rights before the process reads any data of a guest. A VMM in the pool has time for this
	// step.
	return s.narrow()
}

// MaxProcs is the maximum GOMAXPROCS of the process, which is the number of threads that may run Go
// code at the same time. Go code handles devices, exits of vCPUs, page faults of a live branch, and
// requests of the daemon. All of this work is short, and a vCPU inside its guest does not occupy
// one of these threads (see kvm.VCPU.Run), so one processor would be enough for most guests. But a
// vCPU that leaves its guest repeatedly keeps its processor of the Go scheduler for up to a
// millisecond. With only one processor, devices would wait for that time (bench/results.md). A
// second processor costs 90 KiB of allocator caches, and makes the scheduler wake threads to look
// for work.
const MaxProcs = 2

func (s *server) boot(r *codec.Reader, files *donated) error {
	var req vmmproto.Boot
	if err := errors.Join(req.Parse(r), r.Done()); err != nil {
		return fmt.Errorf("parse boot: %w", err)
	}
	kernel := files.take()
	var initrd *os.File
	if req.Initrd {
		initrd = files.take()
	}
	disks, err := s.disks(files, req.Disks)
	if err != nil {
		return err
	}
	streams, err := files.takeFDs(vmmproto.GuestStreams)
	if err != nil {
		return err
	}
	peer, _, err := s.peer(req.Net)
	if err != nil {
		closeAll(streams)
		return err
	}
	err = s.machine.Boot(machine.BootConfig{
		Kernel: kernel, Initrd: initrd, Cmdline: req.Cmdline, Disks: disks, VMGenID: req.VMGenID, Net: peer,
	})
	_ = kernel.Close()
	if initrd != nil {
		_ = initrd.Close()
	}
	if err != nil {
		closeAll(streams)
		return err
	}
	s.dials.allow(streams)
	s.started = true
	return nil
}

func (s *server) restore(r *codec.Reader, files *donated, w *codec.Writer) error {
	var req vmmproto.Restore
	if err := errors.Join(req.Parse(r), r.Done()); err != nil {
		return fmt.Errorf("parse restore: %w", err)
	}
	memory, err := files.takeFDs(1 + int(req.Layers))
	if err != nil {
		return err
	}
	defer closeAll(memory) // the mappings do not need the descriptors
	disks, err := s.disks(files, req.Disks)
	if err != nil {
		return err
	}
	peer, keep, err := s.peer(req.Net)
	if err != nil {
		return err
	}
	s.dials.allow(nil)
	times, err := s.machine.Restore(machine.RestoreConfig{
		State: memory[0], Layers: memory[1:], Extents: req.Extents, Disks: disks, VMGenID: req.VMGenID, Resume: req.Resume,
		FirstWrites: req.FirstWrites, Net: peer, KeepNet: keep, Entering: s.entering,
	})
	s.started = s.started || err == nil
	times.Append(w)
	return err
}

// entering makes a notice of the answer to a restore. A vCPU's thread sends the notice (see
// kvm.Notice).
func (s *server) entering(t vmmproto.RestoreResult) *kvm.Notice {
	var w codec.Writer
	t.Append(&w)
	if fd, packet, err := s.conn.Packet(vmmproto.KindOK, w.Bytes()); err == nil {
		s.answer = kvm.NewNotice(fd, packet)
	}
	return s.answer
}

// disks takes the descriptors of the layers of all disks. It also lowers the limit on the length of
// files that this process may write. The new limit is the length that the memory layer and the disk
// layers need. The limit cannot be raised, so the volumes of a later restore must not need more.
func (s *server) disks(files *donated, specs []vmmproto.Disk) ([]machine.Disk, error) {
	most := s.memory
	for i, d := range specs {
		if d.Volume && d.SizeBytes > vm.MaxVolumeBytes {
			return nil, fmt.Errorf("disk %d: a volume of %d bytes, at most %d", i, d.SizeBytes, uint64(vm.MaxVolumeBytes))
		}
		if _, _, size := disklayer.Layout(d.SizeBytes); d.Layers > 0 {
			most = max(most, size)
		}
	}
	if err := s.limitFiles(most); err != nil {
		return nil, err
	}
	return files.disks(specs)
}

func (s *server) setNet(r *codec.Reader) error {
	var req vmmproto.SetNet
	if err := errors.Join(req.Parse(r), r.Done()); err != nil {
		return fmt.Errorf("parse net: %w", err)
	}
	peer, keep, err := s.peer(req.Net)
	if err != nil || keep {
		return err
	}
	return s.machine.SetNet(peer)
}
