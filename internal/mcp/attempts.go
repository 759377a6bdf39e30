package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/forkd/forkd/client"
)

func attemptTools() []tool {
	return []tool{
		define(
			"fork_and_run",
			"Copy a running sandbox once per attempt, run a shell command in each copy concurrently, and compare the results. "+
				"Give commands (one per approach), or command and attempts (one command several times). The sandbox itself is not changed. "+
				"keep determines which copy stays for further use: best (of those that exit with 0, the one with the highest score; without scores, the fastest), "+
				"first (the first to exit with 0; the others are stopped), all or none.",
			Run,
			openWorld,
			forkAndRun,
			items("commands", 0, maxAttempts),
			between("attempts", 1, maxAttempts, 1),
			between("timeout_secs", 1, 3600, 120),
			oneOf("keep", "best", "first", "none", "all"),
			among("hold_answer", "refuse", "record", "wait"),
		),
	}
}

// Bounds of a call of fork_and_run.
const (
	maxAttempts = 64
	attemptHead = 1 << 10 // bytes kept from the beginning of each output of an attempt
	attemptTail = 3 << 10 // bytes kept from the end of each output
	attemptText = 4 << 10 // bytes of a command as JSON; an output may have twice as many
)

type attemptArgs struct {
	SandboxID   string            `json:"sandbox_id" jsonschema:"sandbox to copy"`
	Commands    []string          `json:"commands,omitempty" jsonschema:"shell commands, each for one copy"`
	Command     string            `json:"command,omitempty" jsonschema:"instead of commands: one shell command for all copies; $FORKD_ATTEMPT is the number of the copy, from 1"`
	Attempts    int               `json:"attempts,omitempty" jsonschema:"with command: number of copies"`
	Score       string            `json:"score,omitempty" jsonschema:"shell command that is run in each copy after a success. The last line that it prints is the score, a number, such as the count of passed tests; higher is better"`
	Keep        string            `json:"keep,omitempty"`
	TimeoutSecs float64           `json:"timeout_secs,omitempty" jsonschema:"time limit of each attempt"`
	Cwd         string            `json:"cwd,omitempty" jsonschema:"working directory"`
	Env         map[string]string `json:"env,omitempty"`
	holdArgs
}

type attempt struct {
	N          int      `json:"attempt" jsonschema:"number, from 1"`
	Command    string   `json:"command"`
	SandboxID  string   `json:"sandbox_id,omitempty" jsonschema:"id of the copy, if it was kept"`
	ExitCode   *int     `json:"exit_code,omitempty" jsonschema:"absent if the command did not end by itself"`
	Outcome    string   `json:"outcome" jsonschema:"exited, signaled, timed_out, stopped (another attempt was first) or error"`
	Score      *float64 `json:"score,omitempty"`
	DurationMS int64    `json:"duration_ms"`
	Stdout     string   `json:"stdout"`
	Stderr     string   `json:"stderr"`
	Omitted    int64    `json:"omitted_bytes,omitempty" jsonschema:"bytes omitted from the middle of the outputs"`
	Error      string   `json:"error,omitempty"`

	box string
}

func (a *attempt) succeeded() bool { return a.ExitCode != nil && *a.ExitCode == 0 }

type attempts struct {
	Attempts    []attempt `json:"attempts"`
	Winner      int       `json:"winner,omitempty" jsonschema:"number of the winning attempt; absent if none succeeded, or if no winner was requested"`
	SandboxID   string    `json:"sandbox_id,omitempty" jsonschema:"id of the winner's copy, which keeps running"`
	PauseMS     float64   `json:"pause_ms" jsonschema:"how long the source was paused"`
	NotRemoved  []string  `json:"not_removed,omitempty" jsonschema:"copies that could not be removed; kill them"`
	Explanation string    `json:"explanation"`
}

// plan returns the command of each attempt.
func (in *attemptArgs) plan() ([]string, error) {
	switch {
	case len(in.Commands) > 0 && in.Command != "":
		return nil, wrong("command", "give either commands, or command and attempts")
	case len(in.Commands) > 0 && in.Attempts > 1:
		return nil, wrong("attempts", "goes with command; commands has one attempt for each")
	case len(in.Commands) > 0:
		if i := slices.Index(in.Commands, ""); i >= 0 {
			return nil, wrong("commands", "the one at index %d is empty", i)
		}
		return in.Commands, nil
	case in.Command == "":
		return nil, wrong("commands", "is missing: give commands, or command and attempts")
	}
	return slices.Repeat([]string{in.Command}, in.Attempts), nil
}

