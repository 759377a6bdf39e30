package template

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"path"
	"strings"

	"github.com/forkd/forkd/internal/build/dockerfile"
	"github.com/forkd/forkd/internal/build/plan"
)

// defaultUser is the account that steps are carried out as until a step names another, if the guest
// has the account and no default of its own; else it is root.
const defaultUser = "user"

// readyAfter is how long a start command without a ready command runs before the template is saved,
// in seconds: that of E2B.
const readyAfter = "20"

//go:embed user.sh
var userScript string

// loginShell runs $1 in a login shell.
const loginShell = `shell=/bin/sh; [ ! -x /bin/bash ] || shell=/bin/bash; exec "$shell" -l -c "$1"`

// reader makes a plan of a template. The line of a plan's step is the number of the template's, from 1;
// it is 0 before them and after them.
type reader struct {
	from  Plan
	files func(hash string) []plan.File // of an archive that was sent
	plan  plan.Plan

	env     map[string]string
	user    string // empty: root
	dir     string // absolute
	settled bool   // a step has chosen the user
	force   bool   // what follows is carried out although its snapshot is there
	n       int    // of the step that is being read
}

// read makes the plan of a template that begins with a base, whose settings are known. The error is a
// *stepError.
func (r *reader) read(tag string, base plan.Base, c dockerfile.Config) (*plan.Plan, error) {
	r.env, r.user, r.dir = maps.Clone(c.Env), c.User, cmp.Or(c.Dir, "/")
	if r.env == nil {
		r.env = make(map[string]string)
	}
	r.plan.Steps = []plan.Step{{Name: "FROM " + cmp.Or(base.Image, base.Snapshot), From: -1, Base: &base}}
	for n := range r.from.Steps {
		s := &r.from.Steps[n]
		r.n, r.force = n+1, r.force || s.Force
		if err := r.step(s); err != nil {
			return nil, &stepError{fmt.Sprint(r.n), &ownError{fmt.Errorf("%s: %w", s.text(), err)}}
		}
	}
	r.n = 0
	if r.from.StartCmd != "" || r.from.ReadyCmd != "" {
		r.warm()
	}
	d := &plan.Defaults{Env: r.env, User: r.user, Dir: r.dir}
	if !r.settled {
		d.User, d.KeepUser = "", true
	}
	r.add("save "+tag, plan.Step{Defaults: d})
	r.plan.Result = len(r.plan.Steps) - 1
	if err := r.plan.Check(); err != nil {
		return nil, &stepError{Base, err}
	}
	return &r.plan, nil
}

// add adds a step to the plan.
func (r *reader) add(name string, s plan.Step) {
	s.Name, s.Line, s.From, s.Force = name, r.n, len(r.plan.Steps)-1, r.force
	r.plan.Steps = append(r.plan.Steps, s)
}

func (r *reader) process(command, user string) plan.Process {
	return plan.Process{Args: []string{"/bin/sh", "-c", loginShell, "sh", command}, Env: maps.Clone(r.env), User: user,
		Dir: r.dir}
}

// expand puts the values of variables into a text, of which root's are those that no step has set.
func (r *reader) expand(text string) (string, error) {
	env := map[string]string{"HOME": "/root", "USER": "root", "LOGNAME": "root", "PWD": r.dir}
	maps.Copy(env, r.env)
	return dockerfile.Expand(text, env)
}

// maxEnv bounds the variables of one step, in bytes: Linux gives a program 2 MiB for all that it has.
const maxEnv = 1 << 20

func (r *reader) step(s *Step) error {
	name := fmt.Sprintf("[%d/%d] %s", r.n, len(r.from.Steps), s.text())
	switch s.Type {
	case typeRun:
		user := r.user
		if s.arg(1) != "" {
			user = s.Args[1]
		}
		r.add(name, plan.Step{Run: &plan.Run{Process: r.process(s.Args[0], user)}})
	case typeEnv, typeArg:
		return r.setEnv(s.Args)
	case typeWorkdir:
		dir, err := r.expand(s.Args[0])
		if err != nil {
			return err
		}
		r.dir = r.absolute(dir)
		r.add(name, plan.Step{Dir: &plan.Dir{Path: r.dir, Owner: r.user}})
	case typeUser:
		return r.setUser(name, s.Args[0])
	default:
		return r.copy(name, s)
	}
	return nil
}

