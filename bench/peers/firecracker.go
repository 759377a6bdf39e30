package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/stub"
)

// firecracker is a peer that forks from snapshots that Firecracker has made of a running guest. A
// child is a Firecracker process that receives, on its API socket, the request to load the
// snapshot.
func (b *bench) firecracker(ctx context.Context, name, bin string) (*peer, error) {
	p, version, err := newPeer(ctx, name, bin, true)
	if err != nil || p.absent != "" {
		return p, err
	}
	f := &firecracker{guest: b.guest}
	if f.dir, f.snapshots, err = b.directories(); err != nil {
		return nil, err
	}
	if f.bin, err = lab.CopyBinary(f.dir, bin); err != nil {
		return nil, err
	}
	p.how = version + ": a process for each child, without its jailer but with its seccomp filters; " +
		"PUT /snapshot/load with resume_vm; " + f.guest.note()
	if err := f.bake(ctx); err != nil {
		return nil, fmt.Errorf("make its snapshot: %w", err)
	}
	p.fork = processes(func(ctx context.Context) (process, error) { return f.spawn(ctx) }, true)
	return p, nil
}

type firecracker struct {
	guest     guest
	bin, dir  string
	snapshots string    // directory of the snapshot, in RAM
	baked     bool      // the snapshot exists
	written   time.Time // last write of the snapshot's parent to its disk; zero if it has no disk
}

func (f *firecracker) state() string  { return filepath.Join(f.snapshots, "state") }
func (f *firecracker) memory() string { return filepath.Join(f.snapshots, "memory") }

// bake boots a guest and makes a snapshot of it.
func (f *firecracker) bake(ctx context.Context) error {
	requests, err := f.guest.configure(f)
	if err != nil {
		return err
	}
	vm, err := f.spawn(ctx)
	if err != nil {
		return err
	}
	defer vm.end()
	for _, r := range requests {
		if err := vm.request(ctx, "PUT", r.path, r.body); err != nil {
			return err
		}
	}
	if err := f.guest.boot(ctx, vm); err != nil {
		return err
	}
	if err := vm.request(ctx, "PATCH", "/vm", fields{"state": "Paused"}); err != nil {
		return err
	}
	if err := vm.request(ctx, "PUT", "/snapshot/create",
		fields{"snapshot_type": "Full", "snapshot_path": f.state(), "mem_file_path": f.memory()}); err != nil {
		return err
	}
	f.baked = true
	return f.guest.saved(f)
}

// tellCopies changes the memory of a snapshot, so that a stub notices that it is a copy.
func tellCopies(memory string) error {
	file, err := os.OpenFile(memory, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteAt([]byte{1}, int64(stub.Note))
	return errors.Join(err, file.Close())
}

// firecrackerVM is a process of Firecracker.
type firecrackerVM struct {
	of   *firecracker
	dir  string // working directory; the snapshot's vsock path is relative to it
	cmd  *exec.Cmd
	out  *os.File // output of the guest's serial port
	conn net.Conn // connection to the API
	in   *bufio.Reader
}

// apiPoll is the interval between attempts to connect to a VMM that is starting.
const apiPoll = 200 * time.Microsecond

func (f *firecracker) spawn(ctx context.Context) (*firecrackerVM, error) {
	dir, err := os.MkdirTemp(f.dir, "")
	if err != nil {
		return nil, err
	}
	vm := &firecrackerVM{of: f, dir: dir}
	err = f.guest.setUp(f, dir)
	if err == nil {
		err = vm.run(ctx)
	}
	if err != nil {
		vm.end()
		return nil, err
	}
	return vm, nil
}

func (v *firecrackerVM) run(ctx context.Context) error {
	out, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer theirs.Close()
	v.out = out
	// Turn the log off, because it has the same destination as the guest's output.
	cmd := exec.Command(v.of.bin, "--api-sock", "api", "--level", "Off")
	cmd.Dir, cmd.Stdout, cmd.Stderr = v.dir, theirs, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	v.cmd = cmd
	v.conn, err = dialSoon(ctx, filepath.Join(v.dir, "api"))
	if err == nil {
		v.in = bufio.NewReader(v.conn)
	}
	return err
}

// dialSoon connects to the socket of a process that may still be starting.
func dialSoon(ctx context.Context, path string) (net.Conn, error) {
	tick, err := lab.NewTicker(apiPoll)
	if err != nil {
		return nil, err
	}
	defer tick.Close()
	for {
		conn, err := net.Dial("unix", path)
		if err == nil {
			return conn, nil
		}
		if ctx.Err() != nil {
			return nil, errors.Join(err, context.Cause(ctx))
		}
		if _, err := tick.Read(make([]byte, 8)); err != nil {
			return nil, err
		}
	}
}

// request sends a request to the API. It does not use net/http, whose client would need more CPU
// time than Firecracker needs to answer.
func (v *firecrackerVM) request(ctx context.Context, method, path string, body any) error {
	p, err := json.Marshal(body)
	if err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = v.conn.SetDeadline(deadline)
	}
	if _, err := fmt.Fprintf(v.conn,
		"%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		method, path, len(p), p); err != nil {
		return err
	}
	r, err := http.ReadResponse(v.in, nil)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if r.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s %s", method, path, r.Status, text)
	}
	return err
}

// boot starts a configured guest.
func (v *firecrackerVM) boot(ctx context.Context) error {
	return v.request(ctx, "PUT", "/actions", fields{"action_type": "InstanceStart"})
}

func (v *firecrackerVM) start(ctx context.Context) error {
	return v.request(ctx, "PUT", "/snapshot/load", map[string]any{"snapshot_path": v.of.state(), "resume_vm": true,
		"mem_backend": map[string]string{"backend_type": "File", "backend_path": v.of.memory()}})
}

func (v *firecrackerVM) answer(ctx context.Context) error { return v.of.guest.awaitAnswer(ctx, v) }

// awaitAnswer waits for the first output of a child, which must be the stub's answer.
func awaitAnswer(ctx context.Context, out *os.File) error {
	if deadline, ok := ctx.Deadline(); ok {
		_ = out.SetReadDeadline(deadline)
	}
	var said [1]byte
	if _, err := io.ReadFull(out, said[:]); err != nil {
		return fmt.Errorf("wait for the stub's answer: %w", err)
	}
	if said[0] != stub.Answer {
		return fmt.Errorf("the stub's answer is %q, not %q", said[0], stub.Answer)
	}
	return nil
}

func (v *firecrackerVM) describe(c *child) {
	c.pid = v.cmd.Process.Pid
	c.private = func() (float64, error) { return lab.PrivateKiB(c.pid, v.of.memory()) }
}

func (v *firecrackerVM) end() {
	if v.conn != nil {
		v.conn.Close()
	}
	if v.cmd != nil {
		_ = v.cmd.Process.Kill()
		_ = v.cmd.Wait()
	}
	if v.out != nil {
		v.out.Close()
	}
	_ = os.RemoveAll(v.dir)
}
