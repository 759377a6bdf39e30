package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/build/image"
	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/recipes"
)

type buildOptions struct {
	from    client.BakeRequest // of --from
	tag     string
	kernel  string
	reuse   bool
	ready   float64
	network networkFlags
	limits  limitFlags
}

// networkOf returns the network policy for a parent's warm-up and for its children, from the
// command line or the recipe.
func (o *buildOptions) networkOf(r *image.Recipe) *client.Network {
	if n, _ := o.network.given(); n != nil || r.Network == nil { // cannot fail without secrets
		return n
	}
	return &client.Network{Mode: r.Network.Mode, Allow: r.Network.Allow, Deny: r.Network.Deny,
		AllowECH: r.Network.AllowECH}
}

// limitsOf returns the limits for a parent's children, from the command line or the recipe.
func (o *buildOptions) limitsOf(r *image.Recipe) *client.Limits {
	if l := o.limits.given(); l != nil {
		return l
	}
	l := client.Limits(r.Limits.Limits)
	return &l
}

// built is the output of `forkd build`. Times are in milliseconds.
type built struct {
	client.Baked
	Reused  bool    `json:"reused"` // the snapshot existed already
	Image   string  `json:"image,omitempty"`
	ImageMS float64 `json:"image_ms"` // for root file system, kernel and initramfs; near zero from the cache
	BakeMS  float64 `json:"bake_ms"`
}

