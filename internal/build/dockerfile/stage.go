package dockerfile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/forkd/forkd/internal/build/plan"
)

// stage is the state of a stage while its instructions are read. A stage that is built on another
// stage starts with the final state of the other stage.
type stage struct {
	index int
	step  int // index of the latest step of the stage
	env   map[string]string
	user  string // name or number of the user, without a group; empty: root
	dir   string // absolute path; empty: /
	shell []string

	warmed bool // the stage has had a warm step
	memory bool // the base has memory, which the steps preserve

	triggers []trigger              // ONBUILD instructions, for stages that are built on this stage
	onbuild  []instructions.Command // triggers of the base that have not been executed yet
	foreign  int                    // how many of the next instructions are triggers of an image

	args     map[string]string // values of the ARG instructions of this stage
	argBytes int               // size of args; see Put
	envBytes int               // size of env; see Put

	warms []directive
	n     int // number of the current instruction; the next field is the number of all instructions
	total int
}

// stage returns the stage with index i. It reads the stage at the first call.
func (r *reader) stage(ctx context.Context, i int) (*stage, error) {
	if st := r.made[i]; st != nil {
		return st, nil
	}
	src := &r.source.stages[i]
	line := lineOf(src.Location)
	if slices.Contains(r.doing, i) { // a stage refers only to earlier stages or to itself
		return nil, r.fail(line, "stage %s needs itself", r.title(i))
	}
	r.doing = append(r.doing, i)
	defer func() { r.doing = r.doing[:len(r.doing)-1] }()
	st, err := r.from(ctx, i, src, line)
	if err != nil {
		return nil, err
	}
	cmds := slices.Concat(st.onbuild, src.Commands)
	st.onbuild = nil
	for _, cmd := range cmds {
		if err := r.warmBefore(st, lineOf(cmd.Location())); err != nil {
			return nil, err
		}
		if err := r.instruction(ctx, st, cmd); err != nil {
			return nil, err
		}
		st.foreign = max(0, st.foreign-1)
		if err := r.bounds(lineOf(cmd.Location())); err != nil {
			return nil, err
		}
	}
	if err := r.warmBefore(st, 1<<30); err != nil {
		return nil, err
	}
	r.made[i] = st
	return st, nil
}

// from(…) starts a stage on the base that the stage's FROM instruction names.
func (r *reader) from(ctx context.Context, i int, src *instructions.Stage, line int) (*stage, error) {
	expand := r.expander(vars{args: r.args})
	base, err := expand(src.BaseName)
	if err != nil {
		return nil, r.fail(line, "FROM: %w", err)
	}
	if p, err := expand(src.Platform); err != nil || p != "" && p != "linux/amd64" && p != "linux" && p != "amd64" {
		return nil, r.fail(line, "FROM --platform=%s: forkd builds for linux/amd64", cmp.Or(p, src.Platform))
	}
	st := &stage{index: i, args: make(map[string]string), warms: r.warmsOf(i), n: 1, total: 1}
	st.total += len(st.warms) + countSteps(src.Commands)
	if before, ok := instructions.HasStage(r.source.stages[:i], base); ok {
		below, err := r.stage(ctx, before)
		if err != nil {
			return nil, err
		}
		st.step, st.user, st.dir, st.shell = below.step, below.user, below.dir, below.shell
		st.warmed, st.memory = below.warmed, below.memory
		st.env, st.envBytes = maps.Clone(below.env), below.envBytes
		return st, r.trigger(st, below.triggers, line)
	}
	before := len(r.plan.Steps)
	step, config, err := r.base(ctx, base, line, r.stepName(st, "FROM "+base))
	if err != nil {
		return nil, err
	}
	if err := st.takeEnv(config); err != nil {
		return nil, r.fail(line, "%s: %w", base, err)
	}
	user, _, _ := strings.Cut(config.User, ":")
	st.step, st.user, st.dir = step, user, config.Dir
	st.shell, st.memory = config.Shell, r.plan.Steps[step].Base.Memory
	if len(st.shell) == 0 {
		st.shell = []string{"/bin/sh", "-c"}
	}
	var triggers []trigger
	for _, text := range config.OnBuild {
		triggers = append(triggers, trigger{text: text})
	}
	st.foreign = len(triggers)
	err = r.trigger(st, triggers, line)
	if step == before { // the base is new in the plan; its triggers are executed only once
		r.plan.Steps[step].Name = r.stepName(st, "FROM "+base)
	}
	return st, err
}

// Bounds on the fields of a step, except for its environment.
const (
	MaxPath       = 4096 // bytes of a directory or a user (PATH_MAX)
	maxShellWords = 100
	maxTitle      = 100 // bytes of a stage's name, in the names of its steps
)

