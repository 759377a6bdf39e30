package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newApplyCmd() *cobra.Command {
	var c common
	var onto string
	var maxFiles int
	var req client.ApplyRequest
	cmd := &cobra.Command{
		Use:   "apply FROM --onto ID",
		Short: "Apply the file changes of a snapshot or sandbox to another running sandbox",
		Long: "Applies the changes that FROM has made since its nearest common ancestor with the sandbox ID. ID keeps its own\n" +
			"changes and processes. All changes are applied, or none. A file that both have changed in different ways is a\n" +
			"conflict: the command lists the conflicts, exits with 1 and changes nothing, unless --prefer says which side\n" +
			"prevails.\n" +
			"Programs in ID that have opened a replaced file keep the old one.",
		Example: "  forkd apply CHILD --onto ID --dry-run\n  forkd apply CHILD --onto ID --paths /srv/app --paths /etc/app.conf",
		Args:    usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case onto == "":
				return usageError{errors.New("--onto ID is missing: the sandbox that receives the changes")}
			case req.Prefer != "" && req.Prefer != "from" && req.Prefer != "onto":
				return usageError{fmt.Errorf("--prefer %q: want from or onto", req.Prefer)}
			}
			req.MaxFiles = &maxFiles
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				req.From = args[0]
				if err := resolveSides(ctx, cl, &req.From, &onto); err != nil {
					return err
				}
				a, err := cl.Apply(ctx, onto, req)
				if problem := (*client.Error)(nil); errors.As(err, &problem) {
					printApplied(cmd.ErrOrStderr(), problem.Conflicts)
				}
				if err != nil {
					return err
				}
				if c.json() {
					return writeJSON(cmd.OutOrStdout(), a)
				}
				printApplied(cmd.OutOrStdout(), a.Files)
				verb := "applied"
				if !a.Applied {
					verb = "not applied"
				}
				printf(cmd.OutOrStdout(), "%s: %d added, %d changed, %d deleted; %s\n", verb, a.Added, a.Changed, a.Deleted,
					count(int(a.Conflicts), "conflict", "conflicts"))
				if a.Omitted {
					printf(cmd.ErrOrStderr(), "forkd: more files than listed: select some with --paths, or raise --max-files\n")
				}
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&onto, "onto", "", "the sandbox that receives the changes (required)")
	f.StringVar(&req.Base, "base", "", "the snapshot that both come from (default: their nearest common ancestor)")
	f.StringSliceVar(&req.Paths, "paths", nil, "apply only this file or directory (can be repeated)")
	f.StringVar(&req.Prefer, "prefer", "", "at a conflict: from applies the change, onto keeps the file of ID")
	f.BoolVar(&req.DryRun, "dry-run", false, "only list the changes and the conflicts")
	f.IntVar(&maxFiles, "max-files", 1000, "maximum number of files to list, up to 20000")
	c.complete(cmd, sidesOf)
	c.completeFlag(cmd, "onto", sandboxNames)
	c.register(cmd)
	return cmd
}

// printApplied prints a line for each file. The line begins with the letter that 'forkd diff
// --name-status' prints. The line of a conflict begins with C, and says what each side has done to
// the file.
func printApplied(w io.Writer, files []client.ApplyFile) {
	for _, f := range files {
		mark, more := changeMark(client.DiffFile{Change: f.Change}), ""
		if f.Conflict {
			mark, more = "C", fmt.Sprintf(": %s in FROM, %s in ID", f.From, f.Onto)
		}
		if f.Kept {
			more += "; kept"
		}
		printf(w, "%s\t%s%s\n", mark, quotedPath(f.Path), more)
	}
}
