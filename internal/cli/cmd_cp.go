package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// remotePath splits "ID:/path". Sandbox ids have a fixed prefix, so that local paths with colons stay usable.
func remotePath(arg string) (id, path string, ok bool) {
	id, path, ok = strings.Cut(arg, ":")
	return id, path, ok && strings.HasPrefix(id, "sb-") && path != ""
}

func newCpCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "cp FILE ID:PATH | ID:PATH FILE",
		Short: "Copy a file into or out of a sandbox; FILE may be - for standard input or output",
		Args:  usageArgs(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			fromID, fromPath, out := remotePath(args[0])
			toID, toPath, in := remotePath(args[1])
			if in == out {
				return usageError{errors.New("one of the two must be ID:PATH, the other a local file")}
			}
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				if in {
					return copyIn(ctx, cl, args[0], toID, toPath, cmd.InOrStdin())
				}
				return copyOut(ctx, cl, fromID, fromPath, args[1], cmd.OutOrStdout())
			})
		},
	}
	c.register(cmd)
	return cmd
}

func copyIn(ctx context.Context, cl *client.Client, local, id, path string, stdin io.Reader) error {
	if local == "-" {
		return cl.WriteFile(ctx, id, path, stdin)
	}
	f, err := os.Open(local)
	if err != nil {
		return err
	}
	defer f.Close()
	return cl.WriteFile(ctx, id, path, f)
}

func copyOut(ctx context.Context, cl *client.Client, id, path, local string, stdout io.Writer) (err error) {
	r, err := cl.ReadFile(ctx, id, path)
	if err != nil {
		return err
	}
	defer r.Close()
	if local == "-" {
		_, err = io.Copy(stdout, r)
		return err
	}
	f, err := os.Create(local)
	if err != nil {
		return err
	}
	if _, err = io.Copy(f, r); err != nil {
		err = fmt.Errorf("copy %s:%s, %s is incomplete: %w", id, path, local, err)
	}
	return errors.Join(err, f.Close())
}
