package build

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/forkd/forkd/internal/build/dockerfile"
	"github.com/forkd/forkd/internal/build/image"
	"github.com/forkd/forkd/internal/build/plan"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/store"
)

// What a VM made from an image has where the request says nothing.
const (
	imageVCPUs     = 1
	imageMemoryMiB = 1024
	imageDiskMiB   = 8 << 10
)

// base resolves what a FROM instruction names: a snapshot with that tag, or else an image of a registry,
// as Docker takes an image that it has before it asks for one. A branch of a sandbox is not taken for it
// unless a build made it: clients that may not build make branches too, and could choose an image's name.
func (b *Builder) base(ctx context.Context, req Request, name string) (plan.Base, dockerfile.Config, error) {
	why := "it is no snapshot"
	d, err := b.cfg.Manager.Snapshots().Detail(name)
	switch {
	case err != nil, d.Transient, d.Writing, d.Damage != "":
	case d.Branch != nil && !b.isResult(name, d.ID):
		why = fmt.Sprintf("the snapshot %q is a branch, and FROM takes parents and what builds made", name)
	default:
		config, err := b.settings(ctx, name, d.ID)
		return plan.Base{Snapshot: name, Digest: d.ID, Memory: !d.DiskOnly}, config, err
	}
	digest, config, err := b.cfg.Image(ctx, name)
	if err != nil {
		return plan.Base{}, config, fmt.Errorf("%s; as an image: %w", why, err)
	}
	base := plan.Base{Image: name, Digest: digest, VCPUs: req.VCPUs, MemoryMiB: req.MemoryMiB, DiskMiB: req.DiskMiB}
	if base.VCPUs == 0 {
		base.VCPUs = imageVCPUs
	}
	if base.MemoryMiB == 0 {
		base.MemoryMiB = imageMemoryMiB
	}
	if base.DiskMiB == 0 {
		base.DiskMiB = imageDiskMiB
	}
	return base, config, nil
}

// settings asks a fork of a snapshot what its processes start with.
func (b *Builder) settings(ctx context.Context, tag, id string) (dockerfile.Config, error) {
	b.mu.Lock()
	config, ok := b.bases[id]
	b.mu.Unlock()
	if ok {
		return config, nil
	}
	box, err := b.fork(ctx, tag)
	if err != nil {
		return config, err
	}
	defer b.end(box)
	if err := b.there(&plan.Base{Snapshot: tag, Digest: id}); err != nil {
		return config, err
	}
	err = b.cfg.Manager.Use(ctx, box, "build from", func(ctx context.Context, dial agentclient.DialFunc) error {
		var err error
		config, err = ask(ctx, agentclient.New(dial))
		return err
	})
	if err != nil {
		return config, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.bases) >= maxBases {
		clear(b.bases)
	}
	b.bases[id] = config
	return config, nil
}

func ask(ctx context.Context, c *agentclient.Client) (config dockerfile.Config, err error) {
	env, err := output(ctx, c, "", "cat", "/proc/self/environ")
	if err != nil {
		return config, err
	}
	config.Env = environment(env)
	if config.User, err = output(ctx, c, "", "id", "-un"); err != nil {
		return config, err
	}
	if config.Dir, err = output(ctx, c, "", "pwd"); err != nil {
		return config, err
	}
	config.User, config.Dir = strings.TrimSpace(config.User), strings.TrimSuffix(config.Dir, "\n")
	if config.User == "root" {
		config.User = ""
	}
	return config, nil
}

// environment returns what /proc/self/environ says, without what an account or a fork brings.
func environment(text string) map[string]string {
	env := make(map[string]string)
	for kv := range strings.SplitSeq(text, "\x00") {
		k, v, ok := strings.Cut(kv, "=")
		switch {
		case !ok, k == "HOME", k == "USER", k == "LOGNAME", k == "HOSTNAME", k == "PWD", k == "SHLVL", k == "_":
		case strings.HasPrefix(k, "FORKD_"), strings.HasPrefix(k, "E2B_"):
		default:
			env[k] = v
		}
	}
	return env
}

// there reports whether a base that is a snapshot is still the one that the plan was made for.
func (b *Builder) there(base *plan.Base) error {
	if b.cfg.Manager.Snapshots().Has(base.Snapshot, base.Digest) {
		return nil
	}
	return errors.Join(errors.New("the snapshot has been replaced or removed since the build began"),
		&store.NotFoundError{Tag: base.Snapshot})
}

// FromRegistry is the Image of the daemon: it asks the image's registry.
func FromRegistry(ctx context.Context, reference string) (digest string, config dockerfile.Config, err error) {
	i, err := image.Inspect(ctx, reference, nil)
	return i.Digest, dockerfile.Config{Env: i.Env, User: i.User, Dir: i.Dir, Shell: i.Shell, OnBuild: i.OnBuild}, err
}
