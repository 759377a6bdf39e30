package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/stub"
)

// qemu is a peer that forks by means of QEMU's migration. The parent's RAM is a file, and the rest
// of the parent's state is migrated to another file. A child maps the first file privately and
// migrates from the second file. The parent runs in QEMU's emulation, because QEMU needs a BIOS to
// load a kernel, and not every KVM can run a BIOS.
func (b *bench) qemu(ctx context.Context, name, bin string) (*peer, error) {
	p, version, err := newPeer(ctx, name, bin, true)
	if err != nil || p.absent != "" {
		return p, err
	}
	p.how = version + ": a process for each child, in no jail; migrate-incoming with x-ignore-shared"
	q := &qemu{bin: bin, memoryMiB: b.memoryMiB}
	if q.dir, q.snapshots, err = b.directories(); err != nil {
		return nil, err
	}
	p.fork = processes(func(ctx context.Context) (process, error) { return q.child(ctx) }, true)
	err = q.bake(ctx)
	if err == nil {
		err = p.fork(ctx, &cell{n: 1, width: 1}, 1)
	}
	if err != nil {
		p.absent = fmt.Sprintf("it does not work here: %v", err)
	}
	return p, nil
}

type qemu struct {
	bin, dir  string
	snapshots string // directory of the snapshot, in RAM
	memoryMiB uint64
}

func (q *qemu) state() string  { return filepath.Join(q.snapshots, "state") }
func (q *qemu) memory() string { return filepath.Join(q.snapshots, "memory") }

// qemuLayout has the address of the first virtio-mmio device of QEMU's microvm. The registers exist
// even if no device is configured.
var qemuLayout = stub.Layout{Register: 0xfeb00000, Generation: stub.Note}

// With ignoreShared, a migration omits RAM that is in a file. Both sides have the file.
var ignoreShared = map[string]any{"capabilities": []any{map[string]any{"capability": "x-ignore-shared", "state": true}}}

