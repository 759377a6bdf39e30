package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newLsCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List sandboxes",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				list, err := cl.Sandboxes(ctx)
				if err != nil {
					return err
				}
				if c.json() {
					return writeJSON(cmd.OutOrStdout(), list)
				}
				return table(cmd.OutOrStdout(), "ID\tSNAPSHOT\tSTATE\tPID\tAGE\tREADY", func(row func(...any)) {
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
						row(s.ID, s.SnapshotTag, state, pid, age(s.CreatedAt), ready)
					}
				})
			})
		},
	}
	c.register(cmd)
	return cmd
}

func newStatsCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "stats ID",
		Short: "Say what a running sandbox costs",
		Args:  usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				s, err := cl.Stats(ctx, args[0])
				if err != nil {
					return err
				}
				if c.json() {
					return writeJSON(cmd.OutOrStdout(), s)
				}
				return table(cmd.OutOrStdout(), "PID\tPSS\tPRIVATE\tGUEST DIRTY\tVMM PRIVATE\tKVM EXITS", func(row func(...any)) {
					kib := func(n uint64) string { return fmt.Sprintf("%d KiB", n) }
					row(s.PID, kib(s.PSS), kib(s.Private), kib(s.GuestDirty), kib(s.VMMPrivate), s.KVMExits)
				})
			})
		},
	}
	c.register(cmd)
	return cmd
}

func newPingCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "ping ID",
		Short: "Ask the agent of a sandbox for an answer",
		Args:  usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				p, err := cl.Ping(ctx, args[0])
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
	c.register(cmd)
	return cmd
}

func newConsoleCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "console ID",
		Short: "Print the last output of a sandbox's serial console",
		Long:  "Works for sandboxes that have exited too. The guest decides what it writes: mind control characters.",
		Args:  usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				p, err := cl.Console(ctx, args[0])
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
	c.register(cmd)
	return cmd
}
