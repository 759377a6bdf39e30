package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/dirsync"
)

func newSyncCmd() *cobra.Command {
	c := common{streams: true}
	var o dirsync.Options
	var once bool
	cmd := &cobra.Command{
		Use:   "sync DIR ID:/PATH",
		Short: "Keep a directory of this host and a directory of a sandbox in sync",
		Long: "Copies what differs from DIR to PATH in the sandbox, and then each change as it happens, until Ctrl-C or\n" +
			"the end of the sandbox. Removals are copied too, but files that only the sandbox has at the start stay. With\n" +
			"--both, changes in the sandbox also come back. If both sides have changed a file, this conflict\n" +
			"is reported, both files stay, and the sync continues. --prefer resolves conflicts. Patterns of --exclude\n" +
			"are as in a .dockerignore. With --both, .git, .hg and files with the name HEAD are excluded unless a\n" +
			"pattern such as '!**/.git' includes them.",
		Example: "  forkd sync ./src ID:/root/src\n  forkd sync --both --exclude '**/node_modules' . ID:/work\n" +
			"  forkd sync --both --once --prefer host . ID:/work",
		Args: usageArgs(arguments(2, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, remote, ok := remotePath(args[1])
			if !ok || !path.IsAbs(remote) || path.Clean(remote) == "/" {
				return usageError{fmt.Errorf("%.200q: want ID:/PATH with a directory of the sandbox other than /", args[1])}
			}
			if o.Prefer != "" && o.Prefer != "host" && (o.Prefer != "guest" || !o.Both) {
				return usageError{fmt.Errorf("--prefer %.50q: want host or, with --both, guest", o.Prefer)}
			}
			o.Dir, o.Remote = args[0], path.Clean(remote)
			return c.runOn(cmd, id, func(ctx context.Context, cl *client.Client, id string) error {
				o.ID = id
				out := &syncOutput{out: cmd.OutOrStdout(), errOut: cmd.ErrOrStderr()}
				if c.json() {
					out.json = json.NewEncoder(plainJSON{cmd.OutOrStdout()})
				}
				o.Report = out.report
				s, err := openSync(cl, o)
				if err != nil {
					return err
				}
				defer s.Close()
				if !once {
					return s.Run(ctx)
				}
				if err := s.Once(ctx); err != nil {
					return err
				}
				if n := len(s.Conflicts()); n > 0 {
					return fmt.Errorf("%d files differ on both sides, such as %q: %s", n, s.Conflicts()[0], howToResolve)
				}
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.Both, "both", false, "also copy changes in the sandbox to this host")
	f.StringVar(&o.Prefer, "prefer", "", "side that wins a conflict: host or guest (default: neither side is changed)")
	f.StringArrayVar(&o.Exclude, "exclude", nil, "pattern of files that are not synced (repeatable)")
	f.BoolVar(&once, "once", false, "exit when both sides are in sync; exit code 1 if there are conflicts")
	completeWords(cmd, "prefer", "host", "guest")
	c.completePath(cmd)
	c.register(cmd)
	return cmd
}

const howToResolve = "neither side was changed: make both equal, or give --prefer host or --prefer guest"

// openSync is like dirsync.Open, but accepts a relative path or a link to a directory.
func openSync(cl *client.Client, o dirsync.Options) (*dirsync.Sync, error) {
	dir, err := filepath.Abs(o.Dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil, err
	}
	o.Dir = dir
	return dirsync.Open(cl, o)
}

// syncOutput prints reports of a Sync. Until both sides are in sync for the first time, it only
// counts the copied files.
type syncOutput struct {
	out, errOut io.Writer
	json        *json.Encoder // nil: text
	inSync      bool
	to, from    int
}

func (o *syncOutput) report(r dirsync.Report) {
	if o.json != nil {
		_ = o.json.Encode(r) // the sync continues even if nothing reads its output
		return
	}
	arrow, removed := "->", ""
	switch r.Op {
	case "conflict":
		printf(o.errOut, "forkd: conflict: %q: %s; %s\n", r.Path, r.Detail, howToResolve)
		return
	case "resolved":
		printf(o.errOut, "forkd: conflict resolved: %q\n", r.Path)
		return
	case "left_out":
		printf(o.errOut, "forkd: left out: %q: %s\n", r.Path, r.Detail)
		return
	case "waiting":
		printf(o.errOut, "forkd: waiting: %s\n", r.Detail)
		return
	case "in_sync":
		if !o.inSync {
			printf(o.out, "in sync: %d files copied to the sandbox, %d from it\n", o.to, o.from)
		}
		o.inSync = true
		return
	case "from_sandbox", "removed_here":
		arrow = "<-"
		o.from++
	default:
		o.to++
	}
	if r.Op == "removed_here" || r.Op == "removed_in_sandbox" {
		removed = " (removed)"
	}
	if o.inSync {
		printf(o.out, "%s %q%s\n", arrow, r.Path, removed)
	}
}

// liveDir is a directory that is kept in sync while a command runs.
type liveDir struct {
	sync *dirsync.Sync
	stop context.CancelFunc
	done chan error
}

// startSync copies a directory into a sandbox, and keeps it in sync until end is called.
func startSync(ctx context.Context, cl *client.Client, o dirsync.Options, errOut io.Writer) (*liveDir, error) {
	live := &liveDir{done: make(chan error, 1)}
	o.Report = (&syncOutput{out: io.Discard, errOut: errOut}).report
	var err error
	if live.sync, err = openSync(cl, o); err != nil {
		return nil, err
	}
	if err = live.sync.Once(ctx); err != nil {
		return nil, errors.Join(err, live.sync.Close())
	}
	ctx, live.stop = context.WithCancel(ctx)
	go func() { live.done <- live.sync.Run(ctx) }()
	return live, nil
}

// end stops the sync. If changes come back, end also copies the sandbox's last changes to the host.
func (l *liveDir) end(ctx context.Context) error {
	l.stop()
	err := <-l.done
	if errors.Is(err, context.Canceled) {
		if err = nil; l.sync.Both {
			err = l.sync.Once(ctx)
		}
	}
	return errors.Join(err, l.sync.Close())
}
