// Package fanout tries several ways to continue from one state of a sandbox. It branches the
// sandbox once, forks children of the branch, and runs a command in each child. Then it keeps all
// children, the first child whose command succeeds, the child with the highest score of a judge, or
// none. It can also promote the winner: the sandbox that was branched, the source, then continues
// from the winner's state.
//
// It is an operation on a tenancy.View and keeps no state. The fork is provisional until the end of
// the operation: if the daemon dies before that, the next daemon kills the children and removes the
// branch. The caller passes commands to guests and bounds the number of children.
package fanout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/failure"
	"github.com/forkd/forkd/internal/host/sandbox"
	"github.com/forkd/forkd/internal/host/unique"
	"github.com/forkd/forkd/internal/proto/netproto"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Keep says which children stay.
type Keep string

const (
	All   Keep = "all"
	First Keep = "first" // the first child whose command exits with 0; the other children are then killed
	Best  Keep = "best"  // the child with the highest score of the judge
	None  Keep = "none"
)

// Request describes a try. A valid Request has at least one command. If Keep is Best, it must have
// a judge; if Keep is First, it must not have a judge. Promote requires First or Best.
type Request struct {
	Commands []agentclient.ExecRequest // one for each child
	Judge    *agentclient.ExecRequest  // command whose last line on stdout is the score; nil: no judge
	Keep     Keep
	Promote  bool          // the source takes over the winner's state, and no child stays
	Mode     vm.BranchMode // mode of the branch of the source, and of the winner's branch for a promotion
	Labels   map[string]string
	Hold     netproto.Hold // which requests of the children are held
}

// Variables that Run adds to the environment of commands and judges.
const (
	indexEnv = "FORKD_TRY_INDEX"     // number of the child, from 0
	exitEnv  = "FORKD_TRY_EXIT_CODE" // only for judges: exit code of the command, or -1 if it did not exit by itself
)

// Started describes the children, in the order of the commands.
type Started struct {
	Sandboxes []sandbox.Info
	Pause     time.Duration // how long the source was paused
	Ready     time.Duration // time from the request to fork until all children had confirmed
}

// Result is the result of one child.
type Result struct {
	Index    int
	ID       string
	Exec     agentclient.ExecResult
	Err      error // reason why Exec is not valid; nil: it is valid
	Took     time.Duration
	Stats    *sandbox.Stats // statistics after the command; nil: unknown
	Score    *float64       // score by the judge; nil: the judge gave none, or did not run
	Rejected error          // reason why the judge gave no score; nil: it gave one, or did not run

	Effects netproto.Effects // requests of the command that were held; empty if Request.Hold is off
}

// succeeded reports whether the command exited with 0.
func (r *Result) succeeded() bool {
	return r.Err == nil && r.Exec.Outcome == agentclient.Exited && r.Exec.ExitCode == 0
}

// Stopped reports whether the command was stopped because another child had won.
func (r *Result) Stopped() bool { return errors.Is(r.Err, errBeaten) }

// Outcome says which child has won, and which children stay.
type Outcome struct {
	Winner   int                     // index of the first or best child; -1: no winner
	Kept     []string                // ids of the children that stay
	Promoted *sandbox.RollbackResult // the source after the promotion; nil: no promotion

	discard func() error // kills the children in Kept; nil: there are none
}

// Discard kills the children that were kept. It is for a caller that cannot tell its client which
// children were kept.
func (o *Outcome) Discard() error {
	if o.discard == nil {
		return nil
	}
	return o.discard()
}

// Observer receives the children, and then each result when its child has finished. Run may call Ended
// concurrently.
type Observer interface {
	Started(Started)
	Ended(Result)
}

// Host is the part of a tenancy.View that Run uses.
type Host interface {
	ForkSandbox(ctx context.Context, id string, mode sandbox.BranchRequest, req sandbox.ForkRequest) (sandbox.ForkResult,
		sandbox.BranchResult, error)
	Promote(ctx context.Context, id, from string, req sandbox.BranchRequest, strict unique.Strict) (
		sandbox.RollbackResult, error)
	Stats(ctx context.Context, id string) (sandbox.Stats, error)
	Effects(ctx context.Context, id string) (netproto.Effects, error)
}

// Exec runs a command in a sandbox, as agentclient.Client.Exec does. If sink is set, Exec passes
// the output to sink instead of returning it.
type Exec func(ctx context.Context, id string, req agentclient.ExecRequest,
	sink func(agentclient.Stream, []byte) error) (agentclient.ExecResult, error)

// try is one call of Run.
type try struct {
	host    Host
	exec    Exec
	req     Request
	o       Observer
	forked  sandbox.ForkResult
	results []Result

	mu sync.Mutex
	// +checklocks:mu
	first int // index of the first child whose command has succeeded; -1: none
	// +checklocks:mu
	panicked error // a *PanicError; nil: no child's goroutine has panicked
}