func (r *reader) absolute(p string) string {
	if !path.IsAbs(p) {
		p = path.Join(r.dir, p)
	}
	return path.Clean(p)
}

func (r *reader) setEnv(args []string) error {
	set, bytes := make(map[string]string), 0
	for n := 0; n < len(args); n += 2 {
		value, err := r.expand(args[n+1])
		if err != nil {
			return fmt.Errorf("%s: %w", args[n], err)
		}
		if bytes += len(args[n]) + len(value); bytes > maxEnv {
			return fmt.Errorf("%s: the variables of the step have more than %d KiB", args[n], maxEnv>>10)
		}
		set[args[n]] = value
	}
	maps.Copy(r.env, set)
	return nil
}

// setUser makes an account the user of what follows. One that is not there is made.
func (r *reader) setUser(name, user string) error {
	user, err := r.expand(user)
	if err != nil {
		return err
	}
	if !ownerForm.MatchString(user) {
		return fmt.Errorf("%.40q: want the name of a user", user)
	}
	r.user, _, _ = strings.Cut(user, ":") // a group has no meaning: the user has those of the account
	r.settled = true
	r.add(name, plan.Step{Run: &plan.Run{Process: plan.Process{
		Args: []string{"/bin/sh", "-c", userScript, "sh", r.user}}}})
	return nil
}

func (r *reader) copy(name string, s *Step) error {
	to, err := r.expand(s.Args[1])
	if err != nil {
		return err
	}
	if to == "" {
		return errors.New("the target is empty: a variable that it uses has no value")
	}
	source, err := r.source(s)
	if err != nil {
		return err
	}
	target := r.absolute(to)
	if last := path.Base(to); target != "/" && (strings.HasSuffix(to, "/") || last == "." || last == "..") {
		target += "/" // it means a directory
	}
	r.add(name, plan.Step{Copy: &plan.Copy{Sources: []plan.Source{source}, Target: target,
		Owner: cmp.Or(s.arg(2), r.user), Mode: s.arg(3)}})
	return nil
}

// source returns what of an archive a step copies: a file, or what is in a directory.
func (r *reader) source(s *Step) (plan.Source, error) {
	files, at := r.files(s.FilesHash), sourceOf(s.Args[0])
	if at == "" {
		return plan.Source{Files: files, Dir: true}, nil
	}
	src, found := plan.Source{}, false
	for _, f := range files {
		below, ok := strings.CutPrefix(f.To, at+"/")
		switch {
		case f.To == at:
			found, src.Dir = true, f.Kind == plan.KindDir
			if !src.Dir {
				f.To = path.Base(at)
				src.Files = append(src.Files, f)
			}
		case ok:
			f.To = below
			src.Files = append(src.Files, f)
		}
	}
	if !found {
		return src, errors.New("the archive that was sent does not have the source")
	}
	return src, nil
}

// warm starts the command that is to run on in the template, and waits until the template is ready.
func (r *reader) warm() {
	w := &plan.Warm{Process: r.process(cmp.Or(r.from.StartCmd, ":"), r.user),
		Probe: []string{"/bin/sh", "-c", loginShell, "sh", r.from.ReadyCmd}}
	name := "start: " + r.from.StartCmd
	switch {
	case r.from.StartCmd == "":
		name = "ready?: " + r.from.ReadyCmd
	case r.from.ReadyCmd == "":
		w.Probe = []string{"sleep", readyAfter}
	default:
		name += ", ready?: " + r.from.ReadyCmd
	}
	r.add(name, plan.Step{Warm: w})
}

// planOf makes the plan of a build, with what it begins with.
func (w *work) planOf(ctx context.Context) (*plan.Plan, error) {
	from, err := w.base(ctx)
	if err != nil {
		return nil, err
	}
	base, config, err := w.b.cfg.Builds.Begin(ctx, w.req, from, defaultUser, w)
	if err != nil {
		return nil, err
	}
	r := &reader{from: w.plan, files: w.files.Below}
	return r.read(w.bd.Template, base, config)
}
