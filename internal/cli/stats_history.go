package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// historyOf prints the history of a sandbox, oldest first.
func historyOf(cmd *cobra.Command, c *common, refs []string, since time.Duration) error {
	if len(refs) != 1 {
		return usageError{errors.New("--since shows the history of one sandbox: name one")}
	}
	return showOf(cmd, c, refs[0], func(ctx context.Context, cl *client.Client, id string) (client.Metrics, error) {
		return cl.Metrics(ctx, id, client.MetricsRequest{Since: time.Now().Add(-since)})
	}, func(m client.Metrics) error {
		if len(m.Points) == 0 {
			printf(cmd.ErrOrStderr(), "no history: the sandbox did not run, the daemon has just started, or its host does not measure sandboxes\n")
		}
		return table(cmd, "TIME\tCPU\tMEMORY\tOWN\tREAD/S\tWRITTEN/S", func(row func(...any)) {
			for _, p := range m.Points {
				row(time.UnixMilli(int64(1000*p.At)).Format(time.TimeOnly), fmt.Sprintf("%.1f%%", 100*p.CPUs),
					kib(p.MemoryBytes>>10), kib(p.OwnBytes>>10), kib(uint64(p.ReadRate)>>10), kib(uint64(p.WrittenRate)>>10))
			}
		})
	})
}