// errBeaten is the reason why the commands of the losers were stopped.
var errBeaten = errors.New("stopped, because another child had succeeded first")

// PanicError says that the code that ran a command has panicked. Its message has no details,
// because details may come from a guest.
type PanicError struct {
	Value any
	Stack string
}

func (e *PanicError) Error() string { return "internal error: the daemon's log has the details" }

// KeptError says that the promotion has failed. The winner was not killed, so its work is not lost.
type KeptError struct {
	ID  string // id of the winner
	Err error
}

func (e *KeptError) Error() string {
	return fmt.Sprintf("%v; the winner %s is kept: promote it again, or delete it", e.Err, e.ID)
}

func (e *KeptError) Unwrap() error { return e.Err }

// Run tries the commands of a request in children of a sandbox. The source keeps running. If Run
// returns an error, or if ctx ends before a decision, no child and no branch stays, and the source
// is unchanged. A failed promotion is an exception: the error is a *KeptError and the winner stays.
// If the promotion fails halfway, the source is lost (see sandbox.Manager.Rollback).
func Run(ctx context.Context, host Host, exec Exec, source string, req Request, o Observer) (out Outcome, err error) {
	t := &try{host: host, exec: exec, req: req, o: o, results: make([]Result, len(req.Commands)), first: -1}
	mode := sandbox.BranchRequest{Mode: req.Mode}
	forked, b, err := host.ForkSandbox(ctx, source, mode, sandbox.ForkRequest{N: len(req.Commands), Labels: req.Labels,
		Hold: req.Hold, Provisional: true})
	if err != nil {
		return Outcome{Winner: -1}, err
	}
	t.forked = forked
	defer func() {
		settled := t.settle(&out)
		if err != nil && len(out.Kept) > 0 {
			err = &KeptError{ID: out.Kept[0], Err: err}
		}
		err = errors.Join(err, settled)
		out.discard = func() error { return t.killBut(nil) }
	}()
	o.Started(Started{Sandboxes: forked.Sandboxes, Pause: time.Duration(b.Figure.Pause), Ready: forked.ForkWall})
	if err := cmp.Or(t.runAll(ctx), ctx.Err()); err != nil {
		return Outcome{Winner: -1}, err
	}
	out.Winner = t.winner()
	switch {
	case req.Keep == All:
		for _, s := range forked.Sandboxes {
			out.Kept = append(out.Kept, s.ID)
		}
	case out.Winner >= 0 && req.Promote:
		child := forked.Sandboxes[out.Winner].ID
		r, err := t.promote(ctx, source, child)
		if err != nil {
			if ctx.Err() == nil && !isMissing(err, child) {
				out.Kept = []string{child}
			}
			return out, err
		}
		out.Promoted = &r
	case out.Winner >= 0:
		out.Kept = []string{forked.Sandboxes[out.Winner].ID}
	}
	return out, nil
}

// runAll runs the commands and judges of all children concurrently. If one of their goroutines
// panics, runAll stops all commands and returns an error, so that the daemon does not crash.
func (t *try) runAll(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var children sync.WaitGroup
	for i := range t.results {
		children.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					err := &PanicError{p, string(debug.Stack())}
					t.mu.Lock()
					t.panicked = err
					t.mu.Unlock()
					stop(err)
				}
			}()
			r := &t.results[i]
			*r = t.run(ctx, i)
			if t.req.Keep == First && r.succeeded() && t.isFirst(i) {
				stop(errBeaten)
			}
			t.o.Ended(*r)
		})
	}
	children.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.panicked
}

// isFirst records that the command of child i has succeeded, and reports whether no other command has
// succeeded before.
func (t *try) isFirst(i int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.first < 0 {
		t.first = i
	}
	return t.first == i
}

// run runs the command of child i, and then the judge.
func (t *try) run(ctx context.Context, i int) Result {
	id := t.forked.Sandboxes[i].ID
	r := Result{Index: i, ID: id}
	start := time.Now()
	r.Exec, r.Err = t.exec(ctx, id, with(t.req.Commands[i], indexEnv, strconv.Itoa(i)), nil)
	r.Took = time.Since(start)
	if r.Err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, errBeaten) {
			r.Err = cause
		}
		return r
	}
	if s, err := t.host.Stats(ctx, id); err == nil {
		r.Stats = &s
	}
	if t.req.Hold.On() {
		r.Effects, _ = t.host.Effects(ctx, id) // the list is empty if the sandbox is already gone
	}
	if t.req.Judge != nil && r.Exec.Outcome != agentclient.NotFound && r.Exec.Outcome != agentclient.NotExecutable {
		r.Score, r.Rejected = t.judge(ctx, &r)
	}
	return r
}