func newBuildCmd() *cobra.Command {
	c := common{streams: true}
	var o buildOptions
	var file dockerfileOptions
	var verbose bool
	cmd := &cobra.Command{
		Use:   "build RECIPE|DIR|docker://IMAGE | build --from TAG --tag NEW",
		Short: "Make a snapshot from a Dockerfile, a recipe, a container image or another snapshot's disk",
		Long: "With -f, or for a DIR with a Dockerfile and no recipe.yaml, the daemon builds a Dockerfile, and DIR is\n" +
			"the build context. Each step forks the snapshot of the previous step and saves its own, which later\n" +
			"builds use as their cache. The result replaces an earlier snapshot with its tag.\n\n" +
			"RECIPE is the name of one of forkd's recipes, a recipe.yaml, or a directory with one. docker://IMAGE,\n" +
			"docker-archive:FILE and oci:DIR are container images, which need no recipe. This command builds the\n" +
			"image and gets the guest kernel, and keeps both in the cache; the daemon boots them.\n\n" +
			"With --from, a parent boots from the disk of a snapshot, optionally with other memory and processors.",
		Example: "  forkd build -t app .\n  forkd build -f Dockerfile.dev --build-arg VERSION=2 -t app-dev .\n" +
			"  forkd build python-numpy\n  forkd build docker://python:3.12-slim --tag py\n" +
			"  forkd build --from py --tag py-large --memory-mib 4096 --vcpus 2",
		Args: usageArgs(arguments(0, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.from.From != "" {
				if err := refuseFlags(cmd, onlyOfDockerfiles, "a Dockerfile"); err != nil {
					return err
				}
				return o.runFrom(cmd, &c, args)
			}
			if len(args) == 0 {
				return usageError{errors.New("give a RECIPE, a directory with one or with a Dockerfile, or --from TAG")}
			}
			if is, err := file.isDockerfile(cmd, args[0]); is || err != nil {
				if err != nil {
					return err
				}
				file.vcpus, file.memory = o.from.VCPUs, o.from.MemSizeMiB
				return file.run(cmd, &c, o.tag, args[0])
			}
			if o.from.MemSizeMiB != 0 || o.from.VCPUs != 0 {
				return usageError{errors.New("--memory-mib and --vcpus go with --from and Dockerfiles: a recipe says what its " +
					"parent has")}
			}
			recipe, err := loadRecipe(args[0])
			if err != nil {
				return err
			}
			if o.tag == "" {
				o.tag = recipe.Name
			}
			return show(cmd, &c, func(ctx context.Context, cl *client.Client) (built, error) {
				st := newStatus(cmd.ErrOrStderr())
				defer st.end()
				return build(ctx, cl, recipe, o, st)
			}, func(b built) error {
				if verbose {
					printWarmup(cmd, b)
				}
				printBuilt(cmd, b)
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.tag, "tag", "t", "", "tag of the snapshot (default the name of the recipe or directory)")
	file.register(f)
	f.StringVar(&o.kernel, "kernel", "", "custom kernel, bzImage or ELF, with all drivers built in")
	o.network.register(f)
	o.limits.register(f)
	o.registerFrom(f)
	f.BoolVar(&o.reuse, "reuse", false, "do nothing if the tag names a usable snapshot")
	f.BoolVar(&verbose, "verbose", false, "print the last 64 KiB of the warm-up's output")
	f.Float64Var(&o.ready, "ready-timeout-secs", 0, "how long the guest may take to boot (default 300)")
	c.complete(cmd, recipeNames)
	c.completeFlag(cmd, "from", tags)
	o.network.complete(cmd)
	c.register(cmd)
	return cmd
}

// loadRecipe reads a recipe from a path, or a built-in recipe by its name, or makes one for a
// container image.
func loadRecipe(name string) (*image.Recipe, error) {
	if _, err := os.Stat(name); err == nil {
		return image.LoadRecipe(name)
	}
	if _, err := fs.Stat(recipes.FS, name); err == nil {
		return image.LoadRecipeFS(recipes.FS, name)
	}
	if r, ok, err := image.FromContainer(name); ok {
		return r, err
	}
	entries, err := fs.ReadDir(recipes.FS, ".")
	if err != nil {
		return nil, err
	}
	names := ""
	for _, e := range entries {
		names += " " + e.Name()
	}
	return nil, usageError{fmt.Errorf("recipe %q: no such file or directory, and none of the built-in recipes:%s; "+
		"a container image is docker://IMAGE", name, names)}
}

func build(ctx context.Context, cl *client.Client, recipe *image.Recipe, o buildOptions, st *status) (built, error) {
	switch s, err := cl.Snapshot(ctx, o.tag); {
	case client.IsNotFound(err):
	case err != nil:
		return built{}, err
	case o.reuse && s.Bootable:
		return built{Baked: client.Baked{Snapshot: s.Snapshot}, Reused: true}, nil
	case s.Status == "writing":
		return built{}, fmt.Errorf("snapshot %q: is being made by another call", o.tag)
	default: // checked here because the daemon would report it only after minutes of building
		return built{}, fmt.Errorf(
			"snapshot %q: exists; remove it ('forkd rmi %s'), choose another --tag, or keep it with --reuse",
			o.tag,
			o.tag,
		)
	}
	v, err := cl.Version(ctx)
	if err != nil {
		return built{}, err
	}
	// The daemon would report this too, but only after minutes of building.
	if v.NoKVM != "" {
		return built{}, fmt.Errorf(
			"the daemon's host cannot run VMs: %s (run 'forkd doctor' there; 'forkd machine start' emulates a host "+
				"that can)",
			v.NoKVM,
		)
	}
	if uint64(recipe.MemoryMiB) > v.HostMemoryMiB {
		return built{}, fmt.Errorf("recipe %s: memory_mib: %d: the daemon's host has %d MiB of memory", recipe.Name,
			recipe.MemoryMiB, v.HostMemoryMiB)
	}
	start := time.Now()
	img, kernel, err := buildFiles(ctx, recipe, o.kernel, st)
	if err != nil {
		return built{}, err
	}
	b := built{Image: img.Dir, ImageMS: msSince(start)}
	err = b.bake(ctx, cl, o, recipe, img, kernel, st)
	return b, err
}

// stepInterval is the interval for polling the daemon's current step.
const stepInterval = 500 * time.Millisecond

// bakeInSteps has the daemon bake, and shows its steps.
func bakeInSteps(ctx context.Context, cl *client.Client, req client.BakeRequest, st *status) (client.Baked, error) {
	st.step("boot and warm up the parent", "")
	following, done := context.WithCancel(ctx)
	var follower sync.WaitGroup
	follower.Go(func() {
		for tick := time.Tick(stepInterval); ; {
			select {
			case <-following.Done():
				return
			case <-tick:
			}
			if s, err := cl.Snapshot(following, req.Tag); err == nil &&
				s.Step != "" { // the bake reports failures
				st.step("parent: "+s.Step, "")
			}
		}
	})
	b, err := cl.Bake(ctx, req)
	done()
	follower.Wait()
	return b, err
}

// bake boots, warms up and saves a parent.
func (b *built) bake(ctx context.Context, cl *client.Client, o buildOptions, r *image.Recipe, img *image.Image,
	kernel *image.KernelFiles,
	st *status) (err error) {
	start := time.Now()
	b.Baked, err = bakeInSteps(ctx, cl, client.BakeRequest{
		Tag: o.tag, Kernel: kernel.VMLinux, Initrd: kernel.Initrd, Rootfs: img.Rootfs(),
		MemSizeMiB: uint64(r.MemoryMiB), VCPUs: uint32(r.VCPUs), Env: r.EnvOver(img.Env),
		Warmup:           client.Warmup{Commands: r.Warmup.Commands, Python: r.Warmup.Python},
		ReadyTimeoutSecs: o.ready, WarmupTimeoutSecs: r.Warmup.TimeoutSecs, Network: o.networkOf(r),
		Limits: o.limitsOf(r), Unique: r.Unique,
	}, st)
	b.BakeMS = msSince(start)
	return err
}

// buildFiles makes the files that a parent boots from, or takes them from the cache.
func buildFiles(ctx context.Context, recipe *image.Recipe, userKernel string, st *status) (*image.Image,
	*image.KernelFiles, error) {
	cache, err := cachedir.Dir()
	if err != nil {
		return nil, nil, err
	}
	agent, err := embedded.Open(embedded.Agent)
	if err != nil {
		return nil, nil, err
	}
	progress := func(s image.Step) { st.step(s.Stage, s.Detail) }
	img, err := image.Build(ctx, cache, recipe, progress)
	if err != nil {
		return nil, nil, err
	}
	var kernel *image.KernelFiles
	if userKernel != "" {
		kernel, err = image.UserKernel(ctx, cache, userKernel, agent)
	} else {
		kernel, err = image.Kernel(ctx, cache, agent, progress)
	}
	return img, kernel, err
}

func msSince(start time.Time) float64 { return float64(time.Since(start).Microseconds()) / 1000 }

func printWarmup(cmd *cobra.Command, b built) {
	if text := strings.TrimRight(b.WarmupOutput, "\n"); text != "" {
		printf(cmd.ErrOrStderr(), "forkd: the warm-up wrote:\n%s\n", multiline(text))
	}
}

func printBuilt(cmd *cobra.Command, b built) {
	out := cmd.OutOrStdout()
	if b.Reused {
		printf(out, "%s is there already\n", b.Tag)
		return
	}
	printf(
		out,
		"%s: image %.1f s, boot %.1f s, warm-up %.1f s, save %.1f s, flush %.1f s; the VM has %d MiB of memory\n",
		b.Tag,
		b.ImageMS/1000,
		b.BootMS/1000,
		b.WarmupMS/1000,
		b.SaveMS/1000,
		b.PersistMS/1000,
		b.MemSizeMiB,
	)
	for _, e := range b.GuestErrors {
		printf(cmd.ErrOrStderr(), "forkd: in the guest: %s\n", e)
	}
}
