package mcp

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/forkd/forkd/client"
)

// toolsOf05 returns the tools of forkd-mcp, a package of forkd 0.5. They have the same names,
// arguments and results as in forkd-mcp.
func toolsOf05() []tool {
	return []tool{
		define("list_snapshots", "List the snapshots from which sandboxes can be forked.", Read, readOnly, listSnapshots),
		define(
			"spawn_sandboxes",
			"Fork n sandboxes from a snapshot. Each starts in milliseconds, with the snapshot's memory and processes.",
			Run,
			0,
			spawnSandboxes,
			between("n", 1, 1000, 1),
			between("memory_limit_mib", 0, 1<<20, 256),
			among("hold_answer", "refuse", "record", "wait"),
		),
		define(
			"branch_sandbox",
			"Save a running sandbox as a new snapshot; the sandbox keeps running. Use branch to get children in the same call.",
			Run,
			0,
			branchSandbox,
			among("mode", "live", "diff", "full"),
			byDefault("wait", true),
		),
		define(
			"create_snapshot",
			"Boot a kernel and a root file system from the daemon's host, and save the machine as a snapshot. Takes minutes.",
			Admin,
			0,
			createSnapshot,
			between("boot_wait_secs", 0, 3600, 10),
		),
		define("wait_for_text", "Wait until a file in a sandbox contains a text.", Run, openWorld, waitForText,
			between("timeout_secs", 0, 3600, 60), between("poll_interval_ms", 50, 60_000, 200)),
		define("list_sandboxes", "List the sandboxes, oldest first.", Read, readOnly, listSandboxes),
		define("get_sandbox", "Describe one sandbox.", Read, readOnly, getSandbox),
		define("kill_sandbox", "Remove a sandbox with everything in it.", Run, destructive|idempotent, killSandbox),
		define(
			"exec_command",
			"Run a program in a sandbox and wait for its end. args is the exact argument list; for a shell: [\"sh\", \"-c\", \"…\"]. "+
				"For programs that take more than a minute, use start_command.",
			Run,
			destructive|openWorld,
			execCommand,
			items("args", 1, 4096),
			between("timeout_secs", 1, 3600, 30),
		),
		define(
			"eval_code",
			"Run Python in the warm interpreter of a sandbox and return the value of its last expression. run_code also supports images and contexts.",
			Run,
			destructive|openWorld,
			evalCode,
		),
		define(
			"ping_sandbox",
			"Check that the agent of a sandbox answers. Resumes a suspended sandbox.",
			Run,
			idempotent,
			pingSandbox,
		),
	}
}

type none struct{}

type ofSandbox struct {
	SandboxID string `json:"sandbox_id" jsonschema:"id of the sandbox, such as sb-…"`
}

// list has the form of lists in forkd 0.5, where a result must be an object, not an array.
type list[T any] struct {
	Result  []T `json:"result"`
	Omitted int `json:"omitted,omitempty" jsonschema:"at least this many entries are omitted at the end"`
}

// maxListed bounds the number of elements of a list.
const maxListed = 1000

// The result is a list with the first members of the pages, as many as fit into an answer.
func listed[T any](ctx context.Context, page pageOf[T]) (l list[T], err error) {
	left := room(maxText)
	l.Result = []T{}
	l.Omitted, err = pages(ctx, page, func(member T) bool {
		if len(l.Result) == maxListed || !left.fits(member) {
			return false
		}
		l.Result = append(l.Result, member)
		return true
	})
	return l, err
}

func listSnapshots(ctx context.Context, c *call, _ none) (list[client.Snapshot], error) {
	return listed(ctx, c.SnapshotPage)
}

func listSandboxes(ctx context.Context, c *call, _ none) (list[client.Sandbox], error) {
	return listed(ctx, c.SandboxPage)
}

type spawnArgs struct {
	SnapshotTag    string `json:"snapshot_tag" jsonschema:"tag of a snapshot, see list_snapshots"`
	N              int    `json:"n,omitempty" jsonschema:"number of sandboxes"`
	PerChildNetns  bool   `json:"per_child_netns,omitempty" jsonschema:"from forkd 0.5: no effect, because every sandbox has its own network"`
	MemoryLimitMiB uint64 `json:"memory_limit_mib,omitempty" jsonschema:"memory that each may use for its own changes; 0: as in the snapshot"`
	Prewarm        bool   `json:"prewarm,omitempty" jsonschema:"from forkd 0.5: no effect"`
	LiveFork       bool   `json:"live_fork,omitempty" jsonschema:"from forkd 0.5: no effect, because every sandbox can be branched live"`

	// Not in forkd 0.5.
	holdArgs
	Volumes []mountArg `json:"volumes,omitempty" jsonschema:"volumes to mount"`
}

