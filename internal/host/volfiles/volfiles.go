// Package volfiles reads and changes the files of volumes, without a sandbox that mounts them. It
// starts a VM for each request.
//
// The VM boots the kernel and the initramfs of a snapshot that the client can fork, with forkd-files
// as its init. It has one disk, one connection to the host and no network. To read, the VM gets a
// copy of the volume, as a sandbox with the mode ro does. To change files, it gets the volume
// itself, and is the volume's writer until it has unmounted the volume and has ended. The host
// never parses the file system. Package filesproto describes the request.
package volfiles

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/format/record"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/gate"
	"github.com/forkd/forkd/internal/host/helpervm"
	"github.com/forkd/forkd/internal/host/mounts"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/host/store"
	"github.com/forkd/forkd/internal/host/vmmclient"
	"github.com/forkd/forkd/internal/host/vmpool"
	"github.com/forkd/forkd/internal/host/volume"
	"github.com/forkd/forkd/internal/proto/filesproto"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// Config configures a Server. All fields are required.
type Config struct {
	helpervm.Config
	Store   *store.Store
	Volumes *volume.Store
	Scratch string // directory for copies of volumes, on the file system of the volumes; emptied at the daemon's start

	// Initrd returns an initramfs with the files of the given initramfs, and with forkd-files at the
	// path Program.
	Initrd func(base *os.File) (*os.File, error)

	// Room returns an error if the host has no room for a VM with this much memory, in bytes, or if
	// the file system that contains the given file has no room for more data.
	Room func(memory uint64, disk *os.File) error
}

// Program is the path of forkd-files in the initramfs.
const Program = "/forkd-files"

// Limits of requests.
const (
	maxVMs       = 2                // maximum number of VMs at a time; a client has at most one
	maxWaiting   = 16               // maximum number of requests of one client that wait for a VM
	limit        = 10 * time.Minute // time limit of a request; an emulated CPU is slow
	maxHeader    = 16 << 10         // maximum size of the header of an answer, in bytes
	maxJSON      = 16 << 20         // maximum size of an answer except the content of a file, in bytes
	maxInitramfs = helpervm.MemoryBytes / 4
)

// Server serves requests for files. Its methods may be called concurrently.
type Server struct {
	cfg   Config
	place *gate.Gate
}

// New returns a Server.
func New(cfg Config) *Server {
	return &Server{cfg: cfg, place: gate.NewQueued(maxVMs, gate.Queue{Key: maxWaiting, All: 4 * maxWaiting})}
}

// Request is a request for files of a volume.
type Request struct {
	Volume string       // name
	ID     string       // the ID that the volume must still have when the request opens it
	Client string       // name of the client; limits count the VMs of each client
	Boot   []store.Info // snapshots that the client can fork; the VM boots the kernel of the first usable one

	Method, Path, Query string // see filesproto
	Body                io.Reader
	Length              int64 // length of the body in bytes; -1: unknown
}

func (r *Request) reads() bool { return r.Method == http.MethodGet }

// Answer is the answer to a Request. It comes from the VM, so its readers must not trust the body.
type Answer struct {
	Status int
	Length int64 // length of the body in bytes
	Body   io.Reader
	File   bool // the body is the content of a file, and not JSON
}

// Type returns the media type of the body.
func (a *Answer) Type() string {
	if a.File {
		return "application/octet-stream"
	}
	return "application/json"
}

// BodyError reports that the body of a request could not be read.
type BodyError struct{ Err error }

func (e *BodyError) Error() string { return "read the body: " + e.Err.Error() }

// Unwrap returns the error of the client's connection.
func (e *BodyError) Unwrap() error { return e.Err }

// NoKernelError reports that there is no snapshot whose kernel the VM could boot.
type NoKernelError struct{ Volume string }

func (e *NoKernelError) Error() string {
	return fmt.Sprintf("files of volume %q: a VM reads them, and there is no snapshot whose kernel it could boot: "+
		"build a snapshot first (forkd build)", e.Volume)
}

// Serve executes a request and passes the answer to the given function. If the request changes
// files, Serve calls the function only when the change is durable and the volume has no writer any
// more. The error is one of the errors of mounts.Admit, a *NoKernelError, a *BodyError, an error of
// the function, or an error of the VM.
func (s *Server) Serve(ctx context.Context, req Request, answer func(Answer) error) error {
	leave, err := s.place.Wait(ctx, owner.FairShare(req.Client, maxVMs))
	if err != nil {
		return err
	}
	defer leave()
	late := fmt.Errorf("files of volume %q: not done within %v: %w", req.Volume, limit, context.DeadlineExceeded)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	if req.reads() {
		return s.read(ctx, &req, answer)
	}
	return s.change(ctx, &req, answer)
}

// read serves a request in a VM with a copy of the volume.
func (s *Server) read(ctx context.Context, req *Request, answer func(Answer) error) error {
	id := volume.FilesWriter + snapshot.NewID()
	disk := volume.Disk{Sandbox: id, Owner: req.Client, Name: req.Volume, Copy: filepath.Join(s.cfg.Scratch, id)}
	if err := s.admit(ctx, req, record.MountReadOnly); err != nil {
		return err
	}
	if err := s.cfg.Volumes.Copy(ctx, disk); err != nil {
		return err
	}
	defer os.RemoveAll(disk.Copy) // what stays is removed at the daemon's next start
	if err := s.same(ctx, req, disk); err != nil {
		return err
	}
	files, err := s.cfg.Volumes.OpenCopy(ctx, disk)
	if err != nil {
		return err
	}
	defer files.Close()
	return s.run(ctx, req, files, answer)
}

