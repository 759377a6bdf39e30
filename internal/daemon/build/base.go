package build

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/forkd/forkd/internal/build/dockerfile"
	"github.com/forkd/forkd/internal/build/image"
	"github.com/forkd/forkd/internal/build/plan"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/host/store"
)

// Defaults of a VM that boots from an image.
const (
	imageVCPUs     = 1
	imageMemoryMiB = 1024
	ImageDiskMiB   = 8 << 10
)

// base resolves the name in a FROM instruction to the snapshot with this name as its tag or, if
// there is none, to an image of a registry. (Docker also prefers a local image.) If the snapshot is
// a branch that no build made, base refuses it: clients without the right to build could make a
// branch with the name of an image. In this case, base does not use the image with this name
// either, because otherwise the Dockerfile would have another meaning after the branch is deleted.
func (b *Builder) base(ctx context.Context, req Request, name string) (plan.Base, dockerfile.Config, error) {
	d, err := b.cfg.Manager.Snapshots().Detail(name)
	switch {
	case err != nil, d.Transient:
		digest, config, err := b.cfg.Image(ctx, name, req.login(name))
		if err != nil {
			return plan.Base{}, config, fmt.Errorf("it is no snapshot; as an image: %w", err)
		}
		return imageBase(req, name, digest), config, nil
	case d.Writing:
		err = fmt.Errorf("the snapshot %q is being made: wait until it is there", name)
	case d.Damage != "":
		err = fmt.Errorf("the snapshot %q is damaged: remove it with forkd rmi, and make it again", name)
	case !b.isBase(name, d):
		err = fmt.Errorf("the snapshot %q is a branch, and FROM takes parents and what builds of administrators made: make a "+
			"parent of it with forkd build --from %[1]s, or write docker.io/library/%[1]s for the image of that name", name)
	}
	if err != nil {
		return plan.Base{}, dockerfile.Config{}, err
	}
	config, err := b.settings(ctx, name, d.ID, "")
	return plan.Base{Snapshot: name, Digest: d.ID, Memory: !d.DiskOnly}, config, err
}

// isBase reports whether builds of admins may start from a snapshot. The snapshot must be a parent,
// or the result of an admin's build.
func (b *Builder) isBase(tag string, d store.Detail) bool {
	return d.Branch == nil || b.isResult(tag, d.ID)
}

func imageBase(req Request, name, digest string) plan.Base {
	base := plan.Base{Image: name, Digest: digest, VCPUs: req.VCPUs, MemoryMiB: req.MemoryMiB, DiskMiB: req.DiskMiB}
	if base.VCPUs == 0 {
		base.VCPUs = imageVCPUs
	}
	if base.MemoryMiB == 0 {
		base.MemoryMiB = imageMemoryMiB
	}
	if base.DiskMiB == 0 {
		base.DiskMiB = ImageDiskMiB
	}
	return base
}

// Begin resolves the base of a build without a Dockerfile. The base is an image or a snapshot.
// Begin makes a snapshot if the base is an image, or if the requested machine differs in size from
// the machine of the named snapshot. It reads the settings of processes in a guest. If the guest
// has no default user, the user in the settings is userElse, provided that the guest has this
// account. For an admin, the snapshot must be one that FROM accepts.
func (b *Builder) Begin(ctx context.Context, req Request, from plan.Base, userElse string, o Observer) (plan.Base,
	dockerfile.Config, error) {
	name := from.Image
	if name != "" {
		digest, _, err := b.cfg.Image(ctx, name, req.login(name))
		if err != nil {
			return from, dockerfile.Config{}, err
		}
		from = imageBase(req, name, digest)
	} else {
		name = from.Snapshot
		d, err := b.cfg.Manager.Snapshots().Detail(name)
		if err == nil && d.Transient {
			err = &store.NotFoundError{Tag: name}
		}
		if err == nil && req.Admin && !b.isBase(name, d) {
			err = invalid.Errorf("fromTemplate", "%q is a branch of a sandbox, which any client may have made: templates of "+
				"admins begin with parents and with what builds of admins made; use another, or remove this one: forkd rmi %s",
				name, name)
		}
		if err != nil {
			return from, dockerfile.Config{}, err
		}
		from.Digest = d.ID
		if have := d.Machine; req.VCPUs != 0 && req.VCPUs != have.VCPUs ||
			req.MemoryMiB != 0 && req.MemoryMiB != have.MemoryBytes>>20 {
			from.VCPUs, from.MemoryMiB = cmp.Or(req.VCPUs, have.VCPUs), cmp.Or(req.MemoryMiB, have.MemoryBytes>>20)
		}
		from.Memory = !d.DiskOnly && !from.Boots()
	}
	w, err := b.newWork(ctx, req, &plan.Plan{Steps: []plan.Step{{Name: "FROM " + name, From: -1, Base: &from}}}, nil, o)
	if err != nil {
		return from, dockerfile.Config{}, err
	}
	w.plan.Result = -1 // the plan has no result, so its step is an ordinary one
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := w.ensure(ctx, cancel, 0); err != nil {
		return from, dockerfile.Config{}, err
	}
	d, err := b.cfg.Manager.Snapshots().Detail(w.tag(0))
	if err != nil {
		return from, dockerfile.Config{}, err
	}
	config, err := b.settings(ctx, w.tag(0), d.ID, userElse)
	return from, config, err
}

