package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/build/image"
)

// imageOf05 has the arguments of forkd 0.5's `from-image`.
type imageOf05 struct {
	disk, memory int      // MiB
	extra        []string // packages to install; the command is refused if there are any
}

func (i imageOf05) recipe(name string) (*image.Recipe, error) {
	if len(i.extra) > 0 {
		return nil, usageError{errors.New("--extra: packages are installed by a Dockerfile, with RUN: " +
			"'forkd build -t TAG DIR'")}
	}
	r, ok, err := image.FromContainer("docker://" + name)
	if err == nil && !ok {
		err = fmt.Errorf("%.200q: want the name of a container image, such as python:3.12-slim", name)
	}
	if err != nil {
		return nil, usageError{err}
	}
	if i.disk < 0 || i.memory < 0 {
		return nil, usageError{errors.New("--size-mib and --mem-size-mib: want MiB, more than 0")}
	}
	if i.disk > 0 {
		r.DiskMiB = i.disk
	}
	if i.memory > 0 {
		r.MemoryMiB = i.memory
	}
	return r, nil
}

// flags registers the flags for the sizes, and the flags of forkd 0.5 that are refused or have no
// effect.
func (i *imageOf05) flags(f *pflag.FlagSet, without ...string) {
	f.IntVar(&i.disk, "size-mib", 0, "size of the disk (default 1024)")
	f.IntVar(&i.memory, "mem-size-mib", 0, "memory (default 512)")
	f.StringSliceVar(&i.extra, "extra", nil, "of forkd 0.5; refused")
	_ = f.MarkHidden("extra") // fails only for a flag that does not exist
	for _, name := range without {
		f.String(name, "", "of forkd 0.5; no effect")
		_ = f.MarkHidden(name)
	}
}

// newFromImageCmd makes forkd 0.5's command `from-image IMAGE`, which is the same as `build
// docker://IMAGE`.
func newFromImageCmd() *cobra.Command {
	c := common{streams: true}
	var o buildOptions
	var from imageOf05
	cmd := &cobra.Command{
		Use:    "from-image IMAGE --tag TAG",
		Short:  "Make a snapshot of a container image; see build",
		Long:   "The same as 'forkd build docker://IMAGE --tag TAG', as forkd 0.5 names it.",
		Hidden: true,
		Args:   usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := from.recipe(args[0])
			if err != nil {
				return err
			}
			if o.tag == "" {
				o.tag = r.Name
			}
			o.live = canRedraw(cmd.ErrOrStderr())
			return buildAndPrint(cmd, &c, r, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.tag, "tag", "", "the snapshot's tag (default the name of the image)")
	f.StringVar(&o.kernel, "kernel", "", "kernel to boot, with all drivers built in")
	from.flags(f, "tap", "cache")
	f.Float64Var(&o.ready, "boot-wait-secs", 0, "how long the guest may take to boot (default 300)")
	c.register(cmd)
	return cmd
}

// bench05 is the result of `bench`, in milliseconds.
type bench05 struct {
	Spawn  float64 `json:"spawn_ms"`
	Exec   float64 `json:"exec_ms"`
	Branch float64 `json:"branch_ms"`
	FanOut float64 `json:"fan_out_ms"`
	Clean  float64 `json:"cleanup_ms"`
	Total  float64 `json:"total_ms"`
	N      int     `json:"n"`
}

// newBenchCmd makes forkd 0.5's benchmark. It measures how long each part takes: a new sandbox, a
// command in it, a branch, n forks of the branch, and the removal of all of them.
func newBenchCmd() *cobra.Command {
	var c common
	var tag string
	var n int
	var chart bool
	cmd := &cobra.Command{
		Use:    "bench --tag TAG [-n N] [--chart]",
		Short:  "Time a fork, a command, a branch and forks of it",
		Hidden: true,
		Args:   usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if tag == "" || n < 1 {
				return usageError{fmt.Errorf("want --tag TAG, and -n of at least 1; the source has more benchmarks: 'make bench'")}
			}
			if chart && c.json() {
				return usageError{errors.New("--chart prints text: omit -o json")}
			}
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (bench05, error) {
				return bench(ctx, cl, tag, n)
			}, func(b bench05) error {
				printf(cmd.OutOrStdout(), "%s", b.text(chart))
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&tag, "tag", "", "the snapshot")
	f.IntVarP(&n, "n", "n", 5, "forks of the branch")
	f.BoolVar(&chart, "chart", false, "draw a bar for each part")
	noEffect(f, "per-child-netns", "", "of forkd 0.5; no effect")
	c.completeFlag(cmd, "tag", tags)
	c.register(cmd)
	return cmd
}

// chartWidth is the length of the longest bar of a chart, in characters.
const chartWidth = 40

// text returns the table of the result. If chart is true, each part has a bar; the bars have the same
// scale, which begins at 0.
func (b *bench05) text(chart bool) string {
	parts := []struct {
		name string
		took float64
	}{{"spawn 1", b.Spawn}, {"exec", b.Exec}, {"branch", b.Branch}, {fmt.Sprintf("fan out %d", b.N), b.FanOut},
		{"cleanup", b.Clean}}
	longest := max(b.Spawn, b.Exec, b.Branch, b.FanOut, b.Clean)
	var out strings.Builder
	for _, p := range parts {
		printf(&out, "%-13s%8.1f ms", p.name, p.took)
		if chart && longest > 0 {
			out.WriteString("  " + strings.Repeat("█", max(1, int(math.Round(chartWidth*p.took/longest)))))
		}
		out.WriteByte('\n')
	}
	printf(&out, "%-13s%8.1f ms\n", "total", b.Total)
	return out.String()
}

func bench(ctx context.Context, cl *client.Client, tag string, n int) (b bench05, err error) {
	whole := context.WithoutCancel(ctx) // an interrupt must not leave sandboxes or snapshots behind
	var ids []string
	var branch string
	clean := func() error {
		var errs []error
		for _, id := range ids {
			errs = append(errs, removeSandbox(whole, cl, id))
		}
		ids = nil
		if branch != "" {
			errs = append(errs, cl.DeleteSnapshot(whole, branch, client.DeleteOptions{}))
			branch = ""
		}
		return errors.Join(errs...)
	}
	defer func() { err = errors.Join(err, clean()) }()
	fork := func(tag string, n int) error {
		f, err := cl.Fork(whole, client.ForkRequest{SnapshotTag: tag, N: n})
		for i := range f.Sandboxes {
			ids = append(ids, f.Sandboxes[i].ID)
		}
		return err
	}
	begin := time.Now()
	for _, part := range []struct {
		took *float64
		do   func() error
	}{
		{&b.Spawn, func() error { return fork(tag, 1) }},
		{&b.Exec, func() error {
			r, err := cl.Exec(ctx, ids[0], client.ExecRequest{Args: []string{"true"}})
			if err == nil && r.ExitCode != 0 {
				err = fmt.Errorf("the command 'true' exited with %d", r.ExitCode)
			}
			return err
		}},
		{&b.Branch, func() error {
			s, err := cl.Branch(whole, ids[0], client.BranchRequest{Mode: "diff"})
			branch = s.Tag
			return err
		}},
		{&b.FanOut, func() error { return fork(branch, n) }},
		{&b.Clean, clean},
	} {
		start := time.Now()
		if err := part.do(); err != nil {
			return b, err
		}
		*part.took = msSince(start)
	}
	b.Total, b.N = msSince(begin), n
	return b, nil
}
