package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/pause"
)

func newTreeCmd() *cobra.Command {
	var c common
	var watch bool
	cmd := &cobra.Command{
		Use:   "tree",
		Short: "Show snapshots and sandboxes below their origins",
		Long: "Shows a sandbox below the snapshot that it runs from, and a branch below its source sandbox or, if that\n" +
			"is gone, below the source's snapshot. The owners of sandboxes are shown if they differ, or with -o wide.",
		Example: "  forkd tree --watch   # until Ctrl-C; 'forkd ui' shows the same tree in the browser",
		Args:    usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if watch && (c.json() || !canRedraw(cmd.OutOrStdout())) {
				return usageError{errors.New("--watch draws on a terminal only: 'forkd events' follows changes in a program")}
			}
			c.streams = watch
			if watch {
				return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
					return watchTree(ctx, cl, cmd.OutOrStdout(), c.wide())
				})
			}
			var owners bool
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (roots []*relative, err error) {
				roots, owners, err = fetchFamily(ctx, cl)
				return roots, err
			}, func(roots []*relative) error {
				return printFamily(cmd.OutOrStdout(), roots, "", owners || c.wide())
			})
		},
	}
	c.hasWide = true
	cmd.Flags().BoolVar(&watch, "watch", false, "draw the tree again when it changes, until Ctrl-C")
	c.register(cmd)
	return cmd
}

// fetchFamily returns the trees of all snapshots and sandboxes. The result owners is true if
// sandboxes have different owners.
func fetchFamily(ctx context.Context, cl *client.Client) (roots []*relative, owners bool, err error) {
	snapshots, err := cl.Snapshots(ctx)
	if err != nil {
		return nil, false, err
	}
	sandboxes, err := cl.Sandboxes(ctx)
	if err != nil {
		return nil, false, err
	}
	return family(snapshots, sandboxes), ownersDiffer(sandboxes), nil
}

// redrawPause is the minimum time between two drawings of a tree.
const redrawPause = 200 * time.Millisecond

// watchTree draws the tree on a terminal whenever the daemon reports an event. If wide is true, it
// always shows owners.
func watchTree(ctx context.Context, cl *client.Client, out io.Writer, wide bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changed, failed := make(chan struct{}, 1), make(chan error, 1)
	notice := func() {
		select {
		case changed <- struct{}{}:
		default: // a drawing is due already
		}
	}
	go func() {
		failed <- cl.Events(ctx, client.EventsRequest{Begun: notice}, func(client.Event) error { notice(); return nil })
	}()
	for {
		select {
		case err := <-failed:
			return err
		case <-changed:
		}
		roots, owners, err := fetchFamily(ctx, cl)
		if err != nil {
			return err
		}
		var text strings.Builder
		if err := printFamily(&text, roots, "", owners || wide); err != nil {
			return err
		}
		height := 0
		if size, ok := terminalSize(out); ok {
			height = int(size.Rows)
		}
		if _, err := io.WriteString(out, clearScreen+fitLines(text.String(), height)); err != nil {
			return err
		}
		if err := pause.For(ctx, redrawPause); err != nil {
			return err
		}
	}
}

// fitLines shortens a text to the lines that a terminal of the given height can show, and adds a
// line with the number of omitted lines. If height is 0, it returns the whole text.
func fitLines(text string, height int) string {
	lines := strings.SplitAfter(text, "\n")
	room := max(height-2, 1)
	if height == 0 || len(lines)-1 <= room {
		return text
	}
	return strings.Join(lines[:room], "") + fmt.Sprintf("and %d more\n", len(lines)-1-room)
}

// relative is a snapshot or a sandbox, with its descendants.
type relative struct {
	Tag      string      `json:"tag,omitempty"`
	ID       string      `json:"id,omitempty"`
	State    string      `json:"state"` // state of a sandbox, or status of a snapshot
	Owner    string      `json:"owner,omitempty"`
	Children []*relative `json:"children,omitempty"`
}

// family arranges snapshots and sandboxes in trees. Each snapshot or sandbox occurs only once, even
// if the daemon's lists contain cycles.
func family(snapshots []client.Snapshot, sandboxes []client.Sandbox) (roots []*relative) {
	byTag, byID := map[string]*relative{}, map[string]*relative{}
	for _, s := range snapshots {
		byTag[s.Tag] = &relative{Tag: s.Tag, State: s.Status}
	}
	for _, s := range sandboxes {
		box := &relative{ID: s.ID, State: s.State, Owner: s.Owner}
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
		// If a sandbox was rolled back to its own branch s, the sandbox is a descendant of s, and
		// not the parent of s.
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

// printFamily draws trees. If owners is true, it shows the owners of sandboxes.
func printFamily(w io.Writer, list []*relative, indent string, owners bool) error {
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
		owner := ""
		if owners && r.Owner != "" {
			owner = "  owner=" + r.Owner
		}
		_, err := printf(w, "%s%s%s%s%s%s\n", strings.TrimPrefix(indent, " "), branch, r.Tag, r.ID, state, owner)
		if err != nil {
			return err
		}
		if err := printFamily(w, r.Children, indent+below, owners); err != nil {
			return err
		}
	}
	return nil
}
