package cli

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// turnRow is a row of the output of `forkd turns`.
type turnRow struct {
	Turn        int     `json:"turn"`
	Tag         string  `json:"tag"`
	CreatedAt   int64   `json:"created_at_unix"`
	By          savedBy `json:"by"`
	Agent       string  `json:"agent,omitempty"`
	Session     string  `json:"session,omitempty"`
	ID          string  `json:"id,omitempty"`
	Text        string  `json:"text,omitempty"`
	MemoryBytes uint64  `json:"memory_bytes"` // written since the previous snapshot
	DiskBytes   uint64  `json:"disk_bytes"`   // written since the previous snapshot
	After       string  `json:"after,omitempty"`
	Current     bool    `json:"current"` // the sandbox was most recently at this turn
	Undone      bool    `json:"undone"`  // the turn is not among the turns that led to the sandbox's present state
}

func newTurnsCmd() *cobra.Command {
	var c common
	var workspace string
	cmd := &cobra.Command{
		Use:   "turns",
		Short: "List the turns of an agent in a workspace",
		Long: "* marks the turn that the workspace is at or has continued from; - marks turns that were undone. MEMORY\n" +
			"and DISK are the amounts that the workspace had written since the previous turn.",
		Args: usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (rows []turnRow, err error) {
				name, err := chooseWorkspace(ctx, cl, workspace)
				if err != nil {
					return rows, err
				}
				store := &turnStore{cl: cl, name: name}
				s, has, err := store.look(ctx)
				if err != nil {
					return rows, err
				}
				return has.rows(has.current(s)), nil
			}, func(rows []turnRow) error {
				return printTurns(cmd, rows)
			})
		},
	}
	workspaceFlag(&c, cmd, &workspace)
	c.register(cmd)
	return cmd
}

// rows describes all turns of a sandbox, given the tag of the turn at which the sandbox was most
// recently.
func (t *turns) rows(now string) []turnRow {
	past := t.line(now)
	rows := make([]turnRow, 0, len(t.saved))
	for _, p := range t.saved {
		s, l := p.Snapshot, p.Snapshot.Labels
		disk, _ := strconv.ParseUint(l[turnDiskKiB], 10, 53) // 0 if the label is missing
		rows = append(rows, turnRow{Turn: p.N, Tag: s.Tag, CreatedAt: s.CreatedAt, By: p.by(), Agent: l[turnAgent],
			Session: l[turnSession], ID: l[turnID], Text: l[turnText], MemoryBytes: value(s.DirtyBytes), DiskBytes: disk << 10,
			After: t.before(s.Tag), Current: s.Tag == now, Undone: !slices.Contains(past, s.Tag)})
	}
	return rows
}

func printTurns(cmd *cobra.Command, rows []turnRow) error {
	return table(cmd, "TURN\tTAG\tWHEN\tBY\tMEMORY\tDISK\tWHAT", func(row func(...any)) {
		for _, r := range rows {
			mark := ""
			switch {
			case r.Current:
				mark = "*"
			case r.Undone:
				mark = "-"
			}
			row(strconv.Itoa(r.Turn)+mark, r.Tag, time.Unix(r.CreatedAt, 0).Format(time.DateTime), r.By,
				mib(r.MemoryBytes), mib(r.DiskBytes), r.Text)
		}
	})
}
