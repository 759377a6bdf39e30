// Package dockerfile converts Dockerfiles to plans. It uses BuildKit's own packages for parsing,
// instructions, shell words and linting, so the syntax is Docker's. The effect of an instruction is
// decided here. An instruction or flag that forkd does not implement is an error with its name,
// file and line.
//
// The package opens no files and no connections. The caller supplies the text, the list of files of
// the build context, and a function that resolves the names of base images.
package dockerfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"

	"github.com/forkd/forkd/internal/build/plan"
)

// Request is a Dockerfile with its parameters.
type Request struct {
	Name   string            // name of the file, for errors
	Text   []byte            // content of the file
	Target string            // name or number of the stage to build; empty: the last stage
	Args   map[string]string // values of ARG instructions
	Files  []plan.File       // files of the build context, sorted by path
	Base   Resolver
}

// Resolver resolves the name in a FROM instruction. The Config holds the settings with which the
// stage's first step runs.
type Resolver func(ctx context.Context, name string) (plan.Base, Config, error)

// Config holds the settings of a base for the processes that run on it.
type Config struct {
	Env     map[string]string
	User    string
	Dir     string
	Shell   []string // empty: /bin/sh -c
	OnBuild []string // ONBUILD instructions
}

// Error is an error at a line of a Dockerfile.
type Error struct {
	Name string
	Line int // line number, from 1; 0 stands for the whole file
	Err  error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.Name, e.Err)
	}
	return fmt.Sprintf("%s:%d: %v", e.Name, e.Line, e.Err)
}

// Unwrap returns the error without its position.
func (e *Error) Unwrap() error { return e.Err }

// MaxText is the maximum size of a Dockerfile in bytes.
const MaxText = 1 << 20

// Bounds on a Dockerfile and its request.
const (
	maxStages = 500
	maxArgs   = 1000 // arguments in Request.Args; each command reads all of them
)

// Read makes a plan from a Dockerfile. Stages that the target does not need are not in the plan,
// and their bases are not resolved. If the Dockerfile is wrong, the error is an *Error.
func Read(ctx context.Context, req Request) (*plan.Plan, error) {
	src, err := parse(req.Name, req.Text, nil)
	if err != nil {
		return nil, err
	}
	if n := len(req.Args); n > maxArgs {
		return nil, &Error{Name: req.Name, Err: fmt.Errorf("%d --build-arg: want at most %d", n, maxArgs)}
	}
	r := newReader(ctx, req, src)
	if err := r.takeProxies(); err != nil {
		return nil, err
	}
	if err := r.global(); err != nil {
		return nil, err
	}
	target, err := r.target()
	if err != nil {
		return nil, err
	}
	last, err := r.stage(ctx, target)
	if err != nil {
		return nil, err
	}
	r.plan.Result = r.add(plan.Step{Name: "save the settings of " + r.title(target), From: last.step,
		Defaults: &plan.Defaults{Env: last.env, User: last.user, Dir: last.dir}})
	for _, t := range last.triggers {
		r.note(t.line, "ONBUILD is for stages of this file that continue this one: the snapshot does not have the trigger")
	}
	for _, name := range slices.Sorted(maps.Keys(req.Args)) {
		if !r.used[name] && !isProxy(name) {
			r.note(0, "--build-arg %s: no ARG instruction takes it", name)
		}
	}
	if err := r.bounds(0); err != nil {
		return nil, err
	}
	if err := r.plan.Check(); err != nil {
		return nil, &Error{Name: req.Name, Err: err}
	}
	return &r.plan, nil
}

// source is a parsed Dockerfile.
type source struct {
	name   string
	escape rune
	stages []instructions.Stage
	meta   []instructions.ArgCommand
	warms  []directive
}

