package fanout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/backlog"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/netproto"
)

// fake is a Host whose forks start no VMs.
type fake struct {
	mu       sync.Mutex
	living   map[string]bool // ids of the children that have not been killed
	final    bool            // the fork is not provisional any more
	asked    sandbox.ForkRequest
	promoted []string
	queued   bool // the latest promotion was asked to wait for its turn
	promote  error
	keep     error
}

func (f *fake) Effects(_ context.Context, id string) (netproto.Effects, error) {
	return netproto.Effects{List: []netproto.Effect{{URL: id}}}, nil
}

func (f *fake) ForkSandbox(_ context.Context, _ string, _ sandbox.BranchRequest, req sandbox.ForkRequest) (
	r sandbox.ForkResult, b sandbox.BranchResult, err error) {
	f.asked, f.living = req, map[string]bool{}
	for i := range req.N {
		id := fmt.Sprintf("sb-%d", i)
		f.living[id] = true
		r.Sandboxes = append(r.Sandboxes, sandbox.Info{ID: id})
	}
	r.Kill = f.kill
	r.Keep = func() error {
		f.final = f.keep == nil
		return f.keep
	}
	return r, b, nil
}

func (f *fake) Promote(_ context.Context, id, from string, b sandbox.BranchRequest, _ unique.Strict) (
	sandbox.RollbackResult, error) {
	f.queued = b.Queue
	f.promoted = append(f.promoted, from+" into "+id)
	err := f.promote
	f.promote = nil
	return sandbox.RollbackResult{}, err
}

func (f *fake) Stats(context.Context, string) (sandbox.Stats, error) { return sandbox.Stats{}, nil }

func (f *fake) kill(id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.living[id] {
		return &sandbox.NotFoundError{ID: id}
	}
	delete(f.living, id)
	return nil
}

func (f *fake) left() []string { return slices.Sorted(maps.Keys(f.living)) }

// run simulates a command. "exit N" exits with N, "wait" waits until it is stopped, "fail" returns an error,
// "missing" does not exist, "panic" panics, and "print TEXT" prints TEXT.
func run(ctx context.Context, _ string, req agentclient.ExecRequest,
	sink func(agentclient.Stream, []byte) error) (r agentclient.ExecResult, err error) {
	r.Outcome = agentclient.Exited
	word, rest, _ := strings.Cut(req.Args[0], " ")
	switch word {
	case "wait":
		<-ctx.Done()
		return r, ctx.Err()
	case "panic":
		panic("a wrong answer")
	case "fail":
		return r, errors.New("the guest is gone")
	case "missing":
		r.Outcome = agentclient.NotFound
	case "exit":
		_, err = fmt.Sscan(rest, &r.ExitCode)
	case "print":
		rest = strings.ReplaceAll(rest, "INDEX", req.Env[indexEnv])
		err = sink(agentclient.Stdout, []byte(strings.ReplaceAll(rest, "CODE", req.Env[exitEnv])))
	}
	return r, err
}

// seen collects results.
type seen struct {
	mu      sync.Mutex
	started Started
	results map[int]Result
	ended   func()
}

func (s *seen) Started(started Started) { s.started = started }

func (s *seen) Ended(r Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.results == nil {
		s.results = map[int]Result{}
	}
	s.results[r.Index] = r
	if s.ended != nil {
		s.ended()
	}
}

func commands(lines ...string) (all []agentclient.ExecRequest) {
	for _, line := range lines {
		all = append(all, agentclient.ExecRequest{Args: []string{line}})
	}
	return all
}

func TestRun(t *testing.T) {
	for _, c := range []struct {
		name     string
		commands []agentclient.ExecRequest
		judge    string
		keep     Keep
		promote  bool
		winner   int
		left     []string
	}{
		{"none", commands("exit 0", "exit 1"), "", None, false, -1, nil},
		{"all", commands("exit 0", "exit 1", "fail"), "", All, false, -1, []string{"sb-0", "sb-1", "sb-2"}},
		{"the first that succeeds", commands("exit 1", "wait", "exit 0", "missing"), "", First, false, 2, []string{"sb-2"}},
		{"no first", commands("exit 1", "fail", "missing"), "", First, false, -1, nil},
		{"the best", commands("exit 0", "exit 3", "missing", "exit 0"), "print x\n CODE \n", Best, false, 1,
			[]string{"sb-1"}},
		{"the first of equals", commands("exit 0", "exit 0"), "print 5", Best, false, 0, []string{"sb-0"}},
		{"no number", commands("exit 0"), "print 5 apples", Best, false, -1, nil},
		{"not a number", commands("exit 0"), "print NaN", Best, false, -1, nil},
		{"a judge that fails", commands("exit 0"), "exit 1", Best, false, -1, nil},
		{"promoted", commands("exit 0", "exit 0"), "print INDEX", Best, true, 1, nil},
		{"nothing to promote", commands("exit 1"), "", First, true, -1, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, o := &fake{}, &seen{}
			req := Request{Commands: c.commands, Keep: c.keep, Promote: c.promote}
			if c.judge != "" {
				req.Judge = &commands(c.judge)[0]
			}
			out, err := Run(t.Context(), f, run, "source", req, o)
			if err != nil || out.Winner != c.winner || !slices.Equal(f.left(), c.left) || !slices.Equal(out.Kept, c.left) {
				t.Errorf("%+v, %v; left %v, want %d and %v", out, err, f.left(), c.winner, c.left)
			}
			if err := out.Discard(); err != nil || len(f.left()) != 0 {
				t.Errorf("left after Discard: %v, %v", f.left(), err)
			}
			n := len(c.commands)
			if !f.asked.Provisional || !f.final || len(o.results) != n || len(o.started.Sandboxes) != n {
				t.Errorf("fork %+v, final %v, %d results of %d", f.asked, f.final, len(o.results), n)
			}
			promoted := len(f.promoted) == 1
			if promoted != (c.promote && c.winner >= 0) || promoted != (out.Promoted != nil) {
				t.Errorf("promoted %v", f.promoted)
			}
		})
	}
}