func forkAndRun(ctx context.Context, c *call, in attemptArgs) (r attempts, err error) {
	commands, err := in.plan()
	if err != nil {
		return r, err
	}
	hold, err := in.hold()
	if err != nil {
		return r, err
	}
	f, err := c.copies(ctx, client.ForkRequest{SourceID: in.SandboxID, N: len(commands), HoldEffects: hold})
	if err != nil {
		return r, err
	}
	r.PauseMS = f.PauseMS
	c.progress(ctx, 0, float64(len(commands)), fmt.Sprintf("%d copies run", len(commands)))
	r.Attempts = c.race(ctx, &in, commands, f.Sandboxes)
	r.Winner, r.Explanation = winner(r.Attempts, in.Keep)
	var remove []string
	for i := range r.Attempts {
		a := &r.Attempts[i]
		switch {
		case in.Keep == "all" || a.N == r.Winner && in.Keep != "none":
			a.SandboxID = a.box
		default:
			remove = append(remove, a.box)
		}
		if a.N == r.Winner {
			r.SandboxID = a.SandboxID
		}
	}
	if err := ctx.Err(); err != nil {
		return r, err // a cancelled call removes all copies, see takeBack
	}
	r.NotRemoved = removeAll(ctx, c.Client, remove)
	c.say(r.table())
	return r, nil
}

// copies forks copies of a sandbox, and labels them.
func (c *call) copies(ctx context.Context, req client.ForkRequest) (client.Forked, error) {
	labelled := req
	labelled.Labels = map[string]string{"fork_and_run": req.SourceID}
	f, err := c.Fork(ctx, labelled)
	if isScope(err) { // a token with a label prefix may not set this label
		f, err = c.Fork(ctx, req)
	}
	return f, err
}

// race runs all attempts concurrently and returns them in order. If keep is "first", it stops all
// other attempts after the first success.
func (c *call) race(ctx context.Context, in *attemptArgs, commands []string, boxes []client.Sandbox) []attempt {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	all, ended := make([]attempt, len(commands)), make(chan int)
	for i := range commands {
		all[i] = attempt{N: i + 1, Command: shorten(commands[i], attemptText), box: boxes[i].ID}
		go func() {
			all[i].run(ctx, c.Client, in, commands[i])
			all[i].shorten()
			ended <- i
		}()
	}
	for n := range commands {
		a := &all[<-ended]
		if in.Keep == "first" && a.succeeded() {
			stop(errBeaten)
		}
		c.progress(ctx, float64(n+1), float64(len(commands)), fmt.Sprintf("attempt %d: %s", a.N, a.result()))
	}
	return all
}

// errBeaten is the reason for stopping attempts after another attempt has succeeded.
var errBeaten = errors.New("another attempt was first")

// shorten shortens the texts so that their JSON is within the bounds.
func (a *attempt) shorten() {
	for _, text := range []*string{&a.Stdout, &a.Stderr, &a.Error} {
		n := len(*text)
		*text = shorten(*text, 2*attemptText)
		a.Omitted += int64(max(0, n-len(*text)))
	}
}

func (a *attempt) run(ctx context.Context, cl *client.Client, in *attemptArgs, command string) {
	env := map[string]string{"FORKD_ATTEMPT": strconv.Itoa(a.N)}
	for name, value := range in.Env {
		env[name] = value
	}
	shell := func(command string) client.ExecRequest {
		return client.ExecRequest{
			Args:        []string{"/bin/sh", "-c", command},
			TimeoutSecs: in.TimeoutSecs,
			Cwd:         in.Cwd,
			Env:         env,
		}
	}
	since := stopwatch()
	r, err := runCommand(ctx, cl, a.box, shell(command), attemptHead, attemptTail)
	a.DurationMS = since().Milliseconds()
	switch {
	case errors.Is(context.Cause(ctx), errBeaten):
		a.Outcome = "stopped"
		return
	case err != nil:
		a.Outcome, a.Error = "error", err.Error()
		if p, ok := problemOf(err); ok {
			a.Error = p.text()
		}
		return
	}
	a.Outcome, a.Stdout, a.Stderr, a.Omitted, a.Error = r.Outcome, r.Stdout, r.Stderr, r.StdoutOmitted+r.StderrOmitted,
		r.Error
	if r.TimedOut {
		a.Outcome = "timed_out"
	} else if r.Outcome == "exited" {
		a.ExitCode = &r.ExitCode
	}
	if in.Score == "" || !a.succeeded() {
		return
	}
	r, err = runCommand(ctx, cl, a.box, shell(in.Score), 0, attemptTail)
	switch score, ok := lastNumber(r.Stdout); {
	case errors.Is(context.Cause(ctx), errBeaten): // the attempt succeeded before it was stopped
	case err != nil:
		a.Error = "score: " + err.Error()
	case !ok:
		a.Error = fmt.Sprintf("score: the last line of its output is no number (exit code %d)", r.ExitCode)
	default:
		a.Score = &score
	}
}

