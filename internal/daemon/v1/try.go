package v1

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/audit"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/fanout"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/tenancy"
	"github.com/forkd/forkd/internal/proto/vm"
)

// Time limits of the commands and judges of a try.
const (
	defaultTry = 10 * time.Minute
	maxTryTime = 24 * time.Hour
)

// Outcomes of tries, in metrics.
const (
	triedOK     = "ok"
	triedNone   = "no_winner" // no command succeeded, or no child got a score
	triedFailed = "failed"
	triedLeft   = "client_left"
)

// try forks children of a sandbox and runs a command in each of them. It answers with the results
// as lines of JSON. If the client leaves before the last line, or if the daemon stops, the children
// are killed.
func (a *api) try(w http.ResponseWriter, r *http.Request) error {
	var ask apiv1.TryRequest
	if err := face.ReadJSON(w, r, &ask); err != nil {
		return err
	}
	req, err := checkTry(&ask)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(a.Face.Stopping, cancel)()
	out := newLines(w, a.Face.Limits.Stall)
	stop := out.keepAlive(apiv1.TryEvent{Keepalive: true}, a.Face.Limits.Keepalive, cancel)
	view := a.view(r)
	o := &tryObserver{out, cancel, audit.From(r.Context())}
	done, err := fanout.Run(ctx, view, a.execIn(r), r.PathValue("id"), req, o)
	stop()
	if p := (*fanout.PanicError)(nil); errors.As(err, &p) {
		a.Face.Log.Error("panic in a try", "sandbox", r.PathValue("id"), "error", p.Value, "stack", p.Stack)
	}
	left := r.Context().Err() // read before the last line is sent, because the client may leave after it
	if err == nil {
		err = left
	}
	if err != nil && len(done.Kept) == 0 && left == nil && a.Face.Stopping.Err() != nil {
		err = face.NewError(http.StatusServiceUnavailable, "the daemon is ending: no child is left")
	}
	switch {
	case err == nil:
		left = out.send(apiv1.TryEvent{End: a.tryEnd(view, req.Keep, done)})
		err = left
	case !out.hasBegun():
		a.tried(req.Keep, done, err, left != nil)
		return err
	default: // send fails only if the client has left
		left = cmp.Or(left, out.send(apiv1.TryEvent{Error: err.Error(), Status: face.StatusOf(err),
			Code: face.ProblemOf(err).Code}))
	}
	a.tried(req.Keep, done, err, left != nil)
	if left != nil { // the client does not know which children stay, and can receive no error
		_ = done.Discard()
	}
	return nil
}

// tried counts a try. If left is true, the client left before the answer's last line.
func (a *api) tried(keep fanout.Keep, done fanout.Outcome, err error, left bool) {
	result := triedOK
	switch {
	case left:
		result = triedLeft
	case err != nil:
		result = triedFailed
	case done.Winner < 0 && (keep == fanout.First || keep == fanout.Best):
		result = triedNone
	}
	if a.Tried != nil {
		a.Tried(result)
	}
}

// checkTry checks the request of a client and converts it.
func checkTry(ask *apiv1.TryRequest) (req fanout.Request, err error) {
	if (len(ask.Args) == 0) == (len(ask.Each) == 0) {
		return req, invalid.Errorf("args", "want either args and n, or each")
	}
	commands := ask.Each
	switch {
	case len(ask.Each) > 0 && ask.N != 0 && ask.N != len(ask.Each):
		return req, invalid.Errorf("n", "%d: each has %d commands: omit n", ask.N, len(ask.Each))
	case len(ask.Each) > apiv1.MaxTry:
		return req, invalid.Errorf("each", "%d commands: want at most %d", len(ask.Each), apiv1.MaxTry)
	case len(ask.Each) == 0 && (ask.N < 1 || ask.N > apiv1.MaxTry):
		return req, invalid.Errorf("n", "%d: want 1 to %d", ask.N, apiv1.MaxTry)
	case len(ask.Each) == 0:
		commands = slices.Repeat([][]string{ask.Args}, ask.N)
	}
	one := func(field string, args []string) (run agentclient.ExecRequest, err error) {
		if err := checkArgs(field, args); err != nil {
			return run, err
		}
		run, err = checkExec(&apiv1.ExecRequest{Args: args, Env: ask.Env, Cwd: ask.Cwd, User: ask.User,
			TimeoutSecs: ask.TimeoutSecs}, times{defaultTry, maxTryTime})
		run.MaxOutput = apiv1.MaxTryOutput
		return run, err
	}
	for i, args := range commands {
		field := "args"
		if len(ask.Each) > 0 {
			field = fmt.Sprintf("each[%d]", i)
		}
		run, err := one(field, args)
		if err != nil {
			return req, err
		}
		req.Commands = append(req.Commands, run)
	}
	if len(ask.Judge) > 0 {
		judge, err := one("judge", ask.Judge)
		if err != nil {
			return req, err
		}
		req.Judge = &judge
	}
	req.Promote, req.Mode, req.Labels = ask.Promote, vm.BranchLive, ask.Labels
	if ask.Mode != "" {
		if req.Mode, err = parseMode(ask.Mode); err != nil {
			return req, err
		}
	}
	if req.Hold, err = holdOf(ask.HoldEffects); err != nil {
		return req, err
	}
	req.Keep, err = checkKeep(ask)
	return req, err
}

