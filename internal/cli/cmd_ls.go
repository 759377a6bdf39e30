package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newLsCmd() *cobra.Command {
	var c common
	var quiet bool
	var labels []string
	cmd := &cobra.Command{
		Use:     "ls [ID]",
		Aliases: []string{"ps"},
		Short:   "List sandboxes, or the processes that exec has started in one",
		Args:    usageArgs(arguments(0, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if len(labels) > 0 {
					return usageError{errors.New("--label chooses sandboxes: name one, or give labels")}
				}
				return c.runOn(cmd, args[0], func(ctx context.Context, cl *client.Client, id string) error {
					return c.listProcesses(ctx, cmd, cl, id, quiet)
				})
			}
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				list, _, err := cl.SandboxPage(ctx, client.PageRequest{Labels: labels})
				if err != nil {
					return err
				}
				if c.json() {
					return writeJSON(cmd.OutOrStdout(), list)
				}
				if quiet {
					for _, s := range list {
						fmt.Fprintln(cmd.OutOrStdout(), s.ID)
					}
					return nil
				}
				heading := "ID\tSNAPSHOT\tSTATE\tPID\tAGE\tREADY"
				if c.wide() {
					heading += "\tNETWORK\tHOSTNAME\tBRANCHES\tWORKSPACE\tLABELS"
				}
				return table(cmd, heading, func(row func(...any)) {
					for _, s := range list {
						state, pid, ready := s.State, "-", "-"
						if s.ExitReason != "" {
							state += " (" + s.ExitReason + ")"
						}
						if s.NotAnswering {
							state += " (not answering)"
						}
						if s.PID != 0 {
							pid = fmt.Sprint(s.PID)
						}
						if s.ReadyMS != nil {
							ready = fmt.Sprintf("%.1f ms", *s.ReadyMS)
						}
						cells := []any{s.ID, s.SnapshotTag, state, pid, age(s.CreatedAt), ready}
						if c.wide() {
							cells = append(cells, s.Network, s.Hostname, s.BranchCount, cmp.Or(s.Workspace, "-"), labelText(s.Labels))
						}
						row(cells...)
					}
				})
			})
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print ids only, or numbers of processes")
	selectorFlag(cmd.Flags(), &labels)
	noEffect(cmd.Flags(), "all", "a", "of docker; no effect: sandboxes that have exited are listed too")
	c.completeSandboxes(cmd)
	c.hasWide = true
	c.register(cmd)
	return cmd
}

func (c *common) listProcesses(ctx context.Context, cmd *cobra.Command, cl *client.Client, id string, quiet bool) error {
	list, err := cl.Processes(ctx, id)
	if err != nil {
		return err
	}
	if c.json() {
		return writeJSON(cmd.OutOrStdout(), list)
	}
	if quiet {
		for _, p := range list {
			fmt.Fprintln(cmd.OutOrStdout(), p.PID)
		}
		return nil
	}
	return table(cmd, "PID\tCOMMAND", func(row func(...any)) {
		for _, p := range list {
			row(p.PID, printableText(strings.Join(strings.Fields(strings.Join(p.Args, " ")), " ")))
		}
	})
}

func newPingCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "ping ID",
		Short: "Ask the agent of a sandbox for an answer",
		Args:  usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.runOn(cmd, args[0], func(ctx context.Context, cl *client.Client, id string) error {
				p, err := cl.Ping(ctx, id)
				if err != nil {
					return err
				}
				if c.json() {
					return writeJSON(cmd.OutOrStdout(), p)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "pong: kernel %s, warm interpreters %v\n", p.Kernel, p.Warm)
				return nil
			})
		},
	}
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}

func newConsoleCmd() *cobra.Command {
	var c common
	var follow bool
	cmd := &cobra.Command{
		Use:     "console ID",
		Aliases: []string{"logs"},
		Short:   "Print the last output of a sandbox's serial console",
		Long: "Works for sandboxes that have exited too. The guest decides what it writes: mind control characters. With -f it goes\n" +
			"on with what comes, to the end of the sandbox.",
		Args: usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if follow && c.json() {
				return errNoJSON
			}
			c.streams = follow
			return c.runOn(cmd, args[0], func(ctx context.Context, cl *client.Client, id string) error {
				if follow {
					return followConsole(ctx, cl, id, cmd.OutOrStdout())
				}
				p, err := cl.Console(ctx, id)
				if err != nil {
					return err
				}
				if c.json() {
					return writeJSON(cmd.OutOrStdout(), map[string]string{"console": string(p)})
				}
				_, err = cmd.OutOrStdout().Write(p)
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what comes")
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}

// consoleInterval is the time between two looks at a console that is followed.
const consoleInterval = 500 * time.Millisecond

// followConsole prints a console until its sandbox has ended. What a guest writes faster than 64 KiB
// between two looks is lost.
func followConsole(ctx context.Context, cl *client.Client, id string, out io.Writer) error {
	var seen uint64
	for first := true; ; first = false {
		s, err := cl.Sandbox(ctx, id) // before the look: after its end nothing comes
		var tail []byte
		if err == nil {
			tail, seen, err = cl.ConsoleSince(ctx, id, seen)
		}
		if client.IsNotFound(err) && !first {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := out.Write(tail); err != nil {
			return err
		}
		if s.State == "exited" {
			return nil
		}
		select {
		case <-time.After(consoleInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
