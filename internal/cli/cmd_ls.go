package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

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
		Short:   "List sandboxes, or the processes that exec started in one",
		Long: "PID is the process of the sandbox's VM on the daemon's host, AGE the time since the sandbox was created,\n" +
			"and READY the duration of its fork until its agent answered. OWNER, the client that created the sandbox, is\n" +
			"shown if the sandboxes have different owners, or with -o wide.",
		Args: usageArgs(arguments(0, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if len(labels) > 0 {
					return usageError{errors.New("--label chooses sandboxes: name one, or give labels")}
				}
				return showOf(cmd, &c, args[0], func(ctx context.Context, cl *client.Client,
					id string) ([]client.ProcessInfo, error) {
					return cl.Processes(ctx, id)
				}, func(list []client.ProcessInfo) error { return printProcesses(cmd, list, quiet) })
			}
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (list []client.Sandbox, err error) {
				list, _, err = cl.SandboxPage(ctx, client.PageRequest{Labels: labels})
				return list, err
			}, func(list []client.Sandbox) error {
				if quiet {
					for _, s := range list {
						printLine(cmd.OutOrStdout(), s.ID)
					}
					return nil
				}
				heading := "ID\tSNAPSHOT\tSTATE\tPID\tAGE\tREADY"
				owners := c.wide() || ownersDiffer(list)
				if owners {
					heading += "\tOWNER"
				}
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
						if owners {
							cells = append(cells, cmp.Or(s.Owner, "-"))
						}
						if c.wide() {
							cells = append(cells, s.Network, s.Hostname, s.BranchCount, cmp.Or(s.Workspace, "-"), labelText(s.Labels))
						}
						row(cells...)
					}
				})
			})
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only ids, or process ids")
	selectorFlag(cmd.Flags(), &labels)
	noEffect(cmd.Flags(), "all", "a", "of docker; no effect: sandboxes that have exited are listed too")
	c.completeSandboxes(cmd)
	c.hasWide = true
	c.register(cmd)
	return cmd
}

// ownersDiffer reports whether sandboxes have different owners. Unknown owners do not count.
func ownersDiffer(list []client.Sandbox) bool {
	first := ""
	for _, s := range list {
		if s.Owner != "" && first != "" && s.Owner != first {
			return true
		}
		first = cmp.Or(first, s.Owner)
	}
	return false
}

func printProcesses(cmd *cobra.Command, list []client.ProcessInfo, quiet bool) error {
	if quiet {
		for _, p := range list {
			printLine(cmd.OutOrStdout(), p.PID)
		}
		return nil
	}
	return table(cmd, "PID\tCOMMAND", func(row func(...any)) {
		for _, p := range list {
			row(p.PID, strings.Join(strings.Fields(strings.Join(p.Args, " ")), " "))
		}
	})
}

func newPingCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "ping ID",
		Short: "Check that the agent of a sandbox answers",
		Args:  usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return showOf(cmd, &c, args[0], func(ctx context.Context, cl *client.Client, id string) (client.Pong, error) {
				return cl.Ping(ctx, id)
			}, func(p client.Pong) error {
				printPong(cmd.OutOrStdout(), p)
				return nil
			})
		},
	}
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}

func printPong(w io.Writer, p client.Pong) {
	printf(w, "pong: kernel %s, warm interpreters %v\n", p.Kernel, p.Warm)
}

func newConsoleCmd() *cobra.Command {
	var c common
	var req client.LogsRequest
	cmd := &cobra.Command{
		Use:     "console ID",
		Aliases: []string{"logs"},
		Short:   "Print the last output of a sandbox's serial console",
		Long: "Also works for exited sandboxes. The guest controls the output, which may contain control characters. -f\n" +
			"follows the output until the sandbox ends. --since omits older output, accurate to a few lines.",
		Args: usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if req.Follow && c.json() {
				return errNoJSON
			}
			c.streams = req.Follow
			return c.runOn(cmd, args[0], func(ctx context.Context, cl *client.Client, id string) error {
				logs, err := cl.Logs(ctx, id, req)
				if err != nil {
					return err
				}
				defer logs.Close()
				if !c.json() {
					_, err = io.Copy(cmd.OutOrStdout(), logs)
					return err
				}
				p, err := io.ReadAll(logs)
				if err != nil {
					return err
				}
				return writeJSON(cmd.OutOrStdout(), map[string]string{"console": string(p)})
			})
		},
	}
	cmd.Flags().BoolVarP(&req.Follow, "follow", "f", false, "print new output as it arrives")
	cmd.Flags().StringVarP(&req.Tail, "tail", "n", "all", "number of last lines to print")
	cmd.Flags().StringVar(&req.Since, "since", "",
		"only output since a time (2006-01-02T15:04:05Z), or of the last minutes or hours (10m)")
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}
