package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
	"github.com/forkd/forkd/bench/internal/stub"
)

// program is a child that runs the program of the containers directly, without a container.
type program struct {
	path  string
	cmd   *exec.Cmd
	out   *os.File
	alive *atomic.Int32
}

func (p *program) start(context.Context) error {
	out, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer theirs.Close()
	p.out, p.cmd = out, exec.Command(p.path)
	p.cmd.Stdout = theirs
	p.alive.Add(1)
	return p.cmd.Start()
}

func (p *program) answer(ctx context.Context) error { return awaitAnswer(ctx, p.out) }

func (p *program) end() {
	if p.cmd != nil {
		p.alive.Add(-1)
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		p.out.Close()
	}
}

func (p *program) describe(c *child) {
	c.pid = p.cmd.Process.Pid
	c.private = func() (float64, error) { return lab.PrivateKiB(c.pid, "/none") }
}

// This test calls fork with real processes. All processes are measured, and no process remains.
func TestForkProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "answer")
	if err := os.WriteFile(path, stub.Program(), 0o700); err != nil {
		t.Fatal(err)
	}
	var alive atomic.Int32
	fork := processes(func(context.Context) (process, error) { return &program{path: path, alive: &alive}, nil }, true)
	for _, warm := range []bool{true, false} {
		c := &cell{n: 7, warm: warm, width: 4}
		if err := fork(t.Context(), c, 2); err != nil {
			t.Fatal(err)
		}
		if len(c.answered) != 14 || len(c.last) != 2 || c.timed != 14 || alive.Load() != 0 {
			t.Fatalf("warm %v: %d answers of %d forks, %d children left", warm, len(c.answered), len(c.last), alive.Load())
		}
		for i := range c.answered {
			if c.entered[i] <= 0 || c.answered[i] < c.entered[i] {
				t.Errorf("warm %v: entered after %v ms, answered after %v", warm, c.entered[i], c.answered[i])
			}
		}
		if got := slices.Max(c.answered[:7]); c.last[0] != got {
			t.Errorf("the last answered after %v ms, one after %v", c.last[0], got)
		}
		if c.vmmCPU() <= 0 || c.vmmCPU() > 1e3 {
			t.Errorf("a child took %v ms of CPU", c.vmmCPU())
		}
	}
	// If a process cannot be made, fork ends the other processes and returns the error.
	var made atomic.Int32
	broken := processes(func(context.Context) (process, error) {
		if made.Add(1) == 3 {
			return nil, errors.New("no memory")
		}
		return &program{path: path, alive: &alive}, nil
	}, true)
	err := broken(t.Context(), &cell{n: 5, width: 2}, 1)
	if err == nil || !strings.Contains(err.Error(), "no memory") || alive.Load() != 0 {
		t.Errorf("%v, %d children left", err, alive.Load())
	}
}

// Only the exact answer is accepted. The error message of a failed program is not accepted.
func TestAwaitAnswer(t *testing.T) {
	for said, want := range map[string]bool{"v": true, "vv": true, "invalid": false, "": false} {
		out, in, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.WriteString(said); err != nil {
			t.Fatal(err)
		}
		in.Close()
		if err := awaitAnswer(t.Context(), out); (err == nil) != want {
			t.Errorf("%q: %v", said, err)
		}
		out.Close()
	}
}

// A peer that is not installed is listed without figures. Ratios are relative to the first peer.
func TestMissingPeersAreNamed(t *testing.T) {
	gone, _, err := newPeer(t.Context(), "gone", "", true)
	noBox, _, errBox := newPeer(t.Context(), "no box", "", false)
	if err != nil || errBox != nil {
		t.Fatal(err, errBox)
	}
	peers := []*peer{{name: "ours", pool: true, how: "A"}, {name: "theirs", pool: true, how: "B", driven: true}, gone,
		{name: "box", how: "C"}, noBox}
	m := newMatrix("stub", peers, []int{1})
	warm, cold := m.rows[0], m.rows[1]
	if !warm.warm || warm.cells[2] != nil || warm.cells[3] != nil || cold.cells[2] != nil || cold.cells[3] == nil {
		t.Fatalf("%+v, %+v", warm, cold)
	}
	measured := func(c *cell, ms ...float64) {
		c.entered, c.answered, c.last, c.timed = ms, ms, ms, len(ms)
		c.vmm = time.Duration(len(ms)) * time.Millisecond
	}
	measured(warm.cells[0][0], 2, 2, 9)
	measured(warm.cells[1][0], 5, 5, 5)
	measured(cold.cells[3][0], 30)
	cold.cells[3][0].entered = []float64{0} // the peer does not report this time
	times := m.times()
	row := func(pool, name string) []any {
		for _, r := range times.Rows {
			if r[1] == pool && r[2] == name {
				return r[3:]
			}
		}
		t.Fatalf("no row %s, %s", pool, name)
		return nil
	}
	if got, want := row("warm", "theirs"), []any{1, 3, 5.0, 2.5, 5.0, 5.0, 5.0, 5.0, 5.0, 2.5}; !slices.Equal(got, want) {
		t.Errorf("theirs: %v, want %v", got, want)
	}
	for _, got := range [][]any{row("warm", "gone"), row("cold", "gone"), row("cold", "no box")} {
		if slices.ContainsFunc(got, func(v any) bool { return v != nil }) {
			t.Errorf("a peer that is not there has figures: %v", got)
		}
	}
	if got := row("cold", "box"); got[2] != nil || got[4] != 30.0 || got[9] != nil {
		t.Errorf("a container: %v", got)
	}
	if !slices.ContainsFunc(times.Notes, func(s string) bool {
		return strings.Contains(s, "gone takes no part: it is not installed")
	}) {
		t.Errorf("the notes do not name it: %q", times.Notes)
	}
	if got := m.costs().Rows[0]; got[3] != 1.0 || got[5] != nil || got[8] != nil {
		t.Errorf("costs of what was not counted: %v", got)
	}
	svg := string(m.chart(report.Host{Accel: lab.AccelPVM, CPUs: 2}).SVG())
	for _, want := range []string{">gone<", "it is not installed", ">5.00 ms<", ">30.0 ms<",
		"no hardware virtualization"} {
		if !strings.Contains(svg, want) {
			t.Errorf("the chart lacks %q", want)
		}
	}
}

// A peer is measured with each width that makes a difference, and the tables show the best width.
// forkd is measured without widths.
func TestBestWidth(t *testing.T) {
	m := newMatrix("stub", []*peer{{name: "ours", pool: true}, {name: "theirs", pool: true, driven: true}},
		[]int{1, 10, 100})
	for i, want := range [][]int{{4}, {4, 16}, {4, 16, 64}} {
		var got []int
		for _, c := range m.rows[i].cells[1] {
			got = append(got, c.width)
		}
		if !slices.Equal(got, want) || len(m.rows[i].cells[0]) != 1 || m.rows[i].best(0).width != 0 {
			t.Errorf("n=%d: widths %v, want %v", m.rows[i].n, got, want)
		}
	}
	cells := m.rows[2].cells[1]
	for i, ms := range []float64{240, 120, 130} {
		cells[i].last = []float64{ms}
	}
	if got := m.rows[2].best(1); got != cells[1] {
		t.Errorf("the best is that of %d at a time", got.width)
	}
}