// parse parses a Dockerfile. It reports doubtful constructs to the linter lint, which may be nil.
func parse(name string, text []byte, lint *linter.Linter) (*source, error) {
	if len(text) > MaxText {
		return nil, &Error{Name: name, Err: fmt.Errorf("%d bytes: want at most %d", len(text), MaxText)}
	}
	for i, line := range bytes.Split(text, []byte("\n")) {
		if !isText(line) {
			return nil, &Error{name, i + 1, errors.New("a byte is not text in UTF-8: convert the file")}
		}
	}
	if syntax, _, at, ok := parser.DetectSyntax(text); ok && !knownSyntax(syntax) {
		return nil, &Error{name, lineOf(at), fmt.Errorf("syntax=%s: another frontend is not run; "+
			"want docker/dockerfile:1, or no such line", syntax)}
	}
	ast, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		return nil, located(name, err)
	}
	stages, meta, err := instructions.Parse(ast.AST, lint)
	if err != nil {
		return nil, located(name, err)
	}
	if len(stages) == 0 {
		return nil, &Error{Name: name, Err: errors.New("no FROM instruction")}
	}
	if n := len(stages); n > maxStages {
		return nil, &Error{name, lineOf(stages[maxStages].Location), fmt.Errorf("%d stages: want at most %d", n, maxStages)}
	}
	warms, err := directives(name, text, ast.AST)
	if err != nil {
		return nil, err
	}
	return &source{name, ast.EscapeToken, stages, meta, warms}, nil
}

// isText reports whether p is UTF-8 without NUL bytes. BuildKit's package for shell words writes a
// line to standard error for each byte that is not text.
func isText(p []byte) bool { return utf8.Valid(p) && bytes.IndexByte(p, 0) < 0 }

// knownSyntax reports whether a syntax directive names a syntax that this package implements.
func knownSyntax(syntax string) bool {
	name, _, _ := strings.Cut(syntax, "@")
	name = strings.TrimPrefix(name, "docker.io/")
	name, version, _ := strings.Cut(name, ":")
	return name == "docker/dockerfile" && (version == "" || version == "latest" || version == "1" ||
		strings.HasPrefix(version, "1.") || strings.HasPrefix(version, "1-"))
}

// located adds the file and line to an error of BuildKit's packages.
func located(name string, err error) error {
	line := 0
	var at *parser.LocationError
	if errors.As(err, &at) && len(at.Locations) > 0 {
		line = lineOf(at.Locations[0])
	}
	text := err.Error()
	// Find the message without "dockerfile parse error on line N".
	for cause := err; cause != nil; cause = errors.Unwrap(cause) {
		if rest, ok := strings.CutPrefix(cause.Error(), "dockerfile parse error on line "); ok {
			if n, after, ok := strings.Cut(rest, ": "); ok {
				text = after
				if line == 0 {
					_, _ = fmt.Sscan(n, &line)
				}
			}
		}
	}
	return &Error{name, line, errors.New(text)}
}

func lineOf(at []parser.Range) int {
	if len(at) == 0 {
		return 0
	}
	return at[0].Start.Line
}

// reader makes the plan for a source.
type reader struct {
	ctx      context.Context
	req      Request
	source   *source
	plan     plan.Plan
	args     map[string]string // values of ARG instructions before the first FROM
	argBytes int               // size of args; see Put
	made     map[int]*stage
	doing    []int               // indexes of the stages that are being read, outermost first
	used     map[string]bool     // names of Request.Args that an ARG instruction has declared
	bases    map[string]resolved // results of Request.Base, by name

	// proxy variables in Request.Args, which are in the environment of every command
	proxies map[string]string

	words     *Expander
	full      bool // the plan has no room for more steps
	names     int  // names in all sources
	entries   int  // entries of the build context in all sources
	compared  int  // comparisons of names with patterns
	repeated  int  // bytes of patterns that sources repeat; see maxRepeated
	mounts    int  // mounts of all commands
	triggered int  // bytes of the triggers that stages have read, plus triggerSize for each trigger
	settings  int  // bytes of the settings of all bases
}

// resolved is the result of a Resolver.
type resolved struct {
	base   plan.Base
	config Config
}

func newReader(ctx context.Context, req Request, src *source) *reader {
	return &reader{ctx: ctx, req: req, source: src, words: NewExpander(ctx), made: make(map[int]*stage),
		args: make(map[string]string), used: make(map[string]bool), bases: make(map[string]resolved)}
}

// maxNotes is the maximum number of notes of a plan.
const maxNotes = 1000

func (r *reader) fail(line int, format string, args ...any) error {
	return &Error{r.req.Name, line, fmt.Errorf(format, args...)}
}

