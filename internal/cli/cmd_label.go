package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/forkd/forkd/client"
)

// labelFlag registers --label for a command that makes sandboxes.
func labelFlag(f *pflag.FlagSet, to *[]string) {
	f.StringArrayVarP(to, "label", "l", nil, "NAME=VALUE to find the sandboxes by (repeatable)")
}

// selectorFlag registers --label for a command that selects sandboxes.
func selectorFlag(f *pflag.FlagSet, to *[]string) {
	f.StringArrayVarP(to, "label", "l", nil,
		"NAME=VALUE, or NAME: only sandboxes with that label (repeatable: with all of them)")
}

// parseLabels turns NAME=VALUE arguments into a map.
func parseLabels(pairs []string) (map[string]string, error) {
	labels := make(map[string]string, len(pairs))
	for _, p := range pairs {
		name, value, ok := strings.Cut(p, "=")
		if !ok || name == "" {
			return nil, usageError{fmt.Errorf("--label %q: want NAME=VALUE", p)}
		}
		labels[name] = value
	}
	return labels, nil
}

// labelText returns a sandbox's labels for one column.
func labelText(labels map[string]string) string {
	if len(labels) == 0 {
		return "-"
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		list = append(list, name+"="+labels[name])
	}
	return strings.Join(list, ",")
}

// labeled is the output of `forkd label`.
type labeled struct {
	ID     string            `json:"id"`
	Labels map[string]string `json:"labels"`
}

func newLabelCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "label ID [NAME=VALUE | NAME-]…",
		Short: "Show, set or remove labels of a sandbox",
		Long: "NAME=VALUE sets a label, NAME- removes it; other labels stay. Branches and their children inherit no\n" +
			"labels.",
		Example: "  forkd label ID job=7 owner-\n  forkd ls --label job=7",
		Args:    usageArgs(arguments(1, anyNumber)),
		RunE: func(cmd *cobra.Command, args []string) error {
			change, err := parseLabelChange(args[1:])
			if err != nil {
				return err
			}
			return showOf(cmd, &c, args[0], func(ctx context.Context, cl *client.Client, id string) (labeled, error) {
				s, err := cl.Sandbox(ctx, id)
				if err == nil && len(change) > 0 {
					s, err = cl.ChangeLabels(ctx, id, change)
				}
				return labeled{s.ID, s.Labels}, err
			}, func(s labeled) error {
				for _, name := range slices.Sorted(maps.Keys(s.Labels)) {
					printf(cmd.OutOrStdout(), "%s=%s\n", name, s.Labels[name])
				}
				return nil
			})
		},
	}
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}

func parseLabelChange(args []string) (map[string]*string, error) {
	change := make(map[string]*string)
	for _, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		gone, ends := strings.CutSuffix(arg, "-")
		switch {
		case ok && name != "":
			change[name] = &value
		case !ok && ends && gone != "":
			change[gone] = nil
		default:
			return nil, usageError{errors.New(arg + ": want NAME=VALUE, or NAME- to remove a label")}
		}
	}
	return change, nil
}
