package dockerfile

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/patternmatcher"

	"github.com/forkd/forkd/internal/build/plan"
)

// What --chown and --chmod may be. They are arguments of programs in the guest.
var (
	ownerForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$`)
	modeForm  = regexp.MustCompile(`^([0-7]{3,4}|[ugoa]*[-+=][rwxXst]*(,[ugoa]*[-+=][rwxXst]*)*)$`)
)

// Bounds on sources of files.
const (
	maxSources   = 1000    // names in one instruction
	maxExcludes  = 100     // patterns in one instruction
	maxCompared  = 1 << 25 // names of the build context with patterns, in the Dockerfile
	spareEntries = 1 << 17 // see MaxCopied
	entriesTimes = 3
)

// MaxCopied returns how many entries all sources of a build may have in all, if its context has that many
// files.
func MaxCopied(files int) int { return spareEntries + entriesTimes*files }

// copyFlags are the flags of COPY and ADD that choose files.
type copyFlags struct {
	exclude []string
	parents bool
}

func (r *reader) copy(ctx context.Context, st *stage, c *instructions.CopyCommand) error {
	flags := copyFlags{c.ExcludePatterns, c.Parents}
	cp := &plan.Copy{Owner: c.Chown, Mode: c.Chmod}
	var err error
	if c.From == "" {
		cp.Sources, err = r.contextSources(c.SourcePaths, flags)
	} else {
		cp.Sources, err = r.stageSources(ctx, st, c, flags)
	}
	if err != nil {
		return err
	}
	return r.copyStep(st, c, c.SourcesAndDest, cp)
}

func (r *reader) addFiles(st *stage, c *instructions.AddCommand) error {
	if err := checkSources(c.SourcePaths); err != nil {
		return err
	}
	var files []string
	var sources []plan.Source
	for _, src := range c.SourcePaths {
		remote, ok, err := remoteSource(src, c)
		if err != nil {
			return fmt.Errorf("%s: %w", src, err)
		}
		if ok {
			sources = append(sources, remote)
		} else {
			files = append(files, src)
		}
	}
	switch {
	case len(sources) == 0 && (c.Checksum != "" || c.KeepGitDir != nil):
		return errors.New("--checksum and --keep-git-dir are for URLs and git repositories")
	case c.Checksum != "" && len(sources)+len(files) > 1:
		return errors.New("--checksum is for one source")
	}
	local, err := r.contextSources(files, copyFlags{exclude: c.ExcludePatterns})
	if err != nil {
		return err
	}
	cp := &plan.Copy{Owner: c.Chown, Mode: c.Chmod, Sources: append(sources, local...),
		Unpack: c.Unpack == nil || *c.Unpack}
	return r.copyStep(st, c, c.SourcesAndDest, cp)
}

// copyStep adds the step of a COPY or ADD.
func (r *reader) copyStep(st *stage, c interface {
	instructions.Command
	fmt.Stringer
}, s instructions.SourcesAndDest, cp *plan.Copy,
) error {
	for _, content := range s.SourceContents {
		cp.Sources = append(cp.Sources, plan.Source{Inline: &plan.Inline{Path: path.Base(content.Path),
			Data: content.Data}})
	}
	if len(cp.Sources) == 0 {
		return errors.New("no file of the context is left to copy")
	}
	if cp.Owner != "" && !ownerForm.MatchString(cp.Owner) {
		return fmt.Errorf("--chown=%s: want USER or USER:GROUP", cp.Owner)
	}
	if cp.Mode != "" && !modeForm.MatchString(cp.Mode) {
		return fmt.Errorf("--chmod=%s: want a mode such as 755 or u=rwX,go=rX", cp.Mode)
	}
	if s.DestPath == "" {
		return errors.New("the destination is empty: an ARG that it uses has no value")
	}
	cp.Target = st.absolute(s.DestPath)
	last := path.Base(s.DestPath)
	if cp.Target != "/" && (strings.HasSuffix(s.DestPath, "/") || last == "." || last == ".." || len(cp.Sources) > 1 ||
		cp.Sources[0].Into != "") {
		cp.Target += "/"
	}
	r.next(st, lineOf(c.Location()), oneLine(c.String()), plan.Step{Copy: cp})
	return nil
}

// otherStage returns the step with the files of another stage, or of an image.
func (r *reader) otherStage(ctx context.Context, st *stage, name string, line int) (int, error) {
	if i, ok := r.find(name, st.index); ok {
		other, err := r.stage(ctx, i)
		if err != nil {
			return 0, err
		}
		return other.step, nil
	}
	if i, ok := r.find(name, len(r.source.stages)); ok {
		return 0, fmt.Errorf("from %s: stage %s does not stand before this one", name, r.title(i))
	}
	step, _, err := r.base(ctx, name, line, "FROM "+name)
	return step, err
}

func (r *reader) stageSources(ctx context.Context, st *stage, c *instructions.CopyCommand,
	flags copyFlags) ([]plan.Source,
	error) {
	if _, err := NewIgnore(flags.exclude); err != nil {
		return nil, fmt.Errorf("--exclude: %w", err)
	}
	step, err := r.otherStage(ctx, st, c.From, lineOf(c.Location()))
	if err != nil {
		return nil, err
	}
	if err := checkSources(c.SourcePaths); err != nil {
		return nil, err
	}
	var sources []plan.Source
	for _, p := range c.SourcePaths {
		src := plan.Source{Step: &step, Path: path.Clean("/" + p), Exclude: flags.exclude}
		if flags.parents {
			if strings.ContainsAny(p, "*?[") {
				return nil, fmt.Errorf("--parents: %s: patterns are not supported together with --from", p)
			}
			_, below, ok := strings.Cut(p, "/./")
			if !ok {
				below = p
			}
			src.Into = path.Dir(path.Clean("/" + below))[1:] + "/"
			src.Path = path.Clean("/" + p)
		}
		sources = append(sources, src)
	}
	return sources, nil
}

// contextSources returns the files of the build context that the sources of an instruction name.
func (r *reader) contextSources(patterns []string, flags copyFlags) ([]plan.Source, error) {
	var exclude *patternmatcher.PatternMatcher
	if err := checkSources(patterns); err != nil {
		return nil, err
	}
	if n := len(flags.exclude); n > maxExcludes {
		return nil, fmt.Errorf("--exclude is there %d times: want at most %d", n, maxExcludes)
	}
	if len(flags.exclude) > 0 {
		var err error
		if exclude, err = patternmatcher.New(flags.exclude); err != nil {
			return nil, fmt.Errorf("--exclude: %w", err)
		}
	}
	var sources []plan.Source
	for _, p := range patterns {
		if err := r.ctx.Err(); err != nil {
			return nil, err
		}
		found, err := r.matches(p, flags.parents)
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			src, err := r.sourceOf(f, p, flags.parents, exclude)
			if err != nil {
				return nil, err
			}
			if src.Dir || len(src.Files) > 0 {
				sources = append(sources, src)
			}
		}
	}
	return sources, nil
}

// checkSources refuses more names than an instruction may have.
func checkSources(names []string) error {
	if len(names) > maxSources {
		return fmt.Errorf("it names %d sources: want at most %d", len(names), maxSources)
	}
	return nil
}

// compare counts comparisons of names of the build context with patterns.
func (r *reader) compare(n int) error {
	if r.compared += n; r.compared > maxCompared {
		return fmt.Errorf("the Dockerfile has too many patterns for a build context of %d files: name directories, "+
			"or leave files out in .dockerignore", len(r.req.Files))
	}
	return nil
}

// root stands for the context itself, which is not in its list of files.
var root = plan.File{Path: ".", Kind: plan.KindDir, Mode: 0o755}

// matches returns the entries of the context that a source names.
func (r *reader) matches(pattern string, deep bool) ([]plan.File, error) {
	clean := path.Clean("/" + pattern)[1:]
	if clean == "" {
		return []plan.File{root}, nil
	}
	var match func(name string) (bool, error)
	switch {
	case !strings.ContainsAny(clean, `*?[\`): // no pattern
		if i, ok := r.search(clean); ok {
			return []plan.File{r.req.Files[i]}, nil
		}
		return nil, noSuchFile(pattern)
	case deep && strings.Contains(clean, "**"):
		m, err := patternmatcher.New([]string{clean})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", pattern, err)
		}
		match = m.MatchesOrParentMatches
	default:
		match = func(name string) (bool, error) {
			if name == clean {
				return true, nil
			}
			return path.Match(clean, name)
		}
	}
	var found []plan.File
	if err := r.compare(len(r.req.Files)); err != nil {
		return nil, err
	}
	for _, f := range r.req.Files {
		ok, err := match(f.Path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", pattern, err)
		}
		if ok {
			found = append(found, f)
		}
	}
	if len(found) == 0 {
		return nil, noSuchFile(pattern)
	}
	return found, nil
}

func noSuchFile(pattern string) error {
	return fmt.Errorf("%s: the build context has no such file (.dockerignore may leave it out)", pattern)
}

// search returns the index of the first entry of the build context that is not before a name.
func (r *reader) search(name string) (i int, found bool) {
	return slices.BinarySearchFunc(r.req.Files, name, func(f plan.File, name string) int {
		return strings.Compare(f.Path, name)
	})
}

// sourceOf returns an entry of the context as a source, with what is below it if it is a directory.
func (r *reader) sourceOf(f plan.File, pattern string, parents bool,
	exclude *patternmatcher.PatternMatcher) (plan.Source,
	error) {
	prefix := "" // of names below the target
	if parents {
		prefix = f.Path
		if pivot, _, ok := strings.Cut(pattern, "/./"); ok {
			prefix = strings.TrimPrefix(prefix, path.Clean("/" + pivot)[1:]+"/")
		}
	}
	var src plan.Source
	keep := func(f plan.File, name, to string) error {
		if exclude != nil {
			if err := r.compare(len(exclude.Patterns())); err != nil {
				return err
			}
			if out, err := exclude.MatchesOrParentMatches(name); err != nil || out {
				return err
			}
		}
		if r.entries++; r.entries > MaxCopied(len(r.req.Files)) {
			return fmt.Errorf("the instructions of the Dockerfile copy the %d files of the build context too many times: "+
				"want at most %d files in all", len(r.req.Files), MaxCopied(len(r.req.Files)))
		}
		f.To = to
		src.Files = append(src.Files, f)
		return nil
	}
	if f.Kind != plan.KindDir {
		to := path.Base(f.Path)
		if parents {
			to, src.Dir = prefix, true
		}
		return src, keep(f, path.Base(f.Path), to)
	}
	src.Dir = true
	if prefix != "" && prefix != "." {
		if err := keep(f, path.Base(f.Path), prefix); err != nil {
			return src, err
		}
	}
	below := f.Path + "/"
	if f.Path == "." {
		below = ""
	}
	first, _ := r.search(below)
	for _, e := range r.req.Files[first:] {
		rel, ok := strings.CutPrefix(e.Path, below)
		if !ok {
			break
		}
		if err := keep(e, rel, path.Join(prefix, rel)); err != nil {
			return src, err
		}
	}
	return src, nil
}
