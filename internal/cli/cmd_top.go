package cli

import (
	"cmp"
	"context"
	"errors"
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

// parallelStats is the number of sandboxes that are measured at the same time.
const parallelStats = 8

func newTopCmd() *cobra.Command {
	t := newTop()
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the resource use of sandboxes, the busiest first",
		Long: "Shows running sandboxes with their CPU use since the previous measurement (100% is one CPU) and their\n" +
			"memory, until Ctrl-C. Without a terminal, and with --once, it measures one interval and prints once.",
		Args: usageArgs(func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("it shows all sandboxes: 'forkd ls %s' lists the processes of one, 'forkd stats %s' shows its resource use", args[0], args[0])
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, _ []string) error { return t.run(cmd) },
	}
	t.register(cmd)
	return cmd
}

func newStatsCmd() *cobra.Command {
	t := newTop()
	var since secondsValue
	cmd := &cobra.Command{
		Use:   "stats [ID…]",
		Short: "Show the resource use of running sandboxes",
		Long: "Without an ID, it shows all running sandboxes, as 'forkd top' does. With --since it shows how the use of one\n" +
			"sandbox has changed: each second of the last ten minutes or, for a longer time, each minute of the last day.",
		RunE: func(cmd *cobra.Command, refs []string) error {
			if since != 0 {
				return historyOf(cmd, &t.c, refs, since.duration())
			}
			if len(refs) == 0 {
				return t.run(cmd)
			}
			return t.c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				return t.c.stats(ctx, cmd, cl, refs)
			})
		},
	}
	t.c.hasWide = true
	t.register(cmd)
	cmd.Flags().Var(&since, "since", "show the history of one sandbox, from this time ago, such as 10m; also seconds")
	noEffect(cmd.Flags(), "all", "a", "of docker; no effect: those that do not run cost nothing")
	cmd.Flags().BoolVar(&t.once, "no-stream", false, "docker's name for --once")
	_ = cmd.Flags().MarkHidden("no-stream") // fails only for a flag that does not exist
	t.c.completeSandboxes(cmd)
	return cmd
}

// stats prints the usage of each named sandbox. If one sandbox fails, stats continues with the
// next.
func (c *common) stats(ctx context.Context, cmd *cobra.Command, cl *client.Client, refs []string) error {
	type line struct {
		ID string `json:"id"`
		client.Stats
	}
	lines := []line{}
	ids, err := sandboxIDs(ctx, cl, refs)
	errs := []error{err}
	for _, id := range ids {
		s, err := cl.Stats(ctx, id)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		lines = append(lines, line{id, s})
	}
	switch {
	case c.json() && len(refs) == 1 && len(lines) == 1:
		errs = append(errs, writeJSON(cmd.OutOrStdout(), lines[0]))
	case c.json():
		errs = append(errs, writeJSON(cmd.OutOrStdout(), lines))
	case len(lines) > 0:
		heading := "ID\tPID\tPSS\tPRIVATE\tGUEST DIRTY\tCPU\tMEMORY LIMIT"
		if c.wide() {
			heading += "\tVMM PRIVATE\tKVM EXITS"
		}
		errs = append(errs, table(cmd, heading, func(row func(...any)) {
			for _, s := range lines {
				limit := "-"
				if s.Limits.MemoryMiB != 0 {
					limit = fmt.Sprintf("%d MiB", s.Limits.MemoryMiB)
				}
				cells := []any{s.ID, s.PID, kib(s.PSS), kib(s.Private), kib(s.GuestDirty),
					fmt.Sprintf("%.1f s", s.Usage.CPUSeconds), limit}
				if c.wide() {
					cells = append(cells, kib(s.VMMPrivate), s.KVMExits)
				}
				row(cells...)
			}
		}))
	}
	return errors.Join(errs...)
}

// kib formats an amount of memory in KiB.
func kib(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d KiB", n)
	}
	return mib(n << 10)
}

// topRow is the usage of one sandbox.
type topRow struct {
	ID         string  `json:"id"`
	Snapshot   string  `json:"snapshot_tag"`
	CPUPercent float64 `json:"cpu_percent"` // percentage of one CPU, since the previous measurement
	CPUSeconds float64 `json:"cpu_seconds"`
	PSSKiB     uint64  `json:"pss_kib"`
	PrivateKiB uint64  `json:"private_kib"`
	CreatedAt  int64   `json:"created_at"`
}

// top is the state of `forkd top`, which measures repeatedly.
type top struct {
	c        common
	once     bool
	interval secondsValue

	cl     *client.Client
	before map[string]float64 // CPU seconds at the previous measurement, by id
	at     time.Time
}

func newTop() *top { return &top{c: common{streams: true}, interval: 2} }

func (t *top) register(cmd *cobra.Command) {
	cmd.Flags().Var(&t.interval, "interval", "time between two measurements, in seconds or such as 500ms")
	cmd.Flags().BoolVar(&t.once, "once", false, "print once and exit")
	t.c.register(cmd)
}

func (t *top) run(cmd *cobra.Command) error {
	if t.interval <= 0 {
		return usageError{errors.New("--interval: want more than 0")}
	}
	out := cmd.OutOrStdout()
	return t.c.run(cmd, func(ctx context.Context, cl *client.Client) error {
		t.cl = cl
		if _, err := t.measure(ctx); err != nil {
			return err
		}
		for {
			select {
			case <-time.After(t.interval.duration()):
			case <-ctx.Done():
				return ctx.Err()
			}
			rows, err := t.measure(ctx)
			if err != nil {
				return err
			}
			if t.c.json() {
				return writeJSON(out, rows)
			}
			if t.once || !canRedraw(out) {
				return printTop(out, tableWidth(cmd), rows)
			}
			if err := redraw(out, tableWidth(cmd), rows); err != nil {
				return err
			}
		}
	})
}

// measure returns the usage of the running sandboxes, the busiest first. It omits a sandbox that
// ends during the measurement.
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
		return cmp.Or(cmp.Compare(b.CPUPercent, a.CPUPercent), cmp.Compare(b.PrivateKiB, a.PrivateKiB),
			strings.Compare(a.ID, b.ID))
	})
	return rows, failed
}

func printTop(out io.Writer, width int, rows []topRow) error {
	return writeTable(out, width, "ID\tSNAPSHOT\tCPU\tCPU TIME\tPSS\tPRIVATE\tAGE", func(row func(...any)) {
		for _, r := range rows {
			row(r.ID, r.Snapshot, fmt.Sprintf("%.1f%%", r.CPUPercent), fmt.Sprintf("%.1f s", r.CPUSeconds),
				kib(r.PSSKiB), kib(r.PrivateKiB), age(r.CreatedAt))
		}
	})
}

// clearScreen moves the cursor to the upper left corner and clears the screen.
const clearScreen = "\x1b[H\x1b[2J"

// redraw shows as many rows as the terminal has lines for.
func redraw(out io.Writer, width int, rows []topRow) error {
	more := 0
	if size, ok := terminalSize(out); ok {
		if room := max(int(size.Rows)-3, 1); len(rows) > room {
			rows, more = rows[:room], len(rows)-room
		}
	}
	var b strings.Builder
	b.WriteString(clearScreen)
	if err := printTop(&b, width, rows); err != nil {
		return err
	}
	if more > 0 {
		printf(&b, "and %d more\n", more)
	}
	_, err := io.WriteString(out, b.String())
	return err
}