// with(req, name, value) returns a copy of req that has one more environment variable. If req
// already has a variable with the same name, the copy keeps the value in req.
func with(req agentclient.ExecRequest, name, value string) agentclient.ExecRequest {
	env := map[string]string{name: value}
	for n, v := range req.Env {
		env[n] = v
	}
	req.Env = env
	return req
}

// lastOutput is the number of bytes that are kept from the end of a judge's stdout, and from the
// end of its stderr.
const lastOutput = 4 << 10

// judge runs the judge in the child of r, and returns the number in the last line of the judge's output.
func (t *try) judge(ctx context.Context, r *Result) (*float64, error) {
	req := with(*t.req.Judge, indexEnv, strconv.Itoa(r.Index))
	code := -1
	if r.Exec.Outcome == agentclient.Exited {
		code = r.Exec.ExitCode
	}
	req = with(req, exitEnv, strconv.Itoa(code))
	var stdout, stderr tail
	res, err := t.exec(ctx, r.ID, req, func(s agentclient.Stream, p []byte) error {
		if s == agentclient.Stdout {
			stdout.add(p)
		} else {
			stderr.add(p)
		}
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case res.Outcome != agentclient.Exited:
		return nil, fmt.Errorf("%s%s", res.Status, stderr.quote())
	case res.ExitCode != 0:
		return nil, fmt.Errorf("exit code %d%s", res.ExitCode, stderr.quote())
	}
	line := stdout.lastLine()
	score, err := strconv.ParseFloat(line, 64)
	if err != nil || math.IsNaN(score) || math.IsInf(score, 0) {
		return nil, fmt.Errorf("the last line of its output is %.100q: want a number%s", line, stderr.quote())
	}
	return &score, nil
}

// tail keeps the last bytes of an output.
type tail struct{ kept []byte }

func (t *tail) add(p []byte) {
	t.kept = append(t.kept, p[max(0, len(p)-lastOutput):]...)
	t.kept = t.kept[max(0, len(t.kept)-lastOutput):]
}

// lastLine returns the last line that is not empty, without white space around it.
func (t *tail) lastLine() string {
	text := strings.TrimSpace(string(t.kept))
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}

// quote returns the last line in the form that ends an error message, or "" if all lines are empty.
func (t *tail) quote() string {
	if line := t.lastLine(); line != "" {
		return fmt.Sprintf(": %.200q", strings.ToValidUTF8(line, "\uFFFD"))
	}
	return ""
}

// winner returns the index of the winner, or -1.
func (t *try) winner() int {
	best := -1
	switch t.req.Keep {
	case First:
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.first
	case Best:
		for i := range t.results {
			if s := t.results[i].Score; s != nil && (best < 0 || *s > *t.results[best].Score) {
				best = i
			}
		}
	}
	return best
}

// isMissing reports whether err says that the client of the try does not see a child.
func isMissing(err error, child string) bool {
	var missing *sandbox.NotFoundError
	return errors.As(err, &missing) && missing.ID == child
}

// If the host has no RAM for a promotion yet, promote tries again after promoteAgain, until
// promoteLimit has passed.
const (
	promoteAgain = time.Second
	promoteLimit = time.Minute
)

// promote makes the source continue from the state of a child. If the host is busy with other
// branches, promote waits for its turn. If earlier branches still take the RAM, promote tries again
// for some time.
func (t *try) promote(ctx context.Context, source, child string) (sandbox.RollbackResult, error) {
	for deadline := time.Now().Add(promoteLimit); ; {
		r, err := t.host.Promote(ctx, source, child, sandbox.BranchRequest{Mode: t.req.Mode, Queue: true},
			unique.AsBefore)
		if err == nil || !admit.IsBusy(err) || time.Now().After(deadline) {
			return r, err
		}
		select {
		case <-ctx.Done():
			return r, ctx.Err()
		case <-time.After(promoteAgain):
		}
	}
}

// atOnce is the maximum number of children that are killed at a time.
const atOnce = 8

// settle kills the children that do not stay, and then makes the fork final. Until the fork is
// final, a restarted daemon would kill all children.
func (t *try) settle(out *Outcome) error {
	err := t.killBut(out.Kept)
	if final := t.forked.Keep(); final != nil {
		out.Kept = nil
		err = errors.Join(err, final, t.killBut(nil))
	}
	return err
}

func (t *try) killBut(kept []string) error {
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, s := range t.forked.Sandboxes {
		if !slices.Contains(kept, s.ID) {
			group.Go(func() error { return t.kill(s.ID) })
		}
	}
	return group.Wait()
}

// kill kills a child. It does nothing if the child is already gone, or has become the sandbox of a
// workspace. kill works even if the client of the try no longer sees the child, because another
// client has changed the child's labels.
func (t *try) kill(id string) error {
	err := t.forked.Kill(id)
	var gone *sandbox.NotFoundError
	var held *failure.HeldError
	if errors.As(err, &gone) || errors.As(err, &held) {
		return nil
	}
	return err
}
