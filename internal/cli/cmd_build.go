package cli

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/build/image"
	"github.com/forkd/forkd/internal/cachedir"
	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/internal/proto/imageproto"
	"github.com/forkd/forkd/recipes"
)

type buildOptions struct {
	from    client.BakeRequest // request of build --from
	tag     string
	kernel  string
	reuse   bool
	noCache bool
	live    bool // redraw the progress, as on a terminal
	encrypt bool
	ready   float64
	network networkFlags
	limits  limitFlags
}

// built is the output of `forkd build`. Times are in milliseconds.
type built struct {
	client.Baked
	Reused  bool    `json:"reused"` // the snapshot existed already
	Image   string  `json:"image,omitempty"`
	ImageMS float64 `json:"image_ms"` // time for root file system, kernel and initramfs; near zero if cached
	BakeMS  float64 `json:"bake_ms"`  // time for everything after the image
	Cached  int     `json:"cached"`   // steps of a recipe whose snapshots already existed
	Run     int     `json:"run"`      // steps of a recipe that were executed
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
			"docker-archive:FILE and oci:DIR are container images, which need no recipe. This command makes the root\n" +
			"file system and gets the guest kernel, and keeps both in the cache. The daemon boots them, and copies\n" +
			"the files and runs the warm-up in steps, as for a Dockerfile. Such a build replaces no earlier snapshot.\n" +
			"The options for the network and for limits do not apply to Dockerfiles.\n\n" +
			"With --from, a parent boots from the disk of a snapshot, optionally with other memory and processors.",
		Example: "  forkd build -t app .\n  forkd build -f Dockerfile.dev --build-arg VERSION=2 -t app-dev .\n" +
			"  forkd build python-numpy\n  forkd build docker://python:3.12-slim --tag py\n" +
			"  forkd build --from py --tag py-large --memory-mib 4096 --vcpus 2\n" +
			"  forkd build --from py --tag py-volumes --volume-slots 4",
		Args: usageArgs(arguments(0, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.from.From != "" {
				err := cmp.Or(refuseFlags(cmd, onlyOfDockerfiles, "a Dockerfile"),
					refuseFlags(cmd, []string{"no-cache", "progress", "verbose"}, "a Dockerfile or a recipe"))
				if err != nil {
					return err
				}
				return o.runFrom(cmd, &c, args)
			}
			if o.from.VolumeSlots != 0 {
				return usageError{errors.New("--volume-slots needs --from: a recipe has the field volume_slots. For a " +
					"Dockerfile, build a snapshot first, and then use --from with its tag")}
			}
			if len(args) == 0 {
				return usageError{errors.New("give a RECIPE, a directory with one or with a Dockerfile, or --from TAG")}
			}
			if is, err := file.isDockerfile(cmd, args[0]); is || err != nil {
				if err != nil {
					return err
				}
				file.noCache, file.encrypt, file.vcpus, file.memory = o.noCache, o.encrypt, o.from.VCPUs, o.from.MemSizeMiB
				return file.run(cmd, &c, o.tag, args[0])
			}
			if o.from.MemSizeMiB != 0 || o.from.VCPUs != 0 {
				return usageError{errors.New("--memory-mib and --vcpus go with --from and Dockerfiles: a recipe has the fields " +
					"memory_mib and vcpus")}
			}
			recipe, err := loadRecipe(args[0])
			if err != nil {
				return err
			}
			if o.tag == "" {
				o.tag = recipe.Name
			}
			if err := checkProgress(file.progress); err != nil {
				return err
			}
			o.live = isLive(file.progress, cmd.ErrOrStderr()) && !verbose
			return buildAndPrint(cmd, &c, recipe, o)
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
	f.BoolVar(&o.noCache, "no-cache", false, "run all steps")
	f.BoolVar(&o.encrypt, "encrypt", false, "encrypt the snapshot, but not the snapshots of the steps")
	f.BoolVar(&verbose, "verbose", false, "for a recipe: print all output of its warm-up, as --progress plain does")
	f.Float64Var(&o.ready, "ready-timeout-secs", 0, "how long the guest may take to boot (default 300)")
	c.complete(cmd, recipeNames)
	c.completeFlag(cmd, "from", tags)
	o.network.complete(cmd)
	c.register(cmd)
	return cmd
}

// loadRecipe returns the recipe for an argument: a file, a built-in recipe, or a recipe made for a
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
		"for a container image, give docker://IMAGE", name, names)}
}

