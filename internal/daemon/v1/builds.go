package v1

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/build/dockerfile"
	"github.com/forkd/forkd/internal/build/plan"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/build"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/host/invalid"
	"github.com/forkd/forkd/internal/registry"
	"github.com/forkd/forkd/internal/treetar"
)

// Maximum sizes, in bytes, of a build's archive, and of the first file in the archive.
const (
	maxBuildArchive = 9 << 30
	maxBuildFile    = 4 << 20
)

// build builds a snapshot from a Dockerfile. It answers with the progress of the build as lines of
// JSON. If the client disconnects, the build stops; the snapshots of completed steps are kept.
func (a *api) build(w http.ResponseWriter, r *http.Request) error {
	leave, err := a.Builds.Enter(auth.From(r.Context()).Who)
	if err != nil {
		return face.NewError(http.StatusServiceUnavailable, err.Error())
	}
	defer leave()
	if err := a.NoKVM(); err != nil {
		return err
	}
	move := face.NewTransfer(r.Context(), w, a.Face.Limits.Stall)
	req, files, err := a.readBuild(r.Context(),
		treetar.NewReader(move.From(http.MaxBytesReader(w, r.Body, maxBuildArchive))))
	if err := move.End(err); err != nil {
		return err
	}
	defer func() {
		if err := files.Close(); err != nil {
			a.Face.Log.Warn("remove a build context", "error", err)
		}
	}()
	req.Who = auth.From(r.Context()).Who
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	out := newLines(w, a.Face.Limits.Stall)
	stop := out.keepAlive(apiv1.BuildEvent{Keepalive: true}, a.Face.Limits.Keepalive, cancel)
	defer stop()
	begin := time.Now()
	o := &buildObserver{out: out, gone: cancel}
	result, err := a.Builds.Build(ctx, req, files, o)
	if err = buildError(err); err != nil && !out.hasBegun() {
		return err
	}
	last := apiv1.BuildEvent{Result: &apiv1.BuildResult{Tag: req.Tag, Cached: result.Cached, Run: result.Run,
		MS: millis(time.Since(begin))}}
	if err != nil {
		last = apiv1.BuildEvent{Error: err.Error(), Status: face.StatusOf(err), Code: face.ProblemOf(err).Code}
	}
	stop()
	out.last(last)
	return nil
}

// buildError converts the errors that the client has caused: a mistake in the Dockerfile, a failed
// command, or a tag that another build is making.
func buildError(err error) error {
	if errors.Is(err, build.ErrTaken) {
		return face.NewError(http.StatusConflict, err.Error()+": wait until it has ended")
	}
	var file *dockerfile.Error
	var step *build.StepError
	unknown := face.StatusOf(err) == http.StatusInternalServerError
	if unknown && (errors.As(err, &file) || errors.As(err, &step)) {
		return face.BadRequest("%v", err)
	}
	return err
}

// readBuild reads the archive of a build request.
func (a *api) readBuild(ctx context.Context, in *treetar.Reader) (req build.Request, files *build.Context,
	err error) {
	h, err := in.Next()
	if err != nil {
		return req, nil, archiveError(err)
	}
	if h.Name != apiv1.BuildFile || h.Typeflag != tar.TypeReg || h.Size > maxBuildFile {
		return req, nil, invalid.Errorf("archive", "the first entry is %.100q: want the file %s of at most %d MiB",
			h.Name, apiv1.BuildFile, maxBuildFile>>20)
	}
	var ask apiv1.BuildRequest
	if err := face.StrictJSON(in, &ask, apiv1.BuildFile, false); err != nil {
		return req, nil, err
	}
	req = build.Request{
		Admin:     true, // the route requires the scope admin
		Tag:       ask.Tag,
		Replace:   ask.Replace,
		NoCache:   ask.NoCache,
		Encrypt:   ask.Encrypt,
		VCPUs:     ask.VCPUs,
		MemoryMiB: ask.MemoryMiB,
		DiskMiB:   ask.DiskMiB,
		Secrets:   ask.Secrets,
		Dockerfile: dockerfile.Request{Name: short(cmp.Or(ask.Name, "Dockerfile")), Text: []byte(ask.Dockerfile),
			Target: ask.Target, Args: ask.Args},
	}
	if req.Logins, err = loginsOf(ask.RegistryAuth); err != nil {
		return req, nil, err
	}
	if req.Recipe, err = recipeOf(&ask); err != nil {
		return req, nil, err
	}
	if err := req.Check(); err != nil {
		return req, nil, err
	}
	files, err = a.Builds.Store(ctx, auth.From(ctx).Who, in, apiv1.BuildContext)
	return req, files, archiveError(err)
}

