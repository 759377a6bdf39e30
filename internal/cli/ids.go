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

// idPrefix is the prefix of every sandbox id, and of abbreviated ids.
const idPrefix = "sb-"

// wholeID matches a complete id. Such an id is used without asking the daemon for its list of
// sandboxes.
var wholeID = regexp.MustCompile(`^sb-[a-z2-7]{26}$`)

// sandboxID returns the id of the sandbox that ref names. A ref is an id, the unambiguous beginning
// of an id, or the name of a workspace. sandboxID returns any other ref unchanged. The daemon then
// reports that there is no such sandbox.
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

// runOn is like c.run, but for a command with one sandbox. It resolves ref with sandboxID, and calls
// f with the sandbox's id.
func (c *common) runOn(cmd *cobra.Command, ref string, f func(ctx context.Context, cl *client.Client,
	id string) error) error {
	return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
		id, err := sandboxID(ctx, cl, ref)
		if err != nil {
			return err
		}
		return f(ctx, cl, id)
	})
}

// resolveSides replaces each side of a comparison with the result of sandboxID. A side may be
// empty.
func resolveSides(ctx context.Context, cl *client.Client, sides ...*string) (err error) {
	for _, side := range sides {
		if *side == "" {
			continue
		}
		if *side, err = sandboxID(ctx, cl, *side); err != nil {
			return err
		}
	}
	return nil
}

func findID(list []client.Sandbox, ref string) (string, error) {
	ref = strings.TrimSuffix(ref, ellipsis) // the user may have copied ref from a truncated table
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
	return "", fmt.Errorf("sandbox %q: %d ids begin with this, such as %s and %s: give more of the id", ref,
		len(begin), begin[0], begin[1])
}

// sandboxIDs is like sandboxID, but for several sandboxes. It omits the sandboxes that it cannot
// find, and names them in its error.
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
