package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/doctor"
)

// quickRecipe is the recipe whose snapshot is forked. quickCode is the line of Python that each
// fork runs.
const (
	quickRecipe = "python-numpy"
	quickCode   = "import numpy as np; int(np.arange(6).sum())"
)

// quick is the result of `quickstart`.
type quick struct {
	Daemon   string  `json:"daemon"`  // address of the daemon
	Started  bool    `json:"started"` // this command has started the daemon
	Snapshot string  `json:"snapshot"`
	Built    bool    `json:"built"` // this command has built the snapshot
	Forks    int     `json:"forks"`
	ForkMS   float64 `json:"fork_ms"` // time for all forks together
	Code     string  `json:"code"`
	Answer   string  `json:"answer"`
	EvalMS   float64 `json:"eval_ms"` // time for the first answer
}

func newQuickstartCmd() *cobra.Command {
	c := common{streams: true}
	var tokens tokenFlags
	var n int
	cmd := &cobra.Command{
		Use:   "quickstart",
		Short: "Go from nothing to a first answer in a fork",
		Long: "Checks this host as 'forkd doctor' does, starts a daemon if none answers, builds the snapshot of the recipe\n" +
			quickRecipe + " if it is missing, forks it, and runs a line of Python in each fork. At the end the forks are\n" +
			"removed; the daemon and the snapshot stay. It uses what exists already, so you can run it again.",
		Args: usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if n < 1 {
				return usageError{fmt.Errorf("-n %d: want at least 1", n)}
			}
			var q quick
			var err error
			if q.Started, err = c.ensureDaemon(cmd, &tokens); err != nil {
				return err
			}
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (quick, error) {
				q.Daemon, q.Forks = c.where, n
				return q, q.run(ctx, cl, cmd.ErrOrStderr())
			}, func(q quick) error {
				q.print(cmd.OutOrStdout())
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.IntVarP(&n, "n", "n", 3, "number of forks")
	noEffect(f, "yes", "y", "of forkd 0.5; no effect: nothing of this host is changed")
	c.register(cmd)
	return cmd
}

// ensureDaemon checks this host, and starts a daemon if none answers.
func (c *common) ensureDaemon(cmd *cobra.Command, tokens *tokenFlags) (started bool, err error) {
	ctx, w := cmd.Context(), cmd.ErrOrStderr()
	named := cmp.Or(c.url, os.Getenv(urlEnv)) != ""
	missing, reached := missingFor(doctorHost(c.url, tokens).Diagnose(ctx))
	if len(missing) > 0 {
		for _, f := range missing {
			fix := ""
			if f.Fix != nil {
				fix = fmt.Sprintf("\n  fix: %s", f.Fix)
			}
			printf(w, "forkd: missing: %s: %s%s\n", f.Check, f.Detail, fix)
		}
		return false, fmt.Errorf("%d things are missing for a first fork; 'forkd doctor' checks them again", len(missing))
	}
	if reached || named {
		return false, nil // if the named daemon does not answer, the next request says so
	}
	if doctor.HasUnit() {
		return false, errors.New("no daemon answers; its service is installed: 'systemctl enable --now forkd' starts it")
	}
	_, address, err := connect(ctx, c.url, w)
	if err != nil || !strings.HasPrefix(address, "unix://") {
		return false, err // if there is no error, connect has started the daemon of an emulated host
	}
	self, err := os.Executable()
	if err != nil {
		return false, err
	}
	printLine(w, "forkd: no daemon answers; starting one")
	return true, startDaemon(ctx, self, address)
}

// missingFor returns the findings that prevent a first fork, and reports whether a daemon answers.
// If a daemon answers, the other findings about this host do not matter.
func missingFor(findings []doctor.Finding) (missing []doctor.Finding, reached bool) {
	reached = slices.ContainsFunc(findings, func(f doctor.Finding) bool {
		return f.Check == doctor.CheckDaemon && f.Verdict == doctor.Pass
	})
	for _, f := range doctor.Foremost(findings) {
		if f.Verdict == doctor.Fail && (!reached || f.Check == doctor.CheckDaemon) {
			missing = append(missing, f)
		}
	}
	return missing, reached
}

// startDaemon runs a daemon that continues after this command, and waits until it answers.
func startDaemon(ctx context.Context, program, address string) error {
	cache, err := cachedir.Dir()
	if err == nil {
		err = os.MkdirAll(cache, 0o700)
	}
	if err != nil {
		return fmt.Errorf("start a daemon: %w", err)
	}
	name := filepath.Join(cache, "daemon.log")
	log, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("start a daemon: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(program, "daemon")
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = log, log, &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a daemon: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	cl, err := client.New(address, "")
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, daemonStart)
	defer cancel()
	for cl.Healthy(ctx) != nil {
		select {
		case err := <-ended:
			text, _ := io.ReadAll(io.NewSectionReader(log, 0, 64<<10)) // if reading fails, the error has less detail
			return fmt.Errorf("the daemon has ended (%v):\n%s", err, multiline(strings.TrimSpace(string(text))))
		case <-ctx.Done():
			return fmt.Errorf("the daemon does not answer: %w; its log is %s", ctx.Err(), name)
		case <-time.After(100 * time.Millisecond):
		}
	}
	return nil
}

// run builds the snapshot if it is missing, forks it, and runs the code in each fork.
func (q *quick) run(ctx context.Context, cl *client.Client, w io.Writer) (err error) {
	recipe, err := loadRecipe(quickRecipe)
	if err != nil {
		return err
	}
	b, err := build(ctx, cl, recipe, buildOptions{tag: recipe.Name, reuse: true, live: canRedraw(w)}, w)
	if err != nil {
		return fmt.Errorf("build the snapshot %s: %w", recipe.Name, err)
	}
	q.Snapshot, q.Built = b.Tag, !b.Reused
	return q.fork(ctx, cl, quickCode)
}

// fork forks the snapshot, runs the code in each fork and removes the forks.
func (q *quick) fork(ctx context.Context, cl *client.Client, code string) (err error) {
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), forkTimeout) // an interrupt must leave no sandbox
	defer cancel()
	start := time.Now()
	made, err := cl.Fork(whole, client.ForkRequest{SnapshotTag: q.Snapshot, N: q.Forks})
	if err != nil {
		return err
	}
	q.ForkMS, q.Code = msSince(start), code
	defer func() {
		for _, s := range made.Sandboxes {
			err = errors.Join(err, removeSandbox(context.WithoutCancel(ctx), cl, s.ID))
		}
	}()
	for i, s := range made.Sandboxes {
		start := time.Now()
		r, err := cl.Eval(ctx, s.ID, client.EvalRequest{Code: code})
		switch {
		case err != nil:
			return err
		case r.Error != "" || r.Result == nil:
			return fmt.Errorf("%s in sandbox %s: %s; 'forkd rmi %s' removes the snapshot, and the next quickstart builds it",
				code, s.ID, cmp.Or(r.Error, "it has no result"), q.Snapshot)
		case i == 0:
			q.EvalMS, q.Answer = msSince(start), *r.Result
		case *r.Result != q.Answer:
			return fmt.Errorf("sandbox %s answers %.100q, and another one %.100q", s.ID, *r.Result, q.Answer)
		}
	}
	return nil
}

func (q *quick) print(out io.Writer) {
	snapshot := "existed already"
	if q.Built {
		snapshot = "built"
	}
	printf(out, "daemon     %s\nsnapshot   %s, %s\nforks      %d in %.1f ms, each a VM of its own\n", q.Daemon, q.Snapshot,
		snapshot, q.Forks, q.ForkMS)
	printf(out, "python     %s\n           %s, after %.1f ms, in each of them\n", q.Code, q.Answer, q.EvalMS)
	printf(out, "\nNext:\n  ID=$(forkd fork %s)                  # a sandbox that stays\n"+
		"  forkd eval $ID 'x = np.arange(6) ** 2'        # in its warm interpreter\n"+
		"  forkd branch $ID mine                         # save it as it runs; forkd fork mine continues from there\n"+
		"  forkd shell $ID\n  forkd build -t app .                          # a Dockerfile of yours\n", q.Snapshot)
}