// With a hold, each result lists the requests of its child that were held.
func TestEffectsOfTheChildren(t *testing.T) {
	hold, err := netproto.ParseHold([]string{"a.b"}, "record")
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []netproto.Hold{hold, {}} {
		f, o := &fake{}, &seen{}
		if _, err := Run(t.Context(), f, run, "source", Request{Commands: commands("exit 0", "exit 1"), Keep: None, Hold: h},
			o); err != nil {
			t.Fatal(err)
		}
		for _, r := range o.results {
			if got := r.Effects.List; h.On() != (len(got) == 1 && got[0].URL == r.ID) || !f.asked.Hold.Equal(&h) {
				t.Errorf("hold %v: %+v, asked for %v", h, r, f.asked.Hold)
			}
		}
	}
}

// If a command was still running when another child won, it is reported as stopped.
func TestLosersAreStopped(t *testing.T) {
	f, o := &fake{}, &seen{}
	req := Request{Commands: commands("wait", "exit 0"), Keep: First}
	if _, err := Run(t.Context(), f, run, "source", req, o); err != nil {
		t.Fatal(err)
	}
	if loser, winner := o.results[0], o.results[1]; !loser.Stopped() || winner.Stopped() || winner.Err != nil {
		t.Errorf("%+v and %+v", loser, winner)
	}
}

// If the client leaves or an error occurs, no child stays.
func TestNothingStays(t *testing.T) {
	busy := &backlog.Error{}
	promotes := Request{Commands: commands("exit 0"), Keep: First, Promote: true}
	for name, c := range map[string]struct {
		f      *fake
		req    Request
		leaves bool
	}{
		"the client leaves":        {&fake{}, Request{Commands: commands("exit 0", "wait"), Keep: All}, true},
		"the child is not visible": {&fake{promote: &sandbox.NotFoundError{ID: "sb-0"}}, promotes, false},
		"the host has no place":    {&fake{promote: busy}, promotes, true},
		"a command panics":         {&fake{}, Request{Commands: commands("panic", "wait", "exit 0"), Keep: First}, false},
		"a panic and none stays":   {&fake{}, Request{Commands: commands("wait", "panic"), Keep: None}, false},
		"the children cannot stay": {&fake{keep: errors.New("no")}, Request{Commands: commands("exit 0"), Keep: All}, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			o := &seen{}
			if c.leaves {
				o.ended = cancel
			}
			out, err := Run(ctx, c.f, run, "source", c.req, o)
			if err == nil || len(c.f.left()) != 0 || len(out.Kept) != 0 {
				t.Errorf("%+v, %v; left %v", out, err, c.f.left())
			}
			var p *PanicError
			if panics := strings.Contains(name, "panic"); errors.As(err, &p) != panics {
				t.Errorf("error %v", err)
			} else if panics && (p.Value != "a wrong answer" || !strings.Contains(p.Stack, "fanout.run")) {
				t.Errorf("panic %v\n%s", p.Value, p.Stack)
			}
		})
	}
}

// If the promotion fails, the winner stays, and the error names it.
func TestTheWinnerStays(t *testing.T) {
	no := errors.New("no")
	f := &fake{promote: no}
	req := Request{Commands: commands("exit 1", "exit 0"), Keep: First, Promote: true}
	out, err := Run(t.Context(), f, run, "source", req, &seen{})
	want := []string{"sb-1"}
	var kept *KeptError
	if !errors.As(err, &kept) || kept.ID != want[0] || !errors.Is(err, no) ||
		!strings.Contains(err.Error(), "sb-1 is kept") {
		t.Error(err)
	}
	if !slices.Equal(out.Kept, want) || !slices.Equal(f.left(), want) || !f.final || out.Promoted != nil {
		t.Errorf("%+v; left %v, final %v", out, f.left(), f.final)
	}
	f = &fake{promote: no, keep: errors.New("no disk")}
	out, err = Run(t.Context(), f, run, "source", req, &seen{})
	if err == nil || len(f.left()) != 0 || len(out.Kept) != 0 || strings.Contains(err.Error(), "is kept") {
		t.Errorf("a fork that cannot be made final: %+v, %v; left %v", out, err, f.left())
	}
}

// A promotion waits for its turn among the branches. If the host has no RAM for the promotion, the
// promotion is repeated.
func TestPromotionWaits(t *testing.T) {
	f := &fake{promote: &backlog.Error{}}
	req := Request{Commands: commands("exit 0"), Keep: First, Promote: true}
	out, err := Run(t.Context(), f, run, "source", req, &seen{})
	if err != nil || out.Promoted == nil || len(f.promoted) != 2 || !f.queued {
		t.Errorf("%+v, %v; promoted %v", out, err, f.promoted)
	}
}

// Only the end of a judge's output is kept.
func TestTail(t *testing.T) {
	var out tail
	for range 1000 {
		out.add([]byte(strings.Repeat("x", 999) + "\n"))
	}
	out.add([]byte("1.5\n\n"))
	if out.lastLine() != "1.5" || cap(out.kept) > 4*lastOutput {
		t.Errorf("%q, %d bytes", out.lastLine(), cap(out.kept))
	}
}
