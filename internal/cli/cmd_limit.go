package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/forkd/forkd/client"
)

// mibValue is a flag for an amount of memory or disk: a number of MiB, or a number with a unit, such
// as 512m, 2g or 1t.
type mibValue uint64

func (m *mibValue) String() string { return strconv.FormatUint(uint64(*m), 10) }
func (m *mibValue) Type() string   { return "MiB" }

func (m *mibValue) Set(text string) error {
	number, unit := strings.ToLower(text), uint64(1)
	for suffix, mib := range map[string]uint64{"m": 1, "mib": 1, "g": 1 << 10, "gib": 1 << 10,
		"t": 1 << 20, "tib": 1 << 20} {
		if n, ok := strings.CutSuffix(number, suffix); ok {
			number, unit = n, mib
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 32) // 32 bits suffice: no host has 2^32 MiB of memory
	if err != nil {
		return errors.New("want a number of MiB, or an amount such as 512m, 2g or 1t")
	}
	*m = mibValue(n * unit)
	return nil
}

// limitFlags are the flags for limits of a sandbox.
type limitFlags struct{ client.Limits }

func (l *limitFlags) register(f *pflag.FlagSet) {
	f.VarP((*mibValue)(&l.MemoryMiB), "memory", "m",
		"limit of a sandbox's own memory, in MiB or with a unit, such as 2g; a sandbox above it is killed")
	f.Var((*mibValue)(&l.SwapMiB), "swap", "additional memory on the host's swap, in MiB or with a unit, such as 1g; needs --memory (default none)")
	f.Float64Var(&l.CPUs, "cpus", 0, "limit of processor time, such as 1.5 processors")
	f.Uint32Var(&l.CPUWeight, "cpu-weight", 0, "share of processor time where sandboxes compete, 1 to 10000 (default 100)")
	f.Uint64Var(&l.IOBytesPerSecond, "io-bytes-per-second", 0, "limit of bytes per second in each direction on the host's disk")
	f.Uint64Var(&l.IOOpsPerSecond, "io-ops-per-second", 0, "limit of operations per second in each direction on the host's disk")
}

// given returns the limits that the flags set, or nil if no flag is set.
func (l *limitFlags) given() *client.Limits {
	if l.Limits == (client.Limits{}) {
		return nil
	}
	return &l.Limits
}

func newLimitCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "limit ID",
		Short: "Show the limits and the resource use of a sandbox",
		Args:  usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return showOf(cmd, &c, args[0], func(ctx context.Context, cl *client.Client,
				id string) (client.SandboxLimits, error) {
				return cl.Limits(ctx, id)
			}, func(l client.SandboxLimits) error { return printLimits(cmd, l) })
		},
	}
	c.completeSandboxes(cmd)
	c.register(cmd)
	cmd.AddCommand(newLimitSetCmd())
	return cmd
}

func newLimitSetCmd() *cobra.Command {
	var c common
	var l limitFlags
	cmd := &cobra.Command{
		Use:   "set ID",
		Short: "Replace the limits of a sandbox",
		Long: "Replaces all limits: a limit that is not given here is removed. Less memory than the\n" +
			"sandbox uses is refused.",
		Args: usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return showOf(cmd, &c, args[0], func(ctx context.Context, cl *client.Client,
				id string) (client.SandboxLimits, error) {
				return cl.SetLimits(ctx, id, l.Limits)
			}, func(l client.SandboxLimits) error { return printLimits(cmd, l) })
		},
	}
	l.register(cmd.Flags())
	c.completeSandboxes(cmd)
	c.register(cmd)
	return cmd
}

func printLimits(cmd *cobra.Command, l client.SandboxLimits) error {
	or := func(set bool, format string, args ...any) string {
		if !set {
			return "-"
		}
		return fmt.Sprintf(format, args...)
	}
	io := or(l.IOBytesPerSecond != 0, "%d B/s", l.IOBytesPerSecond)
	if l.IOOpsPerSecond != 0 {
		io = strings.TrimPrefix(io+", ", "-, ") + fmt.Sprintf("%d operations/s", l.IOOpsPerSecond)
	}
	u := l.Usage
	return table(cmd, "WHAT\tLIMIT\tUSED", func(row func(...any)) {
		row("memory", or(l.MemoryMiB != 0, "%d MiB", l.MemoryMiB), fmt.Sprintf("%d MiB", u.OwnMemoryBytes>>20))
		row("swap", or(l.MemoryMiB != 0, "%d MiB", l.SwapMiB), fmt.Sprintf("%d MiB", u.SwapBytes>>20))
		row("processors", or(l.CPUs != 0, "%g", l.CPUs), fmt.Sprintf("%.1f s, throttled for %.1f s", u.CPUSeconds,
			u.ThrottledSeconds))
		row("weight", or(l.CPUWeight != 0, "%d", l.CPUWeight), "")
		row("disk", io, fmt.Sprintf("%d B read, %d B written", u.ReadBytes, u.WrittenBytes))
	})
}