func (q *qemu) bake(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, answerLimit, errors.New("the stub does not get to its loop"))
	defer cancel()
	kernel := filepath.Join(q.dir, "stub")
	if err := os.WriteFile(kernel, qemuLayout.Multiboot(), 0o600); err != nil {
		return err
	}
	vm, err := q.spawn(ctx, "on", "tcg", nil, "-kernel", kernel)
	if err != nil {
		return err
	}
	defer vm.end()
	for !vm.userMode(ctx) {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	// The guest runs while it is migrated, because a copy of a paused VM would also be paused.
	// Nothing is lost, because the guest's RAM does not change.
	if err := vm.command(ctx, "migrate", map[string]any{"uri": "exec:cat > " + q.state()}); err != nil {
		return err
	}
	for {
		var s struct{ Status string }
		if err := vm.ask(ctx, "query-migrate", nil, &s); err != nil {
			return err
		}
		switch s.Status {
		case "completed":
			return tellCopies(q.memory())
		case "failed", "cancelled":
			return fmt.Errorf("its migration has %s", s.Status)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// userMode reports whether the guest has reached its code in user mode.
func (v *qemuVM) userMode(ctx context.Context) bool {
	var registers string
	err := v.ask(ctx, "human-monitor-command", map[string]any{"command-line": "info registers"}, &registers)
	return err == nil && strings.Contains(registers, "CPL=3")
}

// qemuVM is a process of QEMU.
type qemuVM struct {
	of   *qemu
	dir  string
	cmd  *exec.Cmd
	out  *os.File // output of the guest's serial port
	conn net.Conn // connection to the monitor
	in   *json.Decoder
	runs bool // the vCPUs run
}

func (q *qemu) child(ctx context.Context) (process, error) {
	state, err := os.Open(q.state())
	if err != nil {
		return nil, err
	}
	defer state.Close()
	return q.spawn(ctx, "off", "kvm", []*os.File{state}, "-incoming", "defer")
}

// spawn starts QEMU. QEMU gets the descriptors of files, from 3 on.
func (q *qemu) spawn(ctx context.Context, share, accel string, files []*os.File, more ...string) (*qemuVM, error) {
	dir, err := os.MkdirTemp(q.dir, "")
	if err != nil {
		return nil, err
	}
	out, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	vm := &qemuVM{of: q, dir: dir, out: out}
	cmd := exec.Command(q.bin, append([]string{"-M", "microvm,memory-backend=ram,rtc=off,pic=on,pit=on", "-accel", accel,
		"-cpu", "qemu64",
		"-m", fmt.Sprintf("%dM", q.memoryMiB),
		"-object", fmt.Sprintf("memory-backend-file,id=ram,size=%dM,mem-path=%s,share=%s", q.memoryMiB, q.memory(), share),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-serial", "stdio", "-qmp", "unix:qmp,server=on,wait=off"}, more...)...)
	// Standard error is discarded, because each child would warn about CPU features that are
	// missing.
	cmd.Dir, cmd.Stdout, cmd.ExtraFiles = dir, theirs, files
	if err := cmd.Start(); err != nil {
		vm.end()
		return nil, err
	}
	vm.cmd = cmd
	if err := vm.connect(ctx); err != nil {
		vm.end()
		return nil, err
	}
	return vm, nil
}

func (v *qemuVM) connect(ctx context.Context) (err error) {
	if v.conn, err = dialSoon(ctx, filepath.Join(v.dir, "qmp")); err != nil {
		return err
	}
	v.in = json.NewDecoder(v.conn)
	var greeting struct{ QMP any }
	if err := v.in.Decode(&greeting); err != nil {
		return err
	}
	if err := v.command(ctx, "qmp_capabilities", nil); err != nil {
		return err
	}
	return v.command(ctx, "migrate-set-capabilities", ignoreShared)
}

// message is a message of QEMU's monitor: an answer or an event.
type message struct {
	Return json.RawMessage
	Error  *struct{ Desc string }
	Event  string
}

func (v *qemuVM) command(ctx context.Context, name string, arguments any) error {
	return v.ask(ctx, name, arguments, new(any))
}

// ask sends a command to the monitor.
func (v *qemuVM) ask(ctx context.Context, name string, arguments, answer any) error {
	if deadline, ok := ctx.Deadline(); ok {
		_ = v.conn.SetDeadline(deadline)
	}
	request := map[string]any{"execute": name}
	if arguments != nil {
		request["arguments"] = arguments
	}
	if err := json.NewEncoder(v.conn).Encode(request); err != nil {
		return err
	}
	for {
		switch m, err := v.next(); {
		case err != nil:
			return fmt.Errorf("%s: %w", name, err)
		case m.Error != nil:
			return fmt.Errorf("%s: %s", name, m.Error.Desc)
		case m.Return != nil:
			return json.Unmarshal(m.Return, answer)
		}
	}
}

// start starts the vCPUs. It returns after the event that reports that they run.
func (v *qemuVM) start(ctx context.Context) error {
	if err := v.command(ctx, "migrate-incoming", map[string]any{"uri": "fd:3"}); err != nil {
		return err
	}
	for !v.runs {
		if _, err := v.next(); err != nil {
			return fmt.Errorf("wait for it to run: %w", err)
		}
	}
	return nil
}

// next reads a message of the monitor. If the message is the event that the vCPUs run, next records
// this. The event may arrive before the answer to the command that starts the vCPUs.
func (v *qemuVM) next() (m message, err error) {
	err = v.in.Decode(&m)
	v.runs = v.runs || m.Event == "RESUME"
	return m, err
}

func (v *qemuVM) answer(ctx context.Context) error { return awaitAnswer(ctx, v.out) }

func (v *qemuVM) describe(c *child) {
	c.pid = v.cmd.Process.Pid
	c.private = func() (float64, error) { return lab.PrivateKiB(c.pid, v.of.memory()) }
}

func (v *qemuVM) end() {
	if v.conn != nil {
		v.conn.Close()
	}
	if v.cmd != nil {
		_ = v.cmd.Process.Kill()
		_ = v.cmd.Wait()
	}
	v.out.Close()
	_ = os.RemoveAll(v.dir)
}