// settings() returns the settings of processes in a fork of a snapshot. If the guest has no default
// user, the user in the settings is userElse, provided that the guest has this account.
func (b *Builder) settings(ctx context.Context, tag, id, userElse string) (dockerfile.Config, error) {
	key := id + " " + userElse
	b.mu.Lock()
	config, ok := b.bases[key]
	b.mu.Unlock()
	if ok {
		return config, nil
	}
	req, err := requestOf(tag)
	if err != nil {
		return config, err
	}
	box, err := b.fork(ctx, req)
	if err != nil {
		return config, err
	}
	defer b.end(box)
	if err := b.there(&plan.Base{Snapshot: tag, Digest: id}); err != nil {
		return config, err
	}
	err = b.cfg.Manager.Use(ctx, box, "build from", func(ctx context.Context, dial agentclient.DialFunc) error {
		var err error
		config, err = ask(ctx, agentclient.New(dial), userElse)
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
	b.bases[key] = config
	return config, nil
}

func ask(ctx context.Context, c *agentclient.Client, userElse string) (config dockerfile.Config, err error) {
	answer := func(args ...string) (string, error) {
		return capture(ctx, c, agentclient.ExecRequest{Args: args, UserElse: userElse})
	}
	env, err := answer("cat", "/proc/self/environ")
	if err != nil {
		return config, err
	}
	if config.Env, err = environment(env); err != nil {
		return config, err
	}
	if config.User, err = answer("id", "-un"); err != nil {
		return config, err
	}
	if config.Dir, err = answer("pwd"); err != nil {
		return config, err
	}
	config.User, config.Dir = strings.TrimSpace(config.User), strings.TrimSuffix(config.Dir, "\n")
	if len(config.User) > dockerfile.MaxPath || len(config.Dir) > dockerfile.MaxPath {
		return config, fmt.Errorf("the user or the directory of the base has more than %d bytes", dockerfile.MaxPath)
	}
	if config.User == "root" {
		config.User = ""
	}
	return config, nil
}

// environment parses /proc/self/environ, without the variables set by an account or a fork. The
// text comes from the guest, so the result is an error if a step could not have these variables,
// for example because they are too large.
func environment(text string) (map[string]string, error) {
	size, env := 0, make(map[string]string)
	for kv := range strings.SplitSeq(text, "\x00") {
		k, v, ok := strings.Cut(kv, "=")
		switch {
		case !ok, k == "HOME", k == "USER", k == "LOGNAME", k == "HOSTNAME", k == "PWD", k == "SHLVL", k == "_":
		case strings.HasPrefix(k, "FORKD_"), strings.HasPrefix(k, "E2B_"):
		default:
			if err := dockerfile.Put(env, &size, k, v); err != nil {
				return nil, fmt.Errorf("the environment of the base: %w", err)
			}
		}
	}
	return env, nil
}

// there() returns an error if the snapshot of base was replaced or removed after the plan was made.
func (b *Builder) there(base *plan.Base) error {
	if b.cfg.Manager.Snapshots().Has(base.Snapshot, base.Digest) {
		return nil
	}
	return errors.Join(errors.New("the snapshot has been replaced or removed since the build began"),
		&store.NotFoundError{Tag: base.Snapshot})
}

// Registry looks up an image. It returns the image's digest, which identifies its content, and the
// image's settings.
type Registry func(ctx context.Context, reference string, login *Login) (digest string, c dockerfile.Config, err error)

// FromRegistry is the daemon's Registry: it queries the image's registry.
func FromRegistry(ctx context.Context, reference string, login *Login) (digest string, config dockerfile.Config,
	err error) {
	i, err := image.Inspect(ctx, reference, login)
	return i.Digest, dockerfile.Config{Env: i.Env, User: i.User, Dir: i.Dir, Shell: i.Shell, OnBuild: i.OnBuild}, err
}