func (r *reader) note(line int, format string, args ...any) {
	switch n := len(r.plan.Notes); {
	case n < maxNotes:
		r.plan.Notes = append(r.plan.Notes, plan.Note{Line: line, Text: fmt.Sprintf(format, args...)})
	case n == maxNotes:
		r.plan.Notes = append(r.plan.Notes, plan.Note{Line: line, Text: "further notes are not shown"})
	}
}

// add adds a step. If the plan has no room for it, add sets r.full, and the next call of r.bounds
// returns the error.
func (r *reader) add(s plan.Step) int {
	if len(r.plan.Steps) == plan.MaxSteps {
		r.full = true
		return plan.MaxSteps - 1
	}
	r.plan.Steps = append(r.plan.Steps, s)
	return len(r.plan.Steps) - 1
}

// bounds returns an error with the given line if reading must stop. Reading must stop if a limit
// was exceeded, or if the context is done.
func (r *reader) bounds(line int) error {
	if r.full {
		return r.fail(line, "there are more than %d steps", plan.MaxSteps)
	}
	return r.ctx.Err()
}

// platform holds the arguments that a Dockerfile can use before FROM without declaring them.
var platform = [...]struct{ key, value string }{
	{"BUILDPLATFORM", "linux/amd64"}, {"BUILDOS", "linux"}, {"BUILDARCH", "amd64"}, {"BUILDVARIANT", ""},
	{"TARGETPLATFORM", "linux/amd64"}, {"TARGETOS", "linux"}, {"TARGETARCH", "amd64"}, {"TARGETVARIANT", ""},
}

// isProxy reports whether a build argument can be used without an ARG instruction.
func isProxy(name string) bool {
	switch strings.ToUpper(name) {
	case "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY":
		return true
	}
	return false
}

// takeProxies finds the proxy variables for the environment of every command, and bounds their
// size.
func (r *reader) takeProxies() error {
	size := 0
	r.proxies = make(map[string]string)
	for name, value := range r.req.Args {
		if !isProxy(name) {
			continue
		}
		if err := Put(r.proxies, &size, name, value); err != nil {
			return r.fail(0, "--build-arg %w", err)
		}
	}
	return nil
}

// global evaluates the ARG instructions before the first FROM.
func (r *reader) global() error {
	for _, a := range platform {
		r.args[a.key] = a.value
	}
	for i := range r.source.meta {
		cmd := &r.source.meta[i]
		line := lineOf(cmd.Location())
		if err := cmd.Expand(r.expander(vars{args: r.args})); err != nil {
			return r.fail(line, "ARG: %w", err)
		}
		for _, a := range cmd.Args {
			value, ok := r.req.Args[a.Key]
			if ok {
				r.used[a.Key] = true
			} else {
				value = a.ValueString()
			}
			if err := Put(r.args, &r.argBytes, a.Key, value); err != nil {
				return r.fail(line, "ARG: %w", err)
			}
		}
	}
	return nil
}

// target returns the index of the stage to build.
func (r *reader) target() (int, error) {
	stages := r.source.stages
	if r.req.Target == "" {
		return len(stages) - 1, nil
	}
	if i, ok := r.find(r.req.Target, len(stages)); ok {
		return i, nil
	}
	var names []string
	for i := range stages {
		names = append(names, r.title(i))
	}
	return 0, r.fail(0, "target %q: no such stage: there are %s", r.req.Target, strings.Join(names, ", "))
}

// find returns the index of a stage with the given name or number. It looks only at stages whose
// index is less than the given limit (before).
func (r *reader) find(name string, before int) (int, bool) {
	stages := r.source.stages[:before]
	if i, ok := instructions.HasStage(stages, name); ok {
		return i, true
	}
	n := 0
	for _, digit := range name {
		if digit < '0' || digit > '9' || n > len(stages) {
			return 0, false
		}
		n = n*10 + int(digit-'0')
	}
	return n, name != "" && n < len(stages)
}

// title returns the part of a step's name that names its stage.
func (r *reader) title(i int) string {
	if name := r.source.stages[i].Name; name != "" {
		return name
	}
	return fmt.Sprintf("stage-%d", i)
}
