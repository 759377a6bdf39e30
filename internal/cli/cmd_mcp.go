package cli

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/mcp"
)

func newMCPCmd() *cobra.Command {
	c := common{streams: true}
	readOnly := false
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Serve sandboxes to a language model, as tools of the Model Context Protocol",
		Long: "Speaks the Model Context Protocol over standard input and output, until input ends. Programs for models, such as\n" +
			"Claude Code or an editor, start it: docs/mcp.md has their settings. Its tools call the daemon with your token, and a\n" +
			"model sees only the tools that the token may use. The daemon serves the same tools over HTTP at /mcp.",
		Example: "  claude mcp add forkd -- forkd mcp",
		Args:    usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.json() {
				return usageError{errors.New("-o json: there is nothing to print")}
			}
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				v, err := cl.Version(ctx)
				if err != nil {
					return err
				}
				scope, err := mcp.ParseScope(v.Scope)
				if err != nil {
					return err
				}
				if readOnly {
					scope = mcp.Read
				}
				return mcp.New(version).ServeStdio(ctx, cl, scope, io.NopCloser(cmd.InOrStdin()), unclosed{cmd.OutOrStdout()})
			})
		},
	}
	cmd.Flags().BoolVar(&readOnly, "read-only", false, "offer only tools that change nothing and that do not read from sandboxes")
	c.register(cmd)
	return cmd
}

// unclosed is a writer whose Close does nothing, because the server must not close standard output.
type unclosed struct{ io.Writer }

// Close implements io.Closer.
func (unclosed) Close() error { return nil }
