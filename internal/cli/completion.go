package cli

import (
	"context"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/recipes"
)

// namesOf gets from a daemon the names that a shell can complete.
type namesOf func(context.Context, *client.Client) ([]string, error)

func (c *common) completeSandboxes(cmd *cobra.Command) { c.complete(cmd, sandboxNames) }

func (c *common) completeTags(cmd *cobra.Command) { c.complete(cmd, tags) }

func sandboxNames(ctx context.Context, cl *client.Client) (names []string, err error) {
	list, err := cl.Sandboxes(ctx)
	for _, s := range list {
		names = append(names, s.ID)
		if s.Workspace != "" {
			names = append(names, s.Workspace)
		}
	}
	return names, err
}

func workspaceNames(ctx context.Context, cl *client.Client) (names []string, err error) {
	list, err := cl.Workspaces(ctx)
	for _, w := range list {
		names = append(names, w.Name)
	}
	return names, err
}

func volumeNames(ctx context.Context, cl *client.Client) (names []string, err error) {
	list, err := cl.Volumes(ctx)
	for _, v := range list {
		names = append(names, v.Name)
	}
	return names, err
}

func tags(ctx context.Context, cl *client.Client) (tags []string, err error) {
	list, err := cl.Snapshots(ctx)
	for _, s := range listed(list, false) {
		tags = append(tags, s.Tag)
	}
	return tags, err
}

func recipeNames(context.Context, *client.Client) (names []string, err error) {
	entries, err := fs.ReadDir(recipes.FS, ".")
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// complete sets the names with which the shell completes the first argument of cmd, or all
// arguments if cmd takes several.
func (c *common) complete(cmd *cobra.Command, names namesOf) {
	several := strings.Contains(cmd.Use, "ID…") || strings.Contains(cmd.Use, "TAG…") || strings.Contains(cmd.Use, "NAME…")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && !several {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return c.candidates(cmd, names, args, begin)
	}
}

// completeFlag sets the names with which the shell completes the value of a flag.
func (c *common) completeFlag(cmd *cobra.Command, flag string, names namesOf) {
	_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, begin string) ([]string,
		cobra.ShellCompDirective) {
		return c.candidates(cmd, names, nil, begin)
	}) // RegisterFlagCompletionFunc fails only for a flag that does not exist
}

// completeVolumes sets up completion of the volume in the value NAME:/PATH of the flag --volume.
// The shell completes directories by itself.
func (c *common) completeVolumes(cmd *cobra.Command) {
	_ = cmd.RegisterFlagCompletionFunc("volume", func(cmd *cobra.Command, _ []string, begin string) ([]string,
		cobra.ShellCompDirective) {
		return c.beforeColon(cmd, volumeNames, begin)
	}) // RegisterFlagCompletionFunc fails only for a flag that does not exist
}

// beforeColon returns names, each with a colon. Without names, the shell completes files.
func (c *common) beforeColon(cmd *cobra.Command, names namesOf, begin string) ([]string, cobra.ShellCompDirective) {
	found, directive := c.candidates(cmd, names, nil, begin)
	for i := range found {
		found[i] += ":"
	}
	if directive == cobra.ShellCompDirectiveError || len(found) == 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return found, cobra.ShellCompDirectiveNoSpace
}

// completeWords sets the words with which the shell completes the value of a flag.
func completeWords(cmd *cobra.Command, flag string, words ...string) {
	// This fails only for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// completePath sets up completion of the sandbox in an argument ID:PATH. The shell completes local
// files by itself.
func (c *common) completePath(cmd *cobra.Command) {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, _ []string, begin string) ([]string, cobra.ShellCompDirective) {
		return c.beforeColon(cmd, sandboxNames, begin)
	}
}

// completeProcess sets up completion of two arguments: the first is a sandbox, and the second is
// one of its processes.
func (c *common) completeProcess(cmd *cobra.Command) {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return c.candidates(cmd, sandboxNames, nil, begin)
		case 1:
			return c.candidates(cmd, processesOf(args[0]), nil, begin)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

func processesOf(ref string) namesOf {
	return func(ctx context.Context, cl *client.Client) (pids []string, err error) {
		id, err := sandboxID(ctx, cl, ref)
		if err != nil {
			return nil, err
		}
		list, err := cl.Processes(ctx, id)
		for _, p := range list {
			pids = append(pids, fmt.Sprint(p.PID))
		}
		return pids, err
	}
}

// either(a, b) is a function that returns the names of both a and b.
func either(a, b namesOf) namesOf {
	return func(ctx context.Context, cl *client.Client) ([]string, error) {
		names, err := a(ctx, cl)
		if err != nil {
			return nil, err
		}
		more, err := b(ctx, cl)
		return append(names, more...), err
	}
}

// plainName matches the names that are offered to a shell. The completion scripts pass the words of
// a command line to eval, so a name with special characters could run commands when the user
// presses Tab.
var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@-]*$`)

// candidates returns the names that begin with the given text and are not yet among the arguments.
// It omits names that plainName does not match, because the daemon is not trusted. It does not
// start a daemon.
func (c *common) candidates(cmd *cobra.Command, names namesOf, args []string, begin string) ([]string,
	cobra.ShellCompDirective) {
	cl, _, err := connectWith(cmd.Context(), c.url, c.ca, nil)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	defer cl.Close()
	found, err := names(cmd.Context(), cl)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return slices.DeleteFunc(found, func(n string) bool {
			return !strings.HasPrefix(n, begin) || slices.Contains(args, n) || !plainName.MatchString(n)
		}),
		cobra.ShellCompDirectiveNoFileComp
}
