package cli

import (
	"context"
	"errors"
	"sync"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// parallelKills is the number of sandboxes that are killed at the same time.
const parallelKills = 16

func newKillCmd() *cobra.Command {
	var c common
	var all bool
	var tag string
	var labels []string
	cmd := &cobra.Command{
		Use:     "kill ID… | --all | --tag TAG | --label NAME=VALUE",
		Aliases: []string{"rm"},
		Short:   "Kill sandboxes and remove all of their files",
		Long:    "Prints the ids of the killed sandboxes.",
		Args: func(_ *cobra.Command, args []string) error {
			if ways := btoi(len(args) > 0) + btoi(all) + btoi(tag != "" || len(labels) > 0); ways != 1 {
				return usageError{errors.New("give one of the three: ids of sandboxes; --all; or --tag TAG, --label NAME=VALUE or both")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, ids []string) error {
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				var unclear error
				if len(ids) > 0 {
					ids, unclear = sandboxIDs(ctx, cl, ids)
				} else {
					list, _, err := cl.SandboxPage(ctx, client.PageRequest{Labels: labels})
					if err != nil {
						return err
					}
					for _, s := range list {
						if s.Workspace == "" && (tag == "" || s.SnapshotTag == tag) {
							ids = append(ids, s.ID)
						}
					}
				}
				killed, err := killAll(ctx, cl, ids)
				err = errors.Join(unclear, err)
				if c.json() {
					return errors.Join(err, writeJSON(cmd.OutOrStdout(), map[string]any{"killed": killed}))
				}
				for _, id := range killed {
					printLine(cmd.OutOrStdout(), id)
				}
				printf(cmd.ErrOrStderr(), "forkd: %d killed\n", len(killed))
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all sandboxes except those of workspaces")
	cmd.Flags().StringVar(&tag, "tag", "", "all sandboxes of a snapshot except those of workspaces")
	selectorFlag(cmd.Flags(), &labels)
	noEffect(cmd.Flags(), "force", "f", "of docker; no effect: running sandboxes end too")
	noEffect(cmd.Flags(), "volumes", "v", "of docker; no effect: nothing of a sandbox is left")
	c.completeSandboxes(cmd)
	c.completeFlag(cmd, "tag", tags)
	c.register(cmd)
	return cmd
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// killAll kills sandboxes and returns the ids of the killed sandboxes. It continues after an error.
func killAll(ctx context.Context, cl *client.Client, ids []string) ([]string, error) {
	errs := make([]error, len(ids))
	slots := make(chan struct{}, parallelKills)
	var group sync.WaitGroup
	for i, id := range ids {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			errs[i] = cl.Kill(ctx, id)
		})
	}
	group.Wait()
	killed := []string{}
	for i, id := range ids {
		if errs[i] == nil {
			killed = append(killed, id)
		}
	}
	return killed, errors.Join(errs...)
}