// change serves a request in a VM that writes to the volume. If the daemon is killed during the
// request, the next daemon kills the VM, and finds that the volume's writer does not exist.
func (s *Server) change(ctx context.Context, req *Request, answer func(Answer) error) error {
	if err := s.admit(ctx, req, record.MountWriter); err != nil {
		return err
	}
	id := volume.FilesWriter + snapshot.NewID()
	var result Answer
	err := s.write(ctx, req, id, func(a Answer) error { result = a; return nil })
	// The VM has ended, even after an error, and changes nothing any more.
	released := s.cfg.Volumes.Release(context.WithoutCancel(ctx), req.Volume, id)
	if err := errors.Join(err, released); err != nil {
		return err
	}
	return answer(result)
}

// write runs the VM that changes files. The VM has ended when write returns.
func (s *Server) write(ctx context.Context, req *Request, id string, answer func(Answer) error) error {
	files, err := s.cfg.Volumes.Write(ctx, req.Volume, id)
	if err != nil {
		return err
	}
	defer files.Close()
	if err := s.same(ctx, req, volume.Disk{Sandbox: id, Name: req.Volume}); err != nil {
		return err
	}
	return s.run(ctx, req, files, answer)
}

// same returns a *volume.Error if a disk does not belong to the volume of the request. While the
// request waited, that volume may have been removed, and another volume made with the same name.
func (s *Server) same(ctx context.Context, req *Request, disk volume.Disk) error {
	id, err := s.cfg.Volumes.IDOf(ctx, disk)
	if err == nil && id != req.ID {
		err = &volume.Error{Name: req.Volume}
	}
	return err
}

// admit checks whether the volume can be used, and merges its layers if there are too many.
func (s *Server) admit(ctx context.Context, req *Request, mode string) error {
	one := &snapshot.Manifest{Machine: snapshot.Machine{VolumeSlots: 1}}
	return mounts.Admit(ctx, s.cfg.Volumes, []mounts.Mount{{Name: req.Volume, Path: "/", Mode: mode}}, one)
}

// run boots a VM, sends it the request, and passes its answer on.
func (s *Server) run(ctx context.Context, req *Request, files *volume.Files, answer func(Answer) error) error {
	err := s.cfg.Run(ctx, helpervm.Task{Name: "the VM for the files of a volume", Port: filesproto.Port,
		Boot: func(undo *cleanup.Stack) (vmmproto.Boot, vmmclient.BootFiles, error) {
			return s.boot(undo, req, files)
		},
		Talk: func(ctx context.Context, conn net.Conn) error { return talk(ctx, conn, req, answer) }})
	return vmpool.Cause(ctx, err)
}

// boot opens the files that the VM boots from.
func (s *Server) boot(undo *cleanup.Stack, req *Request, disk *volume.Files) (boot vmmproto.Boot,
	files vmmclient.BootFiles, err error) {
	kernel, base, err := s.kernel(req)
	if err != nil {
		return boot, files, err
	}
	undo.Add(func() { kernel.Close(); base.Close() })
	st, err := base.Stat()
	if err == nil && st.Size() > maxInitramfs {
		err = fmt.Errorf("an initramfs of %d MiB, at most %d", st.Size()>>20, maxInitramfs>>20)
	}
	if err == nil {
		err = s.cfg.Room(helpervm.MemoryBytes+uint64(st.Size()), disk.Top)
	}
	if err != nil {
		return boot, files, err
	}
	initrd, err := s.cfg.Initrd(base)
	if err != nil {
		return boot, files, err
	}
	undo.Add(func() { initrd.Close() })
	boot.Cmdline, boot.Disks = " rdinit="+Program, []vmmproto.Disk{{SizeBytes: disk.SizeBytes}}
	files.Kernel, files.Initrd, files.Disks = kernel, initrd, [][]*os.File{append(disk.Lower, disk.Top)}
	return boot, files, nil
}

// kernel opens the kernel and the initramfs of the first usable snapshot.
func (s *Server) kernel(req *Request) (kernel, initrd *os.File, err error) {
	for _, i := range req.Boot {
		if kernel, initrd, err = s.cfg.Store.Boot(i.Tag, i.Boot); err == nil {
			return kernel, initrd, nil
		}
	}
	return nil, nil, errors.Join(&NoKernelError{req.Volume}, err)
}

// talk sends the request to forkd-files, and passes the answer on. The content of a file is passed
// on while it arrives. Other answers are read completely first.
func talk(ctx context.Context, conn net.Conn, req *Request, answer func(Answer) error) error {
	body := &source{Reader: req.Body}
	defer body.end()
	call, err := http.NewRequestWithContext(ctx, req.Method, "http://volume"+req.Path+"?"+req.Query, body)
	if err != nil {
		return err
	}
	if call.ContentLength = req.Length; req.Length == 0 {
		call.Body = http.NoBody
	}
	once := &http.Transport{DisableCompression: true, DisableKeepAlives: true, MaxResponseHeaderBytes: maxHeader,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
	resp, err := once.RoundTrip(call)
	if failed := body.err(); failed != nil {
		return &BodyError{failed}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", helpervm.ErrLost, err)
	}
	defer resp.Body.Close()
	if req.reads() && req.Path == "/file" && resp.StatusCode == http.StatusOK && resp.ContentLength >= 0 {
		return answer(Answer{resp.StatusCode, resp.ContentLength, resp.Body, true})
	}
	p, err := io.ReadAll(io.LimitReader(resp.Body, maxJSON+1))
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", helpervm.ErrLost, err)
	case len(p) > maxJSON:
		return fmt.Errorf("the VM for the files of a volume has answered with more than %d MiB", maxJSON>>20)
	case len(p) > 0 && !json.Valid(p):
		return errors.New("the VM for the files of a volume has answered with invalid JSON")
	}
	return answer(answerOf(resp.StatusCode, p))
}
