// Command peers compares forkd with other runtimes. It measures two durations that begin with a
// request: until a child runs, and until the child has answered. It also measures the CPU time for
// the request, and the memory that a child takes. The measurements of the different runtimes are
// interleaved.
//
// All virtual machines run the same guest. Each VMM restores the guest from a snapshot that the
// same VMM has made. By default, the guest has no operating system (package stub). Then the figures
// contain only the work of the VMM and of this program, and any KVM can run the guest. Containers
// cannot be forked, so they start a program that answers. This is the minimum for a container. With
// -guest=linux, the guest of forkd and Firecracker is forkd's kernel and agent with a recipe's
// image. With this guest, a child counts as having answered when its agent has confirmed the
// child's identity.
//
// A peer is measured if it is installed or if its path is given; the tables list other peers
// without figures. Tables go to standard output, progress to standard error, all figures as JSON to
// the file -o, and a chart to the file -chart. The command needs root. scripts/bench runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/internal/cleanup"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/vmtest/opcount"
)

// bench is one run of this program.
type bench struct {
	*lab.Program
	guestName string
	recipe    string
	memoryMiB uint64 // 0: the guest's default
	ns        lab.Numbers
	rounds    int
	counted   int
	chart     string
	programs  map[string]*string // paths by name of the peer; an empty path omits the peer

	guest    guest
	dir, ram string // parents of the directories that b.directories() makes
}

func main() {
	b := &bench{Program: lab.NewProgram("peers", 5*time.Minute, "no new turn begins"), programs: make(map[string]*string)}
	b.ns = lab.Numbers{List: []int{1, 10, 100}, Min: 1, Max: sandbox.MaxFork}
	flag.StringVar(&b.guestName, "guest", "stub", "stub: user-mode code without an operating system, or linux")
	flag.StringVar(&b.recipe, "recipe", "python-numpy", "image of the Linux guest")
	flag.Uint64Var(&b.memoryMiB, "memory", 0, "guest RAM in MiB, 64 to 3072; 0: 128 for the stub, 512 for Linux")
	flag.Var(&b.ns, "n", "children per fork")
	flag.IntVar(&b.rounds, "rounds", 5, "how often each peer has its turn")
	flag.IntVar(&b.counted, "counted", 10, "for how many children system calls and the like are counted; 0: for none")
	flag.StringVar(&b.chart, "chart", "", "file for the chart as SVG; empty: none")
	for _, p := range []struct{ peer, flag, program string }{
		{firecrackerName, "firecracker", "firecracker"},
		// This Firecracker sets memory slots before it makes the interrupt controller and the
		// vCPUs. If Firecracker did this later, the kernel would make it wait.
		{memslotsFirstName, "firecracker-memslots-first", ""},
		{qemuName, "qemu", "qemu-system-x86_64"},
		{runcName, "runc", "runc"},
		{gvisorName, "runsc", "runsc"},
	} {
		installed, _ := exec.LookPath(p.program) // empty if the program is not installed
		b.programs[p.peer] = flag.String(p.flag, installed, "path of "+p.peer+"; empty: it takes no part")
	}
	b.Main(b.check, b.measure)
}

func (b *bench) check() error {
	if b.memoryMiB == 0 {
		b.memoryMiB = map[string]uint64{"stub": 128, "linux": 512}[b.guestName]
	}
	if b.guestName != "stub" && b.guestName != "linux" {
		return fmt.Errorf("-guest %q: want stub or linux", b.guestName)
	}
	switch {
	case b.memoryMiB < 64 || b.memoryMiB > 3072:
		return fmt.Errorf("-memory %d: want 64 to 3072", b.memoryMiB)
	case len(b.ns.List) == 0:
		return errors.New("-n: want a number, or several")
	case b.rounds < 1:
		return fmt.Errorf("-rounds %d: want 1 or more", b.rounds)
	case b.counted < 0:
		return fmt.Errorf("-counted %d: want 0 or more", b.counted)
	}
	return nil
}