// buildAndPrint builds a recipe and prints the result.
func buildAndPrint(cmd *cobra.Command, c *common, recipe *image.Recipe, o buildOptions) error {
	return show(cmd, c, func(ctx context.Context, cl *client.Client) (built, error) {
		return build(ctx, cl, recipe, o, cmd.ErrOrStderr())
	}, func(b built) error {
		printBuilt(cmd, b)
		return nil
	})
}

// build makes the image of a recipe, and has the daemon build the recipe from that image. It shows
// the progress on w.
func build(ctx context.Context, cl *client.Client, recipe *image.Recipe, o buildOptions, w io.Writer) (built, error) {
	cache, err := cachedir.Dir()
	if err != nil {
		return built{}, err
	}
	recipe, whole := recipe.WithoutFiles(), recipe // the image lacks the files, because build steps copy them
	exists := fmt.Errorf("snapshot %q: exists; remove it ('forkd rmi %[1]s'), choose another --tag, or keep it with --reuse",
		o.tag)
	switch s, err := cl.Snapshot(ctx, o.tag); {
	case client.IsNotFound(err):
	case err != nil:
		return built{}, err
	case o.reuse && s.Bootable && (s.Encrypted || !o.encrypt):
		return built{Baked: client.Baked{Snapshot: s.Snapshot}, Reused: true}, nil
	case s.Status == "writing":
		return built{}, fmt.Errorf("snapshot %q: another command is making it", o.tag)
	case !image.Has(ctx, cache, recipe): // the recipe's image is missing, so another recipe made the snapshot
		return built{}, exists
	}
	v, err := cl.Version(ctx)
	if err != nil {
		return built{}, err
	}
	// Check for KVM before the build, because the daemon would report the error only minutes later.
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
	st := newStatus(w)
	img, kernel, err := buildFiles(ctx, cl, recipe, o.kernel, st)
	st.end()
	if err != nil {
		return built{}, err
	}
	b := built{Image: img.Dir, ImageMS: msSince(start)}
	if err = b.steps(ctx, cl, o, whole, img, kernel, w); client.IsStatus(err, http.StatusConflict) {
		if s, found := cl.Snapshot(ctx, o.tag); found == nil && s.Status != "writing" {
			err = exists
		}
	}
	return b, err
}

// steps(…) has the daemon build a recipe from its image.
func (b *built) steps(ctx context.Context, cl *client.Client, o buildOptions, r *image.Recipe, img *image.Image,
	kernel *image.KernelFiles, w io.Writer) error {
	text, err := r.Text()
	if err != nil {
		return err
	}
	network, _ := o.network.given() // cannot fail without secrets
	req := client.BuildRequest{Tag: o.tag, NoCache: o.noCache, Encrypt: o.encrypt, Recipe: text, Network: network,
		Limits: o.limits.given(),
		Boot:   &client.BuildBoot{Kernel: kernel.VMLinux, Initrd: kernel.Initrd, Rootfs: img.Rootfs(), Env: img.Env},

		ReadyTimeoutSecs: o.ready}
	start := time.Now()
	p := newProgress(w, o.live)
	var names []string
	done, err := cl.Build(ctx, req, func(out *tar.Writer) error { return r.Pack(out, v1.BuildContext) },
		func(e client.BuildEvent) error {
			switch {
			case e.Plan != nil:
				names = e.Plan.Steps
			case e.Step != nil && e.Step.Number >= 0 && e.Step.Number < len(names):
				b.took(e.Step, names[e.Step.Number])
			}
			return p.event(e)
		})
	p.end()
	if err != nil {
		return err
	}
	b.BakeMS, b.Cached, b.Run = msSince(start), done.Cached, done.Run
	s, err := cl.Snapshot(ctx, o.tag)
	b.Snapshot = s.Snapshot
	return err
}

