package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// parallelStats is how many sandboxes are asked at once.
const parallelStats = 8

func newTopCmd() *cobra.Command {
	var c common
	var once bool
	interval := secondsValue(2)
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show what sandboxes use, the busiest first",
		Long: "Shows running sandboxes with their share of CPU time since the line before (100% is one CPU) and their memory, again\n" +
			"and again until Ctrl-C. Without a terminal, and with --once, it measures for one interval and prints once.",
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval <= 0 {
				return usageError{fmt.Errorf("--interval: want more than 0")}
			}
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				t := top{cl: cl, pause: time.Duration(float64(interval) * float64(time.Second))}
				if _, err := t.measure(ctx); err != nil {
					return err
				}
				for {
					select {
					case <-time.After(t.pause):
					case <-ctx.Done():
						return ctx.Err()
					}
					rows, err := t.measure(ctx)
					if err != nil {
						return err
					}
					if c.json() {
						return writeJSON(cmd.OutOrStdout(), rows)
					}
					if once || !isTerminal(cmd.OutOrStdout()) {
						return printTop(cmd.OutOrStdout(), rows)
					}
					if err := redraw(cmd.OutOrStdout(), rows); err != nil {
						return err
					}
				}
			})
		},
	}
	cmd.Flags().Var(&interval, "interval", "time between two measurements, in seconds or such as 500ms")
	cmd.Flags().BoolVar(&once, "once", false, "print once and end")
	c.register(cmd)
	return cmd
}

// topRow is what one sandbox uses.
type topRow struct {
	ID         string  `json:"id"`
	Snapshot   string  `json:"snapshot_tag"`
	CPUPercent float64 `json:"cpu_percent"` // of one CPU, since the measurement before
	CPUSeconds float64 `json:"cpu_seconds"`
	PSSKiB     uint64  `json:"pss_kib"`
	PrivateKiB uint64  `json:"private_kib"`
	CreatedAt  int64   `json:"created_at"`
}

// top measures again and again.
type top struct {
	cl     *client.Client
	pause  time.Duration
	before map[string]float64 // CPU seconds by id
	at     time.Time
}

// measure returns the sandboxes that run, the busiest first. One that has gone meanwhile is left out.
func (t *top) measure(ctx context.Context) ([]topRow, error) {
	list, err := t.cl.Sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	var (
		mu     sync.Mutex
		rows   = []topRow{}
		failed error
		slots  = make(chan struct{}, parallelStats)
		group  sync.WaitGroup
	)
	for _, s := range list {
		if s.State != "running" && s.State != "paused" {
			continue
		}
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			stats, err := t.cl.Stats(ctx, s.ID)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				if !client.IsNotFound(err) && !client.IsStatus(err, http.StatusConflict) {
					failed = err
				}
				return
			}
			rows = append(rows, topRow{ID: s.ID, Snapshot: s.SnapshotTag, CPUSeconds: stats.Usage.CPUSeconds, PSSKiB: stats.PSS,
				PrivateKiB: stats.Private, CreatedAt: s.CreatedAt})
		})
	}
	group.Wait()
	used := make(map[string]float64, len(rows))
	for i := range rows {
		r := &rows[i]
		used[r.ID] = r.CPUSeconds
		if before, ok := t.before[r.ID]; ok {
			r.CPUPercent = max(0, 100*(r.CPUSeconds-before)/now.Sub(t.at).Seconds())
		}
	}
	t.before, t.at = used, now
	slices.SortFunc(rows, func(a, b topRow) int {
		return cmp.Or(cmp.Compare(b.CPUPercent, a.CPUPercent), cmp.Compare(b.PrivateKiB, a.PrivateKiB), strings.Compare(a.ID, b.ID))
	})
	return rows, failed
}

func printTop(out io.Writer, rows []topRow) error {
	return table(out, "ID\tSNAPSHOT\tCPU\tCPU TIME\tPSS\tPRIVATE\tAGE", func(row func(...any)) {
		for _, r := range rows {
			row(r.ID, r.Snapshot, fmt.Sprintf("%.1f%%", r.CPUPercent), fmt.Sprintf("%.1f s", r.CPUSeconds),
				fmt.Sprintf("%.1f MiB", float64(r.PSSKiB)/1024), fmt.Sprintf("%.1f MiB", float64(r.PrivateKiB)/1024), age(r.CreatedAt))
		}
	})
}

// clearScreen puts the cursor into the upper left corner and empties the screen.
const clearScreen = "\x1b[H\x1b[2J"

// redraw shows as many rows as the terminal has lines for.
func redraw(out io.Writer, rows []topRow) error {
	more := 0
	if size, ok := terminalSize(out); ok {
		if room := max(int(size.Rows)-3, 1); len(rows) > room {
			rows, more = rows[:room], len(rows)-room
		}
	}
	var b strings.Builder
	b.WriteString(clearScreen)
	if err := printTop(&b, rows); err != nil {
		return err
	}
	if more > 0 {
		fmt.Fprintf(&b, "and %d more\n", more)
	}
	_, err := io.WriteString(out, b.String())
	return err
}
