package cli

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// idPrefix begins the id of every sandbox, and the beginning of one that stands for it.
const idPrefix = "sb-"

// wholeID matches what needs no look at the list of sandboxes.
var wholeID = regexp.MustCompile(`^sb-[a-z2-7]{26}$`)

// sandboxID returns the id of the sandbox that ref means: an id, the beginning of one that no other
// sandbox shares, or the name of a workspace. What means nothing is returned as it is: the daemon
// says that there is no such sandbox.
func sandboxID(ctx context.Context, cl *client.Client, ref string) (string, error) {
	if wholeID.MatchString(ref) {
		return ref, nil
	}
	list, err := cl.Sandboxes(ctx)
	if err != nil {
		return "", err
	}
	return findID(list, ref)
}

// runOn is run for a command on one sandbox, which ref names as for sandboxID.
func (c *common) runOn(cmd *cobra.Command, ref string, f func(ctx context.Context, cl *client.Client, id string) error) error {
	return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
		id, err := sandboxID(ctx, cl, ref)
		if err != nil {
			return err
		}
		return f(ctx, cl, id)
	})
}

func findID(list []client.Sandbox, ref string) (string, error) {
	ref = strings.TrimSuffix(ref, ellipsis) // copied from a table that was cut
	var begin []string
	for _, s := range list {
		if s.ID == ref || s.Workspace == ref && ref != "" {
			return s.ID, nil
		}
		if strings.HasPrefix(ref, idPrefix) && strings.HasPrefix(s.ID, ref) {
			begin = append(begin, s.ID)
		}
	}
	switch len(begin) {
	case 0:
		return ref, nil
	case 1:
		return begin[0], nil
	}
	slices.Sort(begin)
	return "", fmt.Errorf("sandbox %q: %d sandboxes begin like this, such as %s and %s: give more of the id", ref, len(begin), begin[0], begin[1])
}

// sandboxIDs does the same for several. Those that it cannot tell are left out, and named by the
// error.
func sandboxIDs(ctx context.Context, cl *client.Client, refs []string) ([]string, error) {
	var ids []string
	var errs []error
	for _, ref := range refs {
		id, err := sandboxID(ctx, cl, ref)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		ids = append(ids, id)
	}
	return ids, errors.Join(errs...)
}

// completeSandboxes and completeTags have the shell complete the arguments of cmd. They start no
// daemon.
func (c *common) completeSandboxes(cmd *cobra.Command) { c.complete(cmd, sandboxNames) }

func (c *common) completeTags(cmd *cobra.Command) { c.complete(cmd, tags) }

// completeBoth is for arguments that may be either.
func (c *common) completeBoth(cmd *cobra.Command) {
	c.complete(cmd, func(ctx context.Context, cl *client.Client) ([]string, error) {
		names, err := sandboxNames(ctx, cl)
		if err != nil {
			return nil, err
		}
		more, err := tags(ctx, cl)
		return append(names, more...), err
	})
}

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

func tags(ctx context.Context, cl *client.Client) (tags []string, err error) {
	list, err := cl.Snapshots(ctx)
	for _, s := range listed(list, false) {
		tags = append(tags, s.Tag)
	}
	return tags, err
}

func (c *common) complete(cmd *cobra.Command, names func(context.Context, *client.Client) ([]string, error)) {
	several := strings.Contains(cmd.Use, "…")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && !several {
			return nil, cobra.ShellCompDirectiveDefault
		}
		cl, _, err := connectWith(cmd.Context(), c.url, c.ca, nil)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		defer cl.Close()
		found, err := names(cmd.Context(), cl)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return slices.DeleteFunc(found, func(n string) bool { return !strings.HasPrefix(n, begin) || slices.Contains(args, n) }),
			cobra.ShellCompDirectiveNoFileComp
	}
}
