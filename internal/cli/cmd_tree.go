package cli

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

func newTreeCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "tree",
		Short: "Show snapshots and sandboxes below their origins",
		Long: "Shows a sandbox below the snapshot that it runs from, and a branch below its source sandbox or, if that\n" +
			"is gone, below the source's snapshot.",
		Args: usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (roots []*relative, err error) {
				snapshots, err := cl.Snapshots(ctx)
				if err != nil {
					return roots, err
				}
				sandboxes, err := cl.Sandboxes(ctx)
				if err != nil {
					return roots, err
				}
				return family(snapshots, sandboxes), nil
			}, func(roots []*relative) error {
				return printFamily(cmd.OutOrStdout(), roots, "")
			})
		},
	}
	c.register(cmd)
	return cmd
}

// relative is a snapshot or a sandbox, with its descendants.
type relative struct {
	Tag      string      `json:"tag,omitempty"`
	ID       string      `json:"id,omitempty"`
	State    string      `json:"state"` // state of a sandbox, or status of a snapshot
	Children []*relative `json:"children,omitempty"`
}

// family arranges snapshots and sandboxes in trees. Each occurs only once, even if the daemon's
// lists contain cycles.
func family(snapshots []client.Snapshot, sandboxes []client.Sandbox) (roots []*relative) {
	byTag, byID := map[string]*relative{}, map[string]*relative{}
	for _, s := range snapshots {
		byTag[s.Tag] = &relative{Tag: s.Tag, State: s.Status}
	}
	for _, s := range sandboxes {
		box := &relative{ID: s.ID, State: s.State}
		byID[s.ID] = box
		if parent := byTag[s.SnapshotTag]; parent != nil {
			parent.Children = append(parent.Children, box)
		} else {
			roots = append(roots, box)
		}
	}
	for _, s := range snapshots {
		own := byTag[s.Tag]
		parent := byID[s.SandboxID]
		// A sandbox that was rolled back to its own branch s is a descendant of s, not its parent.
		if parent == nil || contains(own, parent) {
			parent = byTag[s.BranchedFrom]
		}
		if parent == nil || contains(own, parent) {
			roots = append(roots, own)
		} else {
			parent.Children = append(parent.Children, own)
		}
	}
	return roots
}

func contains(tree, r *relative) bool {
	if tree == r {
		return true
	}
	for _, c := range tree.Children {
		if contains(c, r) {
			return true
		}
	}
	return false
}

func printFamily(w io.Writer, list []*relative, indent string) error {
	for i, r := range list {
		branch, below := "├─ ", "│  "
		if i == len(list)-1 {
			branch, below = "└─ ", "   "
		}
		if indent == "" {
			branch, below = "", " "
		}
		state := ""
		if r.State != "ready" && r.State != "running" {
			state = "  " + r.State
		}
		if _, err := printf(w, "%s%s%s%s%s\n", strings.TrimPrefix(indent, " "), branch, r.Tag, r.ID, state); err != nil {
			return err
		}
		if err := printFamily(w, r.Children, indent+below); err != nil {
			return err
		}
	}
	return nil
}