func (b *bench) measure(ctx context.Context) (*report.Report, error) {
	var undo cleanup.Stack
	defer undo.Run()
	host, err := lab.Host()
	if err == nil && b.guestName == "linux" && host.Accel == lab.AccelPVM {
		err = lab.ErrUnfit
	}
	if err != nil {
		return nil, err
	}
	daemon, err := lab.NewDaemon(host, &undo)
	if err != nil {
		return nil, err
	}
	if b.guest, err = b.newGuest(daemon); err != nil {
		return nil, err
	}
	b.dir = daemon.RunDir
	if b.ram, err = os.MkdirTemp("/dev/shm", "fkb"); err != nil {
		return nil, err
	}
	undo.Add(func() { os.RemoveAll(b.ram) })
	peers, err := b.peers(ctx, daemon)
	if err != nil {
		return nil, err
	}
	matrix := newMatrix(b.guest.name(), peers, b.ns.List)
	if err := b.turns(ctx, matrix); err != nil {
		return nil, err
	}
	r := b.Report(host)
	r.Tables = append(r.Tables, matrix.times(), matrix.costs())
	if b.chart != "" {
		if err := os.WriteFile(b.chart, matrix.chart(host).SVG(), 0o644); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Names of peers.
const (
	firecrackerName   = "Firecracker"
	memslotsFirstName = "Firecracker, memslots first"
	qemuName          = "QEMU microvm"
	runcName          = "runc"
	gvisorName        = "gVisor runsc"
)

// peers prepares the peers to be measured.
func (b *bench) peers(ctx context.Context, daemon *lab.Daemon) ([]*peer, error) {
	ours, err := b.forkd(ctx, daemon)
	if err != nil {
		return nil, err
	}
	peers := []*peer{ours}
	for _, other := range []struct {
		name    string
		prepare func(ctx context.Context, name, bin string) (*peer, error)
	}{
		{firecrackerName, b.firecracker},
		{memslotsFirstName, b.firecracker},
		{qemuName, b.qemu},
		{runcName, b.container},
		{gvisorName, b.container},
	} {
		if !slices.Contains(b.guest.peers(), other.name) {
			continue
		}
		bin := *b.programs[other.name]
		if bin != "" {
			// Use an absolute path, because the program is run in other directories.
			if bin, err = filepath.Abs(bin); err != nil {
				return nil, err
			}
		}
		p, err := other.prepare(ctx, other.name, bin)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", other.name, err)
		}
		if p.absent != "" {
			b.Progress("%s takes no part: %s", p.name, p.absent)
		}
		peers = append(peers, p)
	}
	return peers, nil
}

// directories makes two directories with short paths for a peer: one on disk, and one in RAM for
// its snapshots.
func (b *bench) directories() (dir, ram string, err error) {
	if dir, err = os.MkdirTemp(b.dir, "p"); err != nil {
		return "", "", err
	}
	ram, err = os.MkdirTemp(b.ram, "p")
	return dir, ram, err
}

// turns(…) measures in rounds. In each round, it measures every cell, and for each cell every peer.
func (b *bench) turns(ctx context.Context, m *matrix) error {
	for round := range b.rounds {
		for _, row := range m.rows {
			if b.TimeIsUp() {
				b.Progress("the time of -budget is up in round %d of %d", round+1, b.rounds)
				return nil
			}
			b.Progress("round %d of %d: n=%d, pool %s", round+1, b.rounds, row.n, row.pool())
			if err := row.turn(ctx, round, nil, perTurn); err != nil {
				return err
			}
		}
	}
	if b.counted == 0 {
		return nil
	}
	counter, err := opcount.New()
	if err != nil {
		return err
	}
	defer counter.Close()
	for _, row := range m.rows {
		if b.TimeIsUp() {
			b.Progress("the time of -budget is up: counts of n=%d, pool %s stay blank", row.n, row.pool())
			continue
		}
		b.Progress("counting: n=%d, pool %s", row.n, row.pool())
		if err := row.turn(ctx, 0, counter, b.counted); err != nil {
			return err
		}
	}
	return nil
}

// perTurn is the minimum number of children that a peer forks in one turn of a cell.
const perTurn = 5

// turn measures every peer once. The first peer changes from round to round, so that the
// after-effects of a peer's turn do not always affect the same peer.
func (r *row) turn(ctx context.Context, round int, counter *opcount.Counter, children int) error {
	for i := range r.cells {
		at := (i + round) % len(r.cells)
		p, cells := r.peers[at], r.cells[at]
		if counter != nil && len(cells) > 0 {
			cells = []*cell{r.best(at)}
		}
		for _, c := range cells {
			c.counter = counter
			if err := p.fork(ctx, c, (children+r.n-1)/r.n); err != nil {
				return fmt.Errorf("%s, n=%d, pool %s: %w", p.name, r.n, r.pool(), err)
			}
		}
	}
	return nil
}
