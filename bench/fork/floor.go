package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/bench/internal/report"
)

// floor holds the times of bench/floor, in milliseconds.
type floor struct {
	work    []float64       // from the beginning of main to the first exit, for each run
	process []float64       // from the start of the process to the first exit
	burst   map[int]float64 // by n: from the start of the first of n processes to the first exit of the last process
}

// floorCode is real-mode code for CodeAddr: out %al,$0x10; hlt.
func floorCode() []byte { return []byte{0xe6, 0x10, 0xf4} }

// floorCodeAddr is the address at which the vCPU of bench/floor begins.
const floorCodeAddr = 0x1000

// restoresPerCPU is the number of children that the sandbox manager restores concurrently on each
// CPU. The processes of a burst are started with the same limit.
const restoresPerCPU = 2

// measureFloor first runs the program at the path bin alone, and repeats this for the given number
// of runs. Then, for every number in ns, it runs a burst of that many processes.
func measureFloor(ctx context.Context, bin string, memoryBytes uint64, runs int, ns []int) (*floor, error) {
	fd, err := unix.MemfdCreate("floor-memory", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make the floor's memory: %w", err)
	}
	memory := os.NewFile(uintptr(fd), "floor-memory")
	defer memory.Close()
	_, err = memory.WriteAt(floorCode(), floorCodeAddr)
	if err := errors.Join(err, memory.Truncate(int64(memoryBytes))); err != nil {
		return nil, fmt.Errorf("make the floor's memory: %w", err)
	}
	f := &floor{burst: make(map[int]float64)}
	for range runs {
		run, err := startFloor(ctx, bin, memory)
		if err != nil {
			return nil, err
		}
		f.work = append(f.work, float64(run.exit-run.start)/1e6)
		f.process = append(f.process, float64(run.exit-run.begin)/1e6)
		if err := run.end(); err != nil {
			return nil, err
		}
	}
	for _, n := range ns {
		if f.burst[n], err = floorBurst(ctx, bin, memory, n); err != nil {
			return nil, err
		}
	}
	f.burst[1] = report.Quantile(f.process, 0.5) // the median over all runs is better than a single burst
	return f, nil
}

// floorBurst starts n processes together, with the same limit on concurrent starts as for forks.
func floorBurst(ctx context.Context, bin string, memory *os.File, n int) (float64, error) {
	begin, err := lab.Now()
	if err != nil {
		return 0, err
	}
	places := make(chan struct{}, restoresPerCPU*runtime.NumCPU())
	started, errs := make([]*floorRun, n), make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			started[i], errs[i] = startFloor(ctx, bin, memory)
		})
	}
	group.Wait()
	last := begin
	for _, run := range started {
		if run != nil {
			last = max(last, run.exit)
			errs = append(errs, run.end())
		}
	}
	return float64(last-begin) / 1e6, errors.Join(errs...)
}

// floorRun is one process after the first exit of its VM. Times are CLOCK_MONOTONIC in nanoseconds.
type floorRun struct {
	begin int64 // time at which the process was started
	start int64 // time of the beginning of main
	exit  int64 // time of the first exit
	cmd   *exec.Cmd
	stdin io.Closer
}

func startFloor(ctx context.Context, bin string, memory *os.File) (*floorRun, error) {
	r := &floorRun{cmd: exec.CommandContext(ctx, bin)}
	r.cmd.ExtraFiles = []*os.File{memory} // descriptor 3
	r.cmd.Stderr = os.Stderr
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if r.stdin, err = r.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if r.begin, err = lab.Now(); err != nil {
		return nil, err
	}
	if err := r.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the floor: %w", err)
	}
	if _, err := fmt.Fscan(stdout, &r.start, &r.exit); err != nil {
		return nil, errors.Join(fmt.Errorf("output of %s: %w", bin, err), r.end())
	}
	return r, nil
}

// end lets the process exit and waits for it.
func (r *floorRun) end() error { return errors.Join(r.stdin.Close(), r.cmd.Wait()) }

func (f *floor) table() *report.Table {
	t := &report.Table{Title: "The floor: VM, memory slot, irqchip, vCPU, first exit; one process each",
		Columns: []report.Column{{Name: "clock"}, {Name: "runs"}, {Name: "p50 ms", Digits: 2}, {Name: "p99 ms", Digits: 2}}}
	for _, r := range []struct {
		name string
		ms   []float64
	}{{"work only (main → first exit)", f.work}, {"with its process (start → first exit)", f.process}} {
		t.Add(r.name, len(r.ms), report.Quantile(r.ms, 0.5), report.Quantile(r.ms, 0.99))
	}
	t.Notef("the processes run one after another")
	return t
}