func spawnSandboxes(ctx context.Context, c *call, in spawnArgs) (list[client.Sandbox], error) {
	hold, err := in.hold()
	if err != nil {
		return list[client.Sandbox]{}, err
	}
	f, err := c.Fork(ctx, client.ForkRequest{SnapshotTag: in.SnapshotTag, N: in.N, MemoryLimitMiB: in.MemoryLimitMiB,
		PerChildNetns: in.PerChildNetns, Prewarm: in.Prewarm, LiveFork: in.LiveFork, HoldEffects: hold,
		Volumes: mountsOf(in.Volumes)})
	return spawned(f.Sandboxes), err
}

// spawned describes new sandboxes. If the descriptions are too long, it omits the fields Labels and
// Unique of all sandboxes.
func spawned(all []client.Sandbox) list[client.Sandbox] {
	l, left := list[client.Sandbox]{Result: []client.Sandbox{}}, room(maxText)
	if !left.fits(all) {
		for i := range all {
			all[i].Labels, all[i].Unique = nil, nil
		}
	}
	left = maxText
	for i, s := range all {
		if !left.fits(s) {
			l.Omitted = len(all) - i
			break
		}
		l.Result = append(l.Result, s)
	}
	return l
}

type branch05Args struct {
	SandboxID   string `json:"sandbox_id"`
	Tag         string `json:"tag,omitempty" jsonschema:"tag of the new snapshot; empty: the daemon chooses one"`
	Diff        bool   `json:"diff,omitempty" jsonschema:"older name of mode=diff"`
	MeasureDiff bool   `json:"measure_diff,omitempty" jsonschema:"older name of mode=diff"`
	Mode        string `json:"mode,omitempty" jsonschema:"live (default) pauses the sandbox for milliseconds; diff and full pause it while they copy"`
	Wait        bool   `json:"wait,omitempty" jsonschema:"false: answer before the snapshot is complete"`
}

func branchSandbox(ctx context.Context, c *call, in branch05Args) (s client.Snapshot, err error) {
	older := in.Diff || in.MeasureDiff
	if older && in.Mode != "" {
		return s, wrong("mode", "give either mode, or diff or measure_diff, which are older spellings of mode=diff")
	}
	if older {
		in.Mode = "diff"
	}
	return c.Branch(ctx, in.SandboxID, client.BranchRequest{Tag: in.Tag, Mode: in.Mode, NoWait: !in.Wait})
}

type createArgs struct {
	Tag          string  `json:"tag" jsonschema:"tag of the new snapshot"`
	Kernel       string  `json:"kernel" jsonschema:"path of a kernel on the daemon's host"`
	Rootfs       string  `json:"rootfs" jsonschema:"path of a root file system on the daemon's host"`
	RW           bool    `json:"rw,omitempty" jsonschema:"from forkd 0.5: no effect, because the disk is always writable"`
	Tap          string  `json:"tap,omitempty" jsonschema:"from forkd 0.5: refused, because there are no tap devices"`
	BootWaitSecs float64 `json:"boot_wait_secs,omitempty" jsonschema:"from forkd 0.5: no effect, because the agent announces that it is ready"`
}

func createSnapshot(ctx context.Context, c *call, in createArgs) (b client.Baked, err error) {
	err = c.during(ctx, func() string { return "booting and saving " + shorten(in.Tag, maxName) }, func() error {
		defer func() {
			b.WarmupOutput = shortened(b.WarmupOutput)
			b.GuestErrors = shortenAll(b.GuestErrors)
		}()
		b, err = c.Bake(
			ctx,
			client.BakeRequest{
				Tag:          in.Tag,
				Kernel:       in.Kernel,
				Rootfs:       in.Rootfs,
				RW:           in.RW,
				Tap:          in.Tap,
				BootWaitSecs: in.BootWaitSecs,
			},
		)
		return err
	})
	return b, err
}