// takeEnv sets the environment of a stage to the environment of its base, if this environment is
// within the bounds.
func (st *stage) takeEnv(c Config) error {
	st.env = make(map[string]string)
	for name, value := range c.Env {
		if err := Put(st.env, &st.envBytes, name, value); err != nil {
			return fmt.Errorf("the environment of the base: %w", err)
		}
	}
	if len(c.Dir) > MaxPath || len(c.User) > MaxPath {
		return fmt.Errorf("the directory or the user of the base has more than %d bytes", MaxPath)
	}
	return checkShell(c.Shell)
}

// checkShell returns an error if the shell's arguments are too long. Every step has a copy of them.
func checkShell(shell []string) error {
	if size := len(strings.Join(shell, " ")); len(shell) > maxShellWords || size > MaxPath {
		return fmt.Errorf("the shell has %d words of %d bytes: want at most %d words of %d bytes", len(shell), size,
			maxShellWords, MaxPath)
	}
	return nil
}

// base adds the step of a base that is an image and not another stage.
func (r *reader) base(ctx context.Context, name string, line int, step string) (int, Config, error) {
	switch {
	case name == "":
		return 0, Config{}, r.fail(line, "FROM: the name of the base is empty: an ARG that it uses has no value")
	case strings.EqualFold(name, "scratch"):
		return 0, Config{}, r.fail(
			line,
			"FROM scratch: a sandbox boots a system with a shell: use an image that has one",
		)
	}
	b, config, err := r.resolve(ctx, name)
	if err != nil {
		return 0, Config{}, r.fail(line, "%s: %w", name, err)
	}
	for i := range r.plan.Steps { // stages that are built on the same image share its step
		if have := r.plan.Steps[i].Base; have != nil && *have == b {
			return i, config, nil
		}
	}
	i := r.add(plan.Step{Name: step, Line: line, From: -1, Base: &b})
	return i, config, r.bounds(line) // bounds returns an error if the plan had no room for the step
}

// resolve resolves the name of a base. It asks the Resolver only once for each name.
func (r *reader) resolve(ctx context.Context, name string) (plan.Base, Config, error) {
	if have, ok := r.bases[name]; ok {
		return have.base, have.config, nil
	}
	if len(r.bases) == plan.MaxSteps {
		return plan.Base{}, Config{}, fmt.Errorf("the Dockerfile names more than %d images", plan.MaxSteps)
	}
	b, config, err := r.req.Base(ctx, name)
	if err != nil {
		return b, config, err
	}
	if r.settings += config.size(); r.settings > maxSettings {
		return b, config, fmt.Errorf("the images of the Dockerfile have settings of more than %d MiB: want fewer images, or "+
			"ones with fewer variables and triggers", maxSettings>>20)
	}
	r.bases[name] = resolved{b, config}
	return b, config, nil
}

// maxSettings bounds the settings of all bases together, in bytes.
const maxSettings = 16 << 20

// size returns the memory that c takes, in bytes.
func (c *Config) size() int {
	n := len(c.User) + len(c.Dir) + bytesOf(c.Shell) + bytesOf(c.OnBuild) + variableSize*(len(c.Shell)+len(c.OnBuild))
	for name, value := range c.Env {
		n += len(name) + len(value) + variableSize
	}
	return n
}

func (r *reader) stepName(st *stage, text string) string {
	return fmt.Sprintf("[%.*s %d/%d] %s", maxTitle, r.title(st.index), st.n, st.total, text)
}

// next adds a step that continues the latest step of a stage.
func (r *reader) next(st *stage, line int, text string, s plan.Step) {
	st.n++
	s.Name, s.Line, s.From = r.stepName(st, text), line, st.step
	st.step = r.add(s)
}

// warmsOf returns the comments in a stage that request warm steps.
func (r *reader) warmsOf(i int) (list []directive) {
	begin, end := lineOf(r.source.stages[i].Location), 1<<30
	if i+1 < len(r.source.stages) {
		end = lineOf(r.source.stages[i+1].Location)
	}
	for _, d := range r.source.warms {
		if d.line > begin && d.line < end {
			list = append(list, d)
		}
	}
	return list
}

// warmBefore adds the warm steps that the stage's comments above the given line request.
func (r *reader) warmBefore(st *stage, line int) error {
	for len(st.warms) > 0 && st.warms[0].line < line {
		d := st.warms[0]
		st.warms = st.warms[1:]
		w := &plan.Warm{Process: st.process(st.inShell(d.command))}
		if d.probe != "" {
			w.Probe = st.inShell(d.probe)
		}
		r.next(st, d.line, d.warmName(), plan.Step{Warm: w})
		st.warmed = true
		if err := r.bounds(d.line); err != nil {
			return err
		}
	}
	return nil
}

// vars returns the variables for the instructions of the stage.
func (st *stage) vars() vars { return vars{args: st.args, env: st.env} }

