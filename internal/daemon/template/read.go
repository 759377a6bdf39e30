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

// defaultUser is the account that runs the steps until a step selects another account. It is used
// only if it exists in the guest and the guest has no default user of its own. If the guest has
// neither this account nor a default user, the steps run as root.
const defaultUser = "user"

// readyAfter is a number of seconds. If a template has a start command but no ready command, the
// start command runs for this time before the template is saved. E2B uses the same time.
const readyAfter = "20"

//go:embed user.sh
var userScript string

// loginShell runs the command $1 in a login shell.
const loginShell = `shell=/bin/sh; [ ! -x /bin/bash ] || shell=/bin/bash; exec "$shell" -l -c "$1"`

// reader makes a plan from a template. plan.Step.Line is the number of the step in the template,
// from 1. The number is 0 for steps that the reader adds at the beginning and the end.
type reader struct {
	from  Plan
	files []plan.File // files of the uploaded archives, sorted by path; a path begins with the hash of its archive
	plan  plan.Plan

	words    *dockerfile.Expander
	env      map[string]string
	envBytes int               // size of the field env; see dockerfile.Put
	elses    map[string]string // root's values of variables that no step has set
	entries  int               // number of archive entries in all sources so far

	user    string // empty: root
	dir     string // absolute path
	settled bool   // whether a step has chosen the user
	force   bool   // whether the following steps are run even if their snapshots exist
	n       int    // number of the current step
}

// read makes the plan of a template. The parameter c has the settings of the base. The error is a
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

// expand expands variables in a text. A variable that no step has set has root's value.
func (r *reader) expand(text string) (string, error) { return r.words.Expand(text, r.env, r.elses) }

// expandPath expands variables in the name of a file or a user.
func (r *reader) expandPath(text string) (string, error) {
	text, err := r.expand(text)
	if err == nil {
		err = checkPath(text)
	}
	return text, err
}

// checkPath returns an error if a name is too long. Every later step would contain this name.
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
	values := make([]string, len(args)/2) // the variables of a step do not affect each other's values
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

// setUser selects the user of the following steps and creates the account if it is missing.
func (r *reader) setUser(name, user string) error {
	user, err := r.expandPath(user)
	if err != nil {
		return err
	}
	if !ownerForm.MatchString(user) {
		return fmt.Errorf("%.40q: want the name of a user", user)
	}
	r.user, _, _ = strings.Cut(user, ":") // a group is ignored: the user has the groups of the account
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
		target += "/" // a final slash marks a directory
	}
	r.add(name, plan.Step{Copy: &plan.Copy{Sources: []plan.Source{source}, Target: target,
		Owner: cmp.Or(s.arg(2), r.user), Mode: s.arg(3)}})
	return nil
}

// source returns the source of a COPY in its archive: a file, or the content of a directory.
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

// below returns the entries of the archives that are in dir and its subdirectories.
func (r *reader) below(dir string) (plan.Source, error) {
	files := r.files[r.search(dir+"/"):r.search(dir+"0")] // '0' is the byte after '/'
	return plan.Source{Dir: true, Files: files, Strip: len(dir) + 1}, r.count(len(files))
}

// search returns the index of a name in files. If the name is missing, it returns the index of the
// first file that sorts after the name.
func (r *reader) search(name string) int {
	i, _ := slices.BinarySearchFunc(r.files, name, func(f plan.File, name string) int {
		return strings.Compare(f.Path, name)
	})
	return i
}

// count adds the given number to the number of entries in all sources. It returns an error if the
// sum is above the limit.
func (r *reader) count(entries int) error {
	if r.entries += entries; r.entries > dockerfile.MaxCopied(len(r.files)) {
		return fmt.Errorf("the steps copy the %d files that were sent too many times: want at most %d files in all",
			len(r.files), dockerfile.MaxCopied(len(r.files)))
	}
	return nil
}

// warm adds the steps that start the command of the template and wait until the template is ready.
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

// planOf makes the base of a build, and then the build's plan.
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