type waitTextArgs struct {
	SandboxID      string  `json:"sandbox_id"`
	Path           string  `json:"path" jsonschema:"absolute path of the file in the sandbox"`
	Marker         string  `json:"marker" jsonschema:"text to wait for, within the last 64 KiB of the file"`
	TimeoutSecs    float64 `json:"timeout_secs,omitempty"`
	PollIntervalMS float64 `json:"poll_interval_ms,omitempty"`
}

type waitTextResult struct {
	Found       bool   `json:"found"`
	ElapsedMS   int64  `json:"elapsed_ms"`
	LastExcerpt string `json:"last_excerpt" jsonschema:"the last 256 bytes of the file"`
}

// Numbers of bytes at the end of a file: how many are searched, and how many are returned.
const (
	searched = 64 << 10
	excerpt  = 256
)

func waitForText(ctx context.Context, c *call, in waitTextArgs) (r waitTextResult, err error) {
	if in.Marker == "" {
		return r, wrong("marker", "is empty: every file contains that")
	}
	since := stopwatch()
	tail := client.ExecRequest{Args: []string{"tail", "-c", fmt.Sprint(searched), "--", in.Path}, TimeoutSecs: 10}
	err = c.during(
		ctx,
		func() string {
			return fmt.Sprintf("%s does not contain %q yet", shorten(in.Path, maxField), shorten(in.Marker, maxName))
		},
		func() error {
			for {
				got, _, err := c.ends(ctx, in.SandboxID, tail, searched)
				if err != nil {
					return err
				}
				r = waitTextResult{bytes.Contains(got, []byte(in.Marker)), since().Milliseconds(),
					plain(validStart(got[max(0, len(got)-excerpt):]))}
				if r.Found || since().Seconds() >= in.TimeoutSecs {
					return nil
				}
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Duration(in.PollIntervalMS * float64(time.Millisecond))):
				}
			}
		},
	)
	return r, err
}

func getSandbox(ctx context.Context, c *call, in ofSandbox) (client.Sandbox, error) {
	return c.Sandbox(ctx, in.SandboxID)
}

type killed struct {
	ID     string `json:"id"`
	Killed bool   `json:"killed"`
}

func killSandbox(ctx context.Context, c *call, in ofSandbox) (killed, error) {
	return killed{in.SandboxID, true}, c.Kill(ctx, in.SandboxID)
}

type execArgs struct {
	SandboxID   string   `json:"sandbox_id"`
	Args        []string `json:"args" jsonschema:"the program and its arguments"`
	TimeoutSecs float64  `json:"timeout_secs,omitempty"`
}

func execCommand(ctx context.Context, c *call, in execArgs) (r commandResult, err error) {
	stdout, stderr := newExcerpt(headOutput, tailOutput), newExcerpt(headOutput, tailOutput)
	err = c.during(ctx, func() string { return "running " + shorten(in.Args[0], maxName) }, func() error {
		r, err = runInto(
			ctx,
			c.Client,
			in.SandboxID,
			client.ExecRequest{Args: in.Args, TimeoutSecs: in.TimeoutSecs},
			stdout,
			stderr,
		)
		return err
	})
	return r, err
}

type evalArgs struct {
	SandboxID string `json:"sandbox_id"`
	Code      string `json:"code" jsonschema:"Python"`
}

func evalCode(ctx context.Context, c *call, in evalArgs) (client.EvalResult, error) {
	r, err := c.Eval(ctx, in.SandboxID, client.EvalRequest{Code: in.Code})
	for _, text := range []*string{r.Result, &r.Error, &r.Stdout, &r.Stderr, &r.Traceback} {
		if text != nil {
			*text, r.Truncated = cut(*text, r.Truncated)
		}
	}
	return r, err
}

// cut shortens a text of a guest to the size of an output for a model. The second result reports
// whether the text was shortened, by cut or before (already).
func cut(text string, already bool) (string, bool) {
	e := newExcerpt(headOutput, tailOutput)
	_, _ = e.Write([]byte(text)) // cannot fail: answers are shorter than the bound of e
	return e.text(), already || e.omitted() > 0
}

func pingSandbox(ctx context.Context, c *call, in ofSandbox) (client.Pong, error) {
	return c.Ping(ctx, in.SandboxID)
}

// stopwatch returns a function that returns the time since stopwatch was called.
func stopwatch() func() time.Duration {
	begun := time.Now()
	return func() time.Duration { return time.Since(begun) }
}
