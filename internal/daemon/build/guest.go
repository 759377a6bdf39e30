package build

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/build/plan"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/agentclient"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/pause"
)

// Time limits of forkd's own scripts and requests, and the maximum size of their answers. These
// limits do not apply to the client's commands.
const (
	ownTime   = 5 * time.Minute
	syncTime  = 10 * time.Minute
	maxAnswer = 1 << 20 // bytes
)

// maxWarm is the default time limit of a warm step, and probeEvery is the interval of its probes.
const (
	maxWarm    = 10 * time.Minute
	probeEvery = 500 * time.Millisecond
)

// guest executes one step in a sandbox.
type guest struct {
	w    *work
	i    int
	box  string
	step *plan.Step
	c    *agentclient.Client

	set snapshot.Defaults // defaults that the step has given to the agent
}

func (g *guest) do(ctx context.Context) error {
	switch s := g.step; {
	case s.Run != nil:
		return g.run(ctx, s.Run)
	case s.Copy != nil:
		return g.copy(ctx, s.Copy)
	case s.Dir != nil:
		return g.copy(ctx, &plan.Copy{Target: strings.TrimSuffix(s.Dir.Path, "/") + "/", Owner: s.Dir.Owner})
	case s.Warm != nil:
		return g.warm(ctx, s.Warm)
	case s.Defaults != nil:
		return g.defaults(ctx, s.Defaults)
	case s.Children != nil:
		return g.children(ctx, s.Children)
	}
	return errors.New("the step does nothing")
}

// output runs a program as a user and returns its standard output. Its standard error is part of
// the error.
func output(ctx context.Context, c *agentclient.Client, user string, args ...string) (string, error) {
	return capture(ctx, c, agentclient.ExecRequest{Args: args, User: user})
}

func capture(ctx context.Context, c *agentclient.Client, req agentclient.ExecRequest) (string, error) {
	req.Timeout, req.MaxOutput = ownTime, maxAnswer
	r, err := c.Exec(ctx, req)
	if err != nil {
		return "", err
	}
	if err := failure(r, ownTime); err != nil {
		return "", fmt.Errorf("%w: %s", err, strings.TrimSpace(printable(string(r.Stderr))))
	}
	return string(r.Stdout), nil
}

// script runs one of forkd's own scripts in the guest's shell, as root.
func (g *guest) script(ctx context.Context, text string, args ...string) (string, error) {
	return output(ctx, g.c, "root", append([]string{"/bin/sh", "-c", text, "sh"}, args...)...)
}

// failure returns an error for a command that did not succeed.
func failure(r agentclient.ExecResult, within time.Duration) error {
	if r.Outcome == agentclient.Exited && r.ExitCode != 0 {
		return fmt.Errorf("exit status %d", r.ExitCode)
	}
	err := r.Err()
	if errors.Is(err, agentclient.ErrTimeout) {
		return fmt.Errorf("%w after %v", errNotDone, within)
	}
	return err
}

// errNotDone says that a command has reached its time limit.
var errNotDone = errors.New("not done")

// request returns the request that starts a process of a step.
func (g *guest) request(ctx context.Context, p *plan.Process, within time.Duration) (agentclient.ExecRequest, error) {
	user := cmp.Or(p.User, "root")
	if strings.Trim(user, "0123456789") == "" {
		name, err := output(ctx, g.c, "root", "id", "-un", "--", user)
		if err != nil {
			return agentclient.ExecRequest{}, fmt.Errorf(
				"user %s: the guest has no account with this number: add one with useradd",
				user,
			)
		}
		user = strings.TrimSpace(name)
	}
	return agentclient.ExecRequest{Args: p.Args, Env: p.Env, User: user, Cwd: cmp.Or(p.Dir, "/"), Timeout: within}, nil
}

// stepVariable marks the processes of a RUN step. If the step leaves processes behind, they are
// found by this mark and killed.
const stepVariable = "FORKD_BUILD_STEP"

var (
	//go:embed leftovers.sh
	leftoversScript string
	//go:embed place.sh
	placeScript string
	//go:embed find.sh
	findScript string
	//go:embed mount.sh
	mountScript string
	//go:embed unmount.sh
	unmountScript string
	//go:embed secret.sh
	secretScript string
)

func (g *guest) run(ctx context.Context, r *plan.Run) (err error) {
	req, err := g.request(ctx, &r.Process, maxCommand)
	if err != nil {
		return err
	}
	req.Env = maps.Clone(req.Env)
	if req.Env == nil {
		req.Env = make(map[string]string)
	}
	req.Env[stepVariable] = g.w.keys[g.i]
	if r.Script != nil {
		if err := g.c.WriteFile(ctx, r.Script.Path, "root", strings.NewReader(r.Script.Data)); err != nil {
			return err
		}
		if _, err := output(ctx, g.c, "root", "chmod", "755", r.Script.Path); err != nil {
			return err
		}
	}
	unmount, err := g.mount(ctx, r.Mounts, req.Env)
	if err != nil {
		return err
	}
	online, err := g.network(ctx, r.Network)
	if err != nil {
		return err
	}
	if err := g.command(ctx, req); err != nil {
		return err
	}
	if _, err := g.script(ctx, leftoversScript, stepVariable+"="+g.w.keys[g.i]); err != nil {
		return fmt.Errorf("end the processes that the command has left: %w", err)
	}
	if err := errors.Join(online(), unmount()); err != nil {
		return err
	}
	if r.Script != nil {
		return g.c.Remove(ctx, r.Script.Path, "root")
	}
	return nil
}

