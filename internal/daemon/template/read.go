package template

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
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
	files []plan.File // of the archives that were sent, each below its hash; sorted by their paths
	plan  plan.Plan

	words    *dockerfile.Expander
	env      map[string]string
	envBytes int               // see dockerfile.Put
	elses    map[string]string // values of variables that no step has set: those of root
	entries  int               // of the archives in all sources

	user    string // empty: root
	dir     string // absolute
	settled bool   // a step has chosen the user
	force   bool   // what follows is carried out although its snapshot is there
	n       int    // of the step that is being read
}

// read makes the plan of a template that begins with a base, whose settings are known. The error is a
// *stepError.
func (r *reader) read(ctx context.Context, tag string, base plan.Base, c dockerfile.Config) (*plan.Plan, error) {
	r.words, r.user, r.dir = dockerfile.NewExpander(ctx), c.User, cmp.Or(c.Dir, "/")
	r.env = make(map[string]string)
	r.elses = map[string]string{"HOME": "/root", "USER": "root", "LOGNAME": "root", "PWD": r.dir}
	for name, value := range c.Env {
		if err := dockerfile.Put(r.env, &r.envBytes, name, value); err != nil {
			return nil, &stepError{Base, fmt.Errorf("the environment of the base: %w", err)}
		}
	}
	r.plan.Steps = []plan.Step{{Name: "FROM " + cmp.Or(base.Image, base.Snapshot), From: -1, Base: &base}}
	for n := range r.from.Steps {
		s := &r.from.Steps[n]
		r.n, r.force = n+1, r.force || s.Force
		if err := ctx.Err(); err != nil {
			return nil, &stepError{fmt.Sprint(r.n), err}
		}
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

// expand puts the values of variables into a text, and for variables that no step has set those of root.
func (r *reader) expand(text string) (string, error) { return r.words.Expand(text, r.env, r.elses) }

// expandPath expands a text that is to name a file or a user.
func (r *reader) expandPath(text string) (string, error) {
	text, err := r.expand(text)
	if err == nil {
		err = checkPath(text)
	}
	return text, err
}

// checkPath refuses a name that every later step would repeat at length.
func checkPath(name string) error {
	if len(name) > dockerfile.MaxPath {
		return fmt.Errorf("%.40q: the name has %d bytes: want at most %d", name, len(name), dockerfile.MaxPath)
	}
	return nil
}

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
		dir, err := r.expandPath(s.Args[0])
		if err != nil {
			return err
		}
		if dir = r.absolute(dir); len(dir) > dockerfile.MaxPath {
			return checkPath(dir)
		}
		r.dir, r.elses["PWD"] = dir, dir
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
	values := make([]string, len(args)/2) // each is expanded with what the variables were before the step
	for n := range values {
		value, err := r.expand(args[2*n+1])
		if err != nil {
			return fmt.Errorf("%s: %w", args[2*n], err)
		}
		values[n] = value
	}
	for n, value := range values {
		if err := dockerfile.Put(r.env, &r.envBytes, args[2*n], value); err != nil {
			return err
		}
	}
	return nil
}

// setUser makes an account the user of what follows. One that is not there is made.
func (r *reader) setUser(name, user string) error {
	user, err := r.expandPath(user)
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
	to, err := r.expandPath(s.Args[1])
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
	name := sourceOf(s.Args[0])
	if name == "" {
		return r.below(s.FilesHash)
	}
	name = path.Join(s.FilesHash, name)
	i := r.search(name)
	if i == len(r.files) || r.files[i].Path != name {
		return plan.Source{}, errors.New("the archive that was sent does not have the source")
	}
	if r.files[i].Kind == plan.KindDir {
		return r.below(name)
	}
	return plan.Source{Files: r.files[i : i+1], Strip: len(name) - len(path.Base(name))}, r.count(1)
}

// below returns the entries in a directory of the archives as a source.
func (r *reader) below(dir string) (plan.Source, error) {
	files := r.files[r.search(dir+"/"):r.search(dir+"0")] // '0' is the byte after '/'
	return plan.Source{Dir: true, Files: files, Strip: len(dir) + 1}, r.count(len(files))
}

// search returns the index of the first entry of the archives that is not before a name.
func (r *reader) search(name string) int {
	i, _ := slices.BinarySearchFunc(r.files, name, func(f plan.File, name string) int {
		return strings.Compare(f.Path, name)
	})
	return i
}

// count counts entries of a source.
func (r *reader) count(entries int) error {
	if r.entries += entries; r.entries > dockerfile.MaxCopied(len(r.files)) {
		return fmt.Errorf("the steps copy the %d files that were sent too many times: want at most %d files in all",
			len(r.files), dockerfile.MaxCopied(len(r.files)))
	}
	return nil
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
	r := &reader{from: w.plan, files: w.files.Files()}
	return r.read(ctx, w.bd.Template, base, config)
}
