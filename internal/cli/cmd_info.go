package cli

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/doctor"
	"github.com/forkd/forkd/internal/pause"
)

// overview is the output of `forkd info`.
type overview struct {
	Program    string         `json:"program"` // version of this program
	Where      string         `json:"daemon_url"`
	TokenFile  string         `json:"token_file,omitempty"` // file with the token of the daemon in an emulated host
	Daemon     client.Version `json:"daemon"`
	Sandboxes  map[string]int `json:"sandboxes"` // number of sandboxes, by state
	Snapshots  map[string]int `json:"snapshots"` // number of snapshots, by status
	Workspaces int            `json:"workspaces"`
}

func newInfoCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Show which daemon answers, and its resources",
		Long:  "'forkd doctor' reports what this host lacks, and 'forkd df' the disk usage of snapshots.",
		Args:  usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (overview, error) {
				o, err := look(ctx, cl, c.where)
				if c.url == "" && os.Getenv(urlEnv) == "" { // connect uses the same condition
					if m, ready, _ := runningMachine(); ready {
						o.TokenFile = tokenFile(m)
					}
				}
				return o, err
			}, func(o overview) error {
				return printOverview(cmd, &o)
			})
		},
	}
	c.register(cmd)
	return cmd
}

func look(ctx context.Context, cl *client.Client, where string) (o overview, err error) {
	o = overview{Program: version, Where: where, Sandboxes: map[string]int{}, Snapshots: map[string]int{}}
	if o.Daemon, err = cl.Version(ctx); err != nil {
		return o, err
	}
	sandboxes, err := cl.Sandboxes(ctx)
	if err != nil {
		return o, err
	}
	for _, s := range sandboxes {
		o.Sandboxes[s.State]++
	}
	snapshots, err := cl.Snapshots(ctx)
	if err != nil {
		return o, err
	}
	for _, s := range listed(snapshots, false) {
		o.Snapshots[s.Status]++
	}
	workspaces, err := cl.Workspaces(ctx)
	o.Workspaces = len(workspaces)
	return o, err
}

func printOverview(cmd *cobra.Command, o *overview) error {
	return values(cmd, "PROGRAM\tforkd "+o.Program, func(row func(...any)) {
		row("DAEMON", fmt.Sprintf("forkd %s at %s, API %s, accel %s", o.Daemon.Version, o.Where, o.Daemon.API,
			o.Daemon.Accel))
		row("HOST", fmt.Sprintf("%d MiB of memory", o.Daemon.HostMemoryMiB))
		if o.Daemon.NoKVM != "" {
			row("NO VMS", o.Daemon.NoKVM)
		}
		row("TAKES", strings.TrimPrefix(doctor.DescribeAdmission(o.Daemon.Admission), "takes "))
		row("LIMITS", doctor.DescribeLimits(o.Daemon))
		row("SANDBOXES", counts(o.Sandboxes))
		row("SNAPSHOTS", counts(o.Snapshots))
		row("WORKSPACES", o.Workspaces)
	})
}

// counts returns the total and the count of each kind, as text.
func counts(of map[string]int) string {
	total := 0
	var kinds []string
	for _, kind := range slices.Sorted(maps.Keys(of)) {
		total += of[kind]
		kinds = append(kinds, fmt.Sprintf("%d %s", of[kind], kind))
	}
	if total == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (%s)", total, strings.Join(kinds, ", "))
}

// endInterval is the polling interval while `forkd wait` waits for sandboxes to end.
const endInterval = 500 * time.Millisecond

func newWaitCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "wait ID…",
		Short: "Wait until sandboxes have ended, and print the reasons",
		Args:  usageArgs(arguments(1, anyNumber)),
		RunE: func(cmd *cobra.Command, refs []string) error {
			return eachSandbox(cmd, &c, refs, waitForEnd, func(e end) string { return e.ID + " " + e.Reason })
		},
	}
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}

// end describes how a sandbox has ended.
type end struct {
	ID     string `json:"id"`
	Reason string `json:"reason"` // reason of the sandbox's exit, or "deleted"
	Detail string `json:"detail,omitempty"`
}

// waitForEnd waits until a sandbox has exited or is deleted. If the sandbox does not exist at
// first, it returns an error.
func waitForEnd(ctx context.Context, cl *client.Client, id string) (end, error) {
	for seen := false; ; seen = true {
		s, err := cl.Sandbox(ctx, id)
		switch {
		case seen && client.IsNotFound(err):
			return end{ID: id, Reason: "deleted"}, nil
		case err != nil:
			return end{}, err
		case s.State == "exited":
			return end{ID: id, Reason: s.ExitReason, Detail: s.ExitDetail}, nil
		}
		if err := pause.For(ctx, endInterval); err != nil {
			return end{}, err
		}
	}
}