// lastNumber returns the number in the last line of a text. Empty lines at the end are ignored.
func lastNumber(text string) (float64, bool) {
	text = strings.TrimSpace(text)
	line := strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
	n, err := strconv.ParseFloat(line, 64)
	return n, err == nil && !math.IsNaN(n) && !math.IsInf(n, 0)
}

// winner returns the index of the best attempt, and the reason for the choice.
func winner(all []attempt, keep string) (n int, why string) {
	if keep == "none" || keep == "all" {
		return 0, "no winner was asked for (keep=" + keep + ")"
	}
	good := slices.DeleteFunc(slices.Clone(all), func(a attempt) bool { return !a.succeeded() })
	if len(good) == 0 {
		return 0, "no attempt exited with 0; no copy was kept"
	}
	scored := slices.ContainsFunc(good, func(a attempt) bool { return a.Score != nil })
	best := slices.MinFunc(good, func(a, b attempt) int {
		if keep == "best" {
			if by := cmp.Compare(scoreOf(b), scoreOf(a)); by != 0 {
				return by
			}
		}
		return cmp.Or(cmp.Compare(a.DurationMS, b.DurationMS), cmp.Compare(a.N, b.N))
	})
	switch {
	case keep == "first":
		return best.N, "the first to exit with 0"
	case scored:
		return best.N, fmt.Sprintf("the highest score of the %d that exited with 0", len(good))
	}
	return best.N, fmt.Sprintf("the fastest of the %d that exited with 0: there are no scores", len(good))
}

func scoreOf(a attempt) float64 {
	if a.Score == nil {
		return math.Inf(-1)
	}
	return *a.Score
}

// isScope reports whether an error says that the token lacks a right.
func isScope(err error) bool {
	p, ok := problemOf(err)
	return ok && p.Code == "scope"
}

// result says in a few words how an attempt ended.
func (a *attempt) result() string {
	switch {
	case a.ExitCode != nil && a.Score != nil:
		return fmt.Sprintf("exit code %d, score %g", *a.ExitCode, *a.Score)
	case a.ExitCode != nil:
		return fmt.Sprintf("exit code %d", *a.ExitCode)
	}
	return a.Outcome
}

// table returns the text for the model: a line for each attempt, followed by the outputs.
func (r *attempts) table() string {
	var b strings.Builder
	b.WriteString("| attempt | result | ms | command |\n|---|---|---|---|\n")
	for i := range r.Attempts {
		a := &r.Attempts[i]
		command := strings.NewReplacer("|", `\|`, "\n", "; ").Replace(a.Command)
		if len(command) > 80 {
			command = plain(validEnd([]byte(command[:80]))) + "…"
		}
		fmt.Fprintf(&b, "| %d | %s | %d | %s |\n", a.N, a.result(), a.DurationMS, command)
	}
	switch {
	case r.Winner > 0:
		fmt.Fprintf(
			&b,
			"\nWinner: attempt %d, %s. Go on in its sandbox %s; the other copies are removed.\n",
			r.Winner,
			r.Explanation,
			r.SandboxID,
		)
	default:
		fmt.Fprintf(&b, "\n%s.\n", r.Explanation)
	}
	for _, id := range r.NotRemoved {
		fmt.Fprintf(&b, "The copy %s could not be removed: kill it.\n", id)
	}
	for i := range r.Attempts {
		a := &r.Attempts[i]
		fmt.Fprintf(&b, "\n### Attempt %d", a.N)
		if a.SandboxID != "" {
			fmt.Fprintf(&b, " (sandbox %s)", a.SandboxID)
		}
		b.WriteString("\n")
		for _, part := range []struct{ name, text string }{{"stdout", a.Stdout}, {"stderr", a.Stderr}, {"error", a.Error}} {
			if part.text != "" {
				fmt.Fprintf(&b, "%s:\n%s\n", part.name, strings.TrimSuffix(part.text, "\n"))
			}
		}
	}
	return b.String()
}