// network disconnects the sandbox from the network if the step requires that. The returned function
// connects the sandbox again.
func (g *guest) network(ctx context.Context, mode string) (online func() error, err error) {
	if mode != "none" {
		return func() error { return nil }, nil
	}
	s, err := g.w.b.cfg.Manager.Get(g.box)
	if err != nil {
		return nil, err
	}
	before := s.Info().Network
	if _, err := g.w.b.cfg.Manager.SetNetwork(ctx, g.box, netclient.Isolated()); err != nil {
		return nil, err
	}
	return func() error {
		_, err := g.w.b.cfg.Manager.SetNetwork(ctx, g.box, before)
		return err
	}, nil
}

// command runs a command that must succeed, and passes its output to the observer.
func (g *guest) command(ctx context.Context, req agentclient.ExecRequest) error {
	out := [2]lines{{g: g}, {g: g}}
	r, err := g.c.ExecStream(ctx, req, func(s agentclient.Stream, p []byte) error {
		if s == agentclient.Stdout {
			return out[0].add(p)
		}
		return out[1].add(p)
	})
	out[0].end()
	out[1].end()
	if err != nil {
		return err
	}
	return failure(r, req.Timeout)
}

// warm runs a command that keeps running, or whose effects stay in memory.
func (g *guest) warm(ctx context.Context, w *plan.Warm) error {
	if w.Python != "" {
		return g.python(ctx, w)
	}
	if len(w.Probe) == 0 {
		req, err := g.request(ctx, &w.Process, secondsOr(w.TimeoutSecs, maxCommand))
		if err != nil {
			return err
		}
		if err = g.command(ctx, req); errors.Is(err, errNotDone) && w.TimeoutSecs != 0 {
			err = fmt.Errorf("%w: raise timeout_secs", err)
		}
		return err
	}
	req, err := g.request(ctx, &w.Process, 0)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	running, leave := context.WithCancelCause(ctx)
	go func() {
		err := g.command(running, req)
		ended <- err
		if err != nil && running.Err() == nil {
			leave(fmt.Errorf("the command ended before it was warm: %w", err))
		}
	}()
	defer func() {
		leave(agentclient.ErrDetached) // the command continues by itself
		<-ended
	}()
	probe, within := w.Process, secondsOr(w.TimeoutSecs, maxWarm)
	probe.Args = w.Probe
	ask, err := g.request(ctx, &probe, within)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(within); ; {
		r, err := g.c.Exec(running, ask)
		switch {
		case context.Cause(running) != nil:
			return context.Cause(running)
		case err != nil:
			return err
		case failure(r, within) == nil:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("the probe has not succeeded within %v: %s", within,
				strings.TrimSpace(printable(string(r.Stderr))))
		}
		if err := pause.For(running, probeEvery); err != nil {
			return context.Cause(running)
		}
	}
}

// defaults() sets the default settings of sandboxes forked from the result, and flushes the disk.
func (g *guest) defaults(ctx context.Context, d *plan.Defaults) error {
	set := agentclient.Defaults{User: asText(cmp.Or(d.User, "root")), Dir: asText(d.Dir), Env: make(map[string]string)}
	for name, value := range d.Env {
		set.Env[asText(name)] = asText(value)
	}
	if d.KeepUser {
		set.User = "" // the default user stays unchanged
	}
	if set.User != "" && strings.Trim(set.User, "0123456789") == "" {
		req, err := g.request(ctx, &plan.Process{User: set.User}, 0)
		if err != nil {
			return err
		}
		set.User = req.User
	}
	if err := g.c.SetDefaults(ctx, set); err != nil {
		return err
	}
	g.set = snapshot.Defaults{Env: set.Env, User: set.User, Dir: set.Dir}
	ctx, cancel := context.WithTimeoutCause(ctx, syncTime, fmt.Errorf("the guest did not write its disk within %v",
		syncTime))
	defer cancel()
	if err := g.c.Sync(ctx); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return nil
}

// asText converts a setting of a Dockerfile to valid UTF-8, because the guest and the manifest
// accept nothing else.
func asText(setting string) string { return strings.ToValidUTF8(setting, "\uFFFD") }

// Bounds on the output of a command.
const (
	maxLine   = 4 << 10   // bytes of a line
	maxOutput = 256 << 20 // bytes after which the command is killed
)

// lines passes the output of a command to the observer line by line.
type lines struct {
	g     *guest
	rest  []byte // an incomplete line
	total int64
}

func (l *lines) add(p []byte) error {
	if l.total += int64(len(p)); l.total > maxOutput {
		return fmt.Errorf("ended after it had written %d MiB", maxOutput>>20)
	}
	l.rest = append(l.rest, p...)
	for {
		n := bytes.IndexAny(l.rest, "\r\n")
		if n < 0 && len(l.rest) < maxLine {
			return nil
		}
		if n < 0 {
			n = len(l.rest) - 1
		}
		l.put(l.rest[:n+1])
		l.rest = l.rest[n+1:]
	}
}

func (l *lines) end() {
	l.put(l.rest)
	l.rest = nil
}

func (l *lines) put(line []byte) {
	if text := strings.TrimRight(string(line), " \t\r\n"); text != "" {
		l.g.w.o.Output(l.g.i, printable(text))
	}
}

// printable makes text from a guest safe for a message.
func printable(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) > maxLine {
		text = strings.ToValidUTF8(text[:maxLine], "") + " …"
	}
	return text
}
