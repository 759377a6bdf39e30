package lab

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/forkd/forkd/bench/internal/report"
)

// Program has the common parts of a benchmark: flags, start and end.
type Program struct {
	name   string
	begin  time.Time
	budget time.Duration
	out    string
}

// NewProgram declares the flags that all benchmarks have. The text leftOut describes the
// measurements that are omitted when the time of -budget is used up.
func NewProgram(name string, budget time.Duration, leftOut string) *Program {
	p := &Program{name: name, begin: time.Now()}
	flag.DurationVar(&p.budget, "budget", budget, "after this time "+leftOut)
	flag.StringVar(&p.out, "o", "", "file for the figures as JSON; empty: none")
	return p
}

// Main parses and checks the flags, measures, writes the report, and exits. The exit code is 2 if a
// flag is wrong, ExitUnfit if this host cannot run the guests, and 1 after any other error.
func (p *Program) Main(check func() error, measure func(context.Context) (*report.Report, error)) {
	flag.Parse()
	err := check()
	if flag.NArg() > 0 {
		err = errors.Join(err, fmt.Errorf("%q: there are no arguments", flag.Args()))
	}
	if err != nil {
		p.Progress("%v", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, err := measure(ctx)
	if err == nil {
		err = p.write(r)
	}
	if err != nil {
		p.Progress("%v", err)
		os.Exit(exitCode(err))
	}
}

func (p *Program) write(r *report.Report) error {
	if _, err := r.WriteTo(os.Stdout); err != nil {
		return err
	}
	if p.out == "" {
		return nil
	}
	return r.Save(p.out)
}

// Report returns a new report of this program.
func (p *Program) Report(host report.Host) *report.Report {
	return &report.Report{Bench: p.name, Time: p.begin.UTC(), Host: host}
}

// Progress prints a message about the progress to standard error.
func (p *Program) Progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, p.name+": "+format+"\n", args...)
}

// TimeIsUp reports whether the time of -budget is used up.
func (p *Program) TimeIsUp() bool { return time.Now().After(p.Deadline()) }

// Rounds calls round() at least once and at most n times. It stops earlier if the time of -budget
// is used up.
func (p *Program) Rounds(n int, round func() error) error {
	for i := range n {
		if i > 0 && p.TimeIsUp() {
			p.Progress("the time of -budget is up after %d rounds", i)
			break
		}
		p.Progress("round %d of %d", i+1, n)
		if err := round(); err != nil {
			return err
		}
	}
	return nil
}

// Deadline returns the time when -budget is used up.
func (p *Program) Deadline() time.Time { return p.begin.Add(p.budget) }

// ErrUnfit means that KVM on this host cannot run Linux guests. Programs that need them exit with
// ExitUnfit.
var ErrUnfit = errors.New("KVM of this host runs no Linux guest: use the emulated host (scripts/bench does)")

// ExitUnfit is the exit code of a benchmark whose guests this host cannot run.
const ExitUnfit = 3

func exitCode(err error) int {
	if errors.Is(err, ErrUnfit) {
		return ExitUnfit
	}
	return 1
}

// Numbers is a flag whose value is a list of numbers, separated by commas.
type Numbers struct {
	List     []int
	Min, Max int // bounds of each number
}

// String implements flag.Value.
func (n *Numbers) String() string {
	text := make([]string, len(n.List))
	for i, v := range n.List {
		text[i] = strconv.Itoa(v)
	}
	return strings.Join(text, ",")
}

// Set implements flag.Value. An empty text means an empty list.
func (n *Numbers) Set(text string) error {
	n.List = nil
	for field := range strings.SplitSeq(text, ",") {
		if text == "" {
			break
		}
		v, err := strconv.Atoi(field)
		if err != nil || v < n.Min || v > n.Max {
			return fmt.Errorf("want numbers from %d to %d with commas between them", n.Min, n.Max)
		}
		n.List = append(n.List, v)
	}
	return nil
}