// process returns a command that runs with the stage's present settings.
func (st *stage) process(args []string) plan.Process {
	env := maps.Clone(st.env)
	for name, value := range st.args {
		if _, ok := st.env[name]; !ok {
			env[name] = value
		}
	}
	return plan.Process{Args: args, Env: env, User: st.user, Dir: st.dir}
}

func (st *stage) inShell(command string) []string { return append(slices.Clone(st.shell), command) }

// absolute returns p as an absolute path. If p is relative, it is below the stage's working
// directory.
func (st *stage) absolute(p string) string {
	if !path.IsAbs(p) {
		p = path.Join(cmp.Or(st.dir, "/"), p)
	}
	return path.Clean(p)
}

func countSteps(cmds []instructions.Command) (n int) {
	for _, cmd := range cmds {
		if makesStep(cmd) {
			n++
		}
	}
	return n
}

// makesStep reports whether an instruction becomes a separate step.
func makesStep(cmd instructions.Command) bool {
	switch cmd.(type) {
	case *instructions.RunCommand, *instructions.CopyCommand, *instructions.AddCommand, *instructions.WorkdirCommand:
		return true
	}
	return false
}

// instruction reads one instruction of a stage.
func (r *reader) instruction(ctx context.Context, st *stage, cmd instructions.Command) error {
	line, name := lineOf(cmd.Location()), strings.ToUpper(cmd.Name())
	if ex, ok := cmd.(instructions.SupportsSingleWordExpansion); ok {
		if err := ex.Expand(r.expander(st.vars())); err != nil {
			return r.fail(line, "%s: %w", name, err)
		}
	}
	if ex, ok := cmd.(instructions.SupportsSingleWordExpansionRaw); ok {
		lex := shell.NewLex('\\')
		lex.SkipProcessQuotes = true
		if err := ex.ExpandRaw(r.words.expanding(lex, st.vars())); err != nil {
			return r.fail(line, "%s: %w", name, err)
		}
	}
	var err error
	switch c := cmd.(type) {
	case *instructions.RunCommand:
		err = r.run(ctx, st, c)
	case *instructions.CopyCommand:
		err = r.copy(ctx, st, c)
	case *instructions.AddCommand:
		err = r.addFiles(st, c)
	case *instructions.WorkdirCommand:
		if st.dir = st.absolute(c.Path); len(st.dir) > MaxPath {
			return r.fail(line, "WORKDIR: the directory's name has %d bytes: want at most %d", len(st.dir), MaxPath)
		}
		r.next(st, line, "WORKDIR "+st.dir, plan.Step{Dir: &plan.Dir{Path: st.dir}})
	case *instructions.EnvCommand:
		for _, e := range c.Env {
			err = cmp.Or(err, Put(st.env, &st.envBytes, e.Key, e.Value))
		}
	case *instructions.ArgCommand:
		err = r.arg(st, c)
	case *instructions.UserCommand:
		err = r.user(st, c.User, line)
	case *instructions.ShellCommand:
		st.shell, err = c.Shell, checkShell(c.Shell)
	case *instructions.OnbuildCommand:
		st.triggers = append(st.triggers, trigger{line, c.Expression})
	case *instructions.CmdCommand, *instructions.EntrypointCommand:
		r.note(line, "%s has no effect: a sandbox starts no command; # forkd: warm COMMAND keeps one running", name)
	case *instructions.HealthCheckCommand:
		r.note(line, "HEALTHCHECK has no effect: # forkd: probe COMMAND says when a warm command is ready")
	case *instructions.ExposeCommand, *instructions.VolumeCommand, *instructions.StopSignalCommand,
		*instructions.LabelCommand, *instructions.MaintainerCommand:
		r.note(line, "%s has no effect on a snapshot", name)
	default:
		err = fmt.Errorf("forkd does not know this instruction")
	}
	if err != nil {
		return r.fail(line, "%s: %w", name, err)
	}
	return nil
}

// arg sets the arguments that an ARG instruction declares. A value in the request takes precedence
// over the default in the instruction. This default takes precedence over an ARG before the first
// FROM.
func (r *reader) arg(st *stage, c *instructions.ArgCommand) error {
	for _, a := range c.Args {
		value, ok := r.req.Args[a.Key]
		if ok {
			r.used[a.Key] = true
		} else if a.Value != nil {
			value, ok = *a.Value, true
		} else {
			value, ok = r.args[a.Key]
		}
		if !ok {
			continue
		}
		if err := Put(st.args, &st.argBytes, a.Key, value); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) user(st *stage, user string, line int) error {
	if user == "" {
		return fmt.Errorf("the name is empty: an ARG that it uses has no value")
	}
	name, group, ok := strings.Cut(user, ":")
	if ok {
		r.note(line, "USER %s: the group %s has no effect: a process has the groups of its account", user, group)
	}
	if name == "root" || name == "0" {
		name = ""
	}
	st.user = name
	return nil
}