// checkKeep returns which children stay, and checks that the other fields of the request are valid
// with this choice.
func checkKeep(ask *apiv1.TryRequest) (fanout.Keep, error) {
	keep := fanout.Keep(ask.Keep)
	switch {
	case keep != "":
	case len(ask.Judge) > 0:
		keep = fanout.Best
	case ask.Promote:
		keep = fanout.First
	default:
		keep = fanout.None
	}
	switch keep {
	case fanout.All, fanout.None:
		if ask.Promote {
			return keep, invalid.Errorf("promote", "only with keep first or best, which name a winner")
		}
	case fanout.First:
		if len(ask.Judge) > 0 {
			return keep, invalid.Errorf("judge", "excludes keep first, which stops the other commands")
		}
	case fanout.Best:
		if len(ask.Judge) == 0 {
			return keep, invalid.Errorf("judge", "missing: keep best wants a command that prints a score")
		}
	default:
		return keep, invalid.Errorf("keep", "%q: want all, first, best or none", ask.Keep)
	}
	return keep, nil
}

// execIn returns a function that runs commands in sandboxes for the request r. Each command takes a
// place of its own in the gate for requests to guests.
func (a *api) execIn(r *http.Request) fanout.Exec {
	const op = "exec in"
	return func(ctx context.Context, id string, run agentclient.ExecRequest,
		sink func(agentclient.Stream, []byte) error) (res agentclient.ExecResult, err error) {
		leave, err := a.Face.Guests.Enter(face.ClientOf(r), id)
		if err != nil {
			return res, err
		}
		defer leave()
		err = a.view(r).Use(ctx, id, op, func(ctx context.Context, dial agentclient.DialFunc) (err error) {
			guest := agentclient.New(dial)
			guest.Keep = face.ShareOf(r).Keep
			if sink != nil {
				res, err = guest.ExecStream(ctx, run, sink)
			} else {
				res, err = guest.Exec(ctx, run)
			}
			return err
		})
		if err == nil && res.Outcome == agentclient.TimedOut {
			err = a.paused(r, id, op)
		}
		return res, err
	}
}

// tryObserver sends the results of a try to its client.
type tryObserver struct {
	out  *lines
	gone func()       // called if the client has left
	log  *audit.Entry // lists all children, because their commands have effects even if no child stays
}

func (o *tryObserver) send(e apiv1.TryEvent) {
	if o.out.send(e) != nil {
		o.gone()
	}
}

// Started implements fanout.Observer.
func (o *tryObserver) Started(s fanout.Started) {
	e := &apiv1.TryStarted{PauseMS: millis(s.Pause), ForkWallMS: millis(s.Ready)}
	for _, box := range s.Sandboxes {
		e.Sandboxes = append(e.Sandboxes, box.ID)
	}
	o.log.Sandboxes = e.Sandboxes
	o.send(apiv1.TryEvent{Started: e})
}

// Ended implements fanout.Observer.
func (o *tryObserver) Ended(r fanout.Result) {
	e := &apiv1.TryResult{Index: r.Index, SandboxID: r.ID, MS: millis(r.Took), Score: r.Score}
	if r.Err != nil {
		e.Error, e.Stopped = r.Err.Error(), r.Stopped()
	} else {
		e.Exec = new(execResult(r.Exec))
	}
	if s := r.Stats; s != nil {
		e.PrivateKiB = new(s.Memory.TotalPrivate())
		e.MemoryKiB, e.DiskKiB = new(s.Since.Memory>>10), new(s.Since.Disk>>10)
	}
	if r.Rejected != nil {
		e.JudgeError = r.Rejected.Error()
	}
	if len(r.Effects.List) > 0 {
		e.Effects = effectsOf(r.Effects.List)
	}
	e.EffectsMissed = r.Effects.Missed
	o.send(apiv1.TryEvent{Result: e})
}

// tryEnd describes the outcome of a try to its client.
func (a *api) tryEnd(view *tenancy.View, keep fanout.Keep, done fanout.Outcome) *apiv1.TryEnd {
	end := &apiv1.TryEnd{Keep: string(keep), Kept: []apiv1.Sandbox{}}
	if done.Winner >= 0 {
		end.Winner = &done.Winner
	}
	for _, id := range done.Kept {
		if i, err := view.Sandbox(id); err == nil { // if this fails, another client has killed it
			end.Kept = append(end.Kept, a.sandboxOf(view, i))
		}
	}
	if p := done.Promoted; p != nil {
		end.Promoted = new(a.rolledBackOf(view, *p))
	}
	return end
}