// took adds the duration of a step to the duration of the boot or of the warm-up.
func (b *built) took(s *client.BuildStep, name string) {
	switch {
	case s.Number == 0:
		b.BootMS += s.MS
	case strings.Contains(name, "] warmup."):
		b.WarmupMS += s.MS
	}
}

// stepInterval is the interval for polling the daemon's current step.
const stepInterval = 500 * time.Millisecond

// bakeInSteps bakes a parent, and shows the steps of the daemon.
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
				s.Step != "" { // a failure to poll the step does not matter: the bake reports its own failure
				st.step("parent: "+s.Step, "")
			}
		}
	})
	b, err := cl.Bake(ctx, req)
	done()
	follower.Wait()
	return b, err
}

// buildFiles makes the files that a parent boots from, or takes them from the cache.
func buildFiles(ctx context.Context, cl *client.Client, recipe *image.Recipe, userKernel string, st *status) (
	*image.Image, *image.KernelFiles, error) {
	cache, err := cachedir.Dir()
	if err != nil {
		return nil, nil, err
	}
	agent, err := embedded.Open(embedded.Agent)
	if err != nil {
		return nil, nil, err
	}
	progress := func(s image.Step) { st.step(s.Stage, s.Detail) }
	var kernel *image.KernelFiles
	if userKernel != "" {
		kernel, err = image.UserKernel(ctx, cache, userKernel, agent)
	} else {
		kernel, err = image.Kernel(ctx, cache, agent, progress)
	}
	if err != nil {
		return nil, nil, err
	}
	u := image.Unpacker{Fill: func(ctx context.Context, d image.Disk) error {
		return fillDisk(ctx, cl, kernel.VMLinux, d)
	}}
	if u.Program, err = embedded.Open(embedded.Unpack); err != nil {
		return nil, nil, err
	}
	img, err := image.Build(ctx, cache, recipe, u, progress)
	return img, kernel, err
}

// fillDisk has the daemon unpack a container image in a VM. The daemon's answer is the disk, which
// fillDisk writes to d.Path.
func fillDisk(ctx context.Context, cl *client.Client, kernel string, d image.Disk) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := d.Stream(ctx, w)
		w.CloseWithError(err)
		sent <- err
	}()
	disk, err := cl.FillImage(ctx, client.FillRequest{Kernel: kernel, DiskMiB: d.MiB,
		UUID: hex.EncodeToString(d.UUID[:])}, r)
	if err != nil {
		cancel() // ends Stream, which may be waiting for a registry
	}
	r.Close() // makes writes of Stream fail
	stopped := func(failed error) bool {
		return errors.Is(failed, io.ErrClosedPipe) || err != nil && errors.Is(failed, context.Canceled)
	}
	if failed := <-sent; failed != nil && !stopped(failed) {
		err = failed // the daemon has received only a part of the stream
	}
	if err != nil {
		if disk != nil {
			disk.Close()
		}
		return err
	}
	defer disk.Close()
	f, err := os.OpenFile(d.Path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(imageproto.ReadDisk(f, disk, int64(d.MiB)<<20), f.Close())
}

func msSince(start time.Time) float64 { return float64(time.Since(start).Microseconds()) / 1000 }

func printBuilt(cmd *cobra.Command, b built) {
	out := cmd.OutOrStdout()
	if b.Reused {
		printf(out, "%s exists already\n", b.Tag)
		return
	}
	if b.Run+b.Cached > 0 {
		printf(out, "%s: image %.1f s, boot %.1f s, warm-up %.1f s; %d steps done, %d cached, %.1f s\n", b.Tag, b.ImageMS/1000,
			b.BootMS/1000, b.WarmupMS/1000, b.Run, b.Cached, b.BakeMS/1000)
		return
	}
	printf(out, "%s: boot %.1f s, warm-up %.1f s, save %.1f s, flush %.1f s; the VM has %d MiB of memory\n", b.Tag,
		b.BootMS/1000, b.WarmupMS/1000, b.SaveMS/1000, b.PersistMS/1000, b.MemSizeMiB)
	for _, e := range b.GuestErrors {
		printf(cmd.ErrOrStderr(), "forkd: in the guest: %s\n", e)
	}
}