// recipeOf returns the recipe of a request, or nil.
func recipeOf(ask *apiv1.BuildRequest) (*build.Recipe, error) {
	if ask.Recipe == "" {
		if ask.Boot != nil || ask.Network != nil || ask.Limits != nil || ask.ReadyTimeoutSecs != 0 {
			return nil, invalid.Errorf("recipe", "missing: boot, network, limits and ready_timeout_secs need it")
		}
		return nil, nil
	}
	if ask.Boot == nil {
		return nil, invalid.Errorf("boot", "want the kernel and the rootfs that were made for the recipe")
	}
	r := &build.Recipe{Text: []byte(ask.Recipe), Boot: plan.Boot{Kernel: ask.Boot.Kernel, Initrd: ask.Boot.Initrd,
		Rootfs: ask.Boot.Rootfs, Env: ask.Boot.Env}}
	network, err := settingOf("network.", ask.Network)
	if err != nil {
		return nil, err
	}
	if network != nil {
		if len(network.Secrets) > 0 {
			return nil, invalid.Errorf("network.secrets", "a snapshot keeps none: give them to its forks")
		}
		r.Network = network.ForSnapshot()
	}
	if r.Limits, err = limitsOf(ask.Limits, 0); err != nil {
		return nil, err
	}
	r.Ready, err = face.Seconds("ready_timeout_secs", ask.ReadyTimeoutSecs, 0, maxBoot)
	return r, err
}

// loginsOf returns the credentials of a request by registry.
func loginsOf(auths map[string]apiv1.RegistryAuth) (map[string]build.Login, error) {
	const field = "registry_auth"
	if n := len(auths); n > apiv1.MaxBuildRegistries {
		return nil, invalid.Errorf(field, "there are %d registries: want at most %d", n, apiv1.MaxBuildRegistries)
	}
	logins := make(map[string]build.Login)
	for host, a := range auths {
		name, err := registry.Name(host)
		switch {
		case err != nil:
			return nil, &invalid.Error{Field: field, Reason: err.Error()}
		case max(len(a.Username), len(a.Password), len(a.IdentityToken), len(a.RegistryToken)) > apiv1.MaxRegistryAuth:
			return nil, invalid.Errorf(field, "%s: a text has more than %d KiB", name, apiv1.MaxRegistryAuth>>10)
		case a.IdentityToken == "" && a.RegistryToken == "" && (a.Username == "" || a.Password == ""):
			return nil, invalid.Errorf(field, "%s: want a username and a password, or a token", name)
		}
		if _, twice := logins[name]; twice {
			return nil, invalid.Errorf(field, "%s: it is given twice, by two of its names", name)
		}
		logins[name] = build.Login{User: a.Username, Password: a.Password, IdentityToken: a.IdentityToken,
			RegistryToken: a.RegistryToken}
	}
	return logins, nil
}

// archiveError returns an error with status 400 for an invalid archive. It returns other errors
// unchanged.
func archiveError(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &invalid.Error{Field: "archive", Reason: fmt.Sprintf("it is not a complete tar archive: %v", err)}
	}
	if errors.Is(err, build.ErrBusy) {
		return face.NewError(http.StatusServiceUnavailable, err.Error())
	}
	return err
}

// buildObserver sends a build's progress to its client.
type buildObserver struct {
	out  *lines
	gone func() // called when an event cannot be sent because the client has left
	once sync.Once
}

func (o *buildObserver) send(e apiv1.BuildEvent) {
	if err := o.out.send(e); err != nil {
		o.once.Do(o.gone)
	}
}

// Planned implements build.Observer.
func (o *buildObserver) Planned(p *plan.Plan) {
	e := &apiv1.BuildPlan{Steps: []string{}, Notes: []apiv1.BuildNote{}}
	for i := range p.Steps {
		e.Steps = append(e.Steps, p.Steps[i].Name)
	}
	for _, n := range p.Notes {
		e.Notes = append(e.Notes, apiv1.BuildNote{Line: n.Line, Text: n.Text})
	}
	o.send(apiv1.BuildEvent{Plan: e})
}

// Step implements build.Observer.
func (o *buildObserver) Step(number int, state string, took time.Duration) {
	o.send(apiv1.BuildEvent{Step: &apiv1.BuildStep{Number: number, State: state, MS: millis(took)}})
}

// Output implements build.Observer.
func (o *buildObserver) Output(number int, line string) {
	o.send(apiv1.BuildEvent{Output: &apiv1.BuildOutput{Number: number, Line: line}})
}
