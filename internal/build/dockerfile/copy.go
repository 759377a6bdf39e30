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

	"github.com/forkd/forkd/internal/build/plan"
)

// Valid values of --chown and --chmod. They become arguments of programs in the guest.
var (
	ownerForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$`)
	modeForm  = regexp.MustCompile(`^([0-7]{3,4}|[ugoa]*[-+=][rwxXst]*(,[ugoa]*[-+=][rwxXst]*)*)$`)
)

// Bounds on sources of files.
const (
	maxSources   = 1000     // names in one COPY or ADD
	maxNames     = 100_000  // names in all COPY and ADD instructions of the Dockerfile
	maxExcludes  = 100      // patterns of --exclude in one instruction
	maxExclude   = 4 << 10  // bytes of the patterns of --exclude in one instruction
	maxRepeated  = 16 << 20 // bytes of the patterns of --exclude, counted for each source that keeps them
	maxCompared  = 1 << 25  // comparisons of names with patterns in the Dockerfile
	spareEntries = 1 << 17  // see MaxCopied
	entriesTimes = 3
)

// MaxCopied returns the maximum number of entries in all sources of a build together, given the
// number of files in the build context.
func MaxCopied(files int) int { return spareEntries + entriesTimes*files }

// copyFlags holds the flags of COPY and ADD that change which files are copied, and under which
// names.
type copyFlags struct {
	exclude []string
	parents bool
}

func (r *reader) copy(ctx context.Context, st *stage, c *instructions.CopyCommand) error {
	flags := copyFlags{c.ExcludePatterns, c.Parents}
	cp := &plan.Copy{Owner: c.Chown, Mode: c.Chmod}
	err := r.checkSources(c.SourcePaths, c.ExcludePatterns)
	if err != nil {
		return err
	}
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
	if err := r.checkSources(c.SourcePaths, c.ExcludePatterns); err != nil {
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

// otherStage returns the index of the step whose snapshot contains the files of the stage or image
// with the given name.
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
	flags copyFlags,
) ([]plan.Source, error) {
	if _, err := NewIgnore(flags.exclude); err != nil {
		return nil, fmt.Errorf("--exclude: %w", err)
	}
	step, err := r.otherStage(ctx, st, c.From, lineOf(c.Location()))
	if err != nil {
		return nil, err
	}
	if r.repeated += len(c.SourcePaths) * bytesOf(flags.exclude); r.repeated > maxRepeated {
		return nil, fmt.Errorf("the sources of stages, with the patterns of --exclude for each, have more than %d MiB in the "+
			"Dockerfile: want fewer sources or patterns", maxRepeated>>20)
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

// contextSources converts the names in an instruction to sources that contain the matching files of
// the build context.
func (r *reader) contextSources(patterns []string, flags copyFlags) ([]plan.Source, error) {
	var leave *exclude
	if len(flags.exclude) > 0 {
		patterns, err := NewIgnore(flags.exclude)
		if err != nil {
			return nil, fmt.Errorf("--exclude: %w", err)
		}
		leave = &exclude{patterns, len(flags.exclude), patterns.Size()}
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
		for _, i := range found {
			src, err := r.sourceOf(i, p, flags.parents, leave)
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

// exclude holds the --exclude patterns of one instruction.
type exclude struct {
	Ignore
	patterns, size int
}

// checkSources returns an error if an instruction, or the Dockerfile so far, has too many names or
// patterns.
func (r *reader) checkSources(names, exclude []string) error {
	if len(names) > maxSources {
		return fmt.Errorf("it names %d sources: want at most %d", len(names), maxSources)
	}
	if r.names += len(names); r.names > maxNames {
		return fmt.Errorf("the instructions of the Dockerfile name more than %d sources: name directories", maxNames)
	}
	if n := len(exclude); n > maxExcludes {
		return fmt.Errorf("--exclude is there %d times: want at most %d", n, maxExcludes)
	}
	if n := bytesOf(exclude); n > maxExclude {
		return fmt.Errorf("--exclude: the patterns have %d bytes: want at most %d", n, maxExclude)
	}
	return nil
}

func bytesOf(texts []string) (n int) {
	for _, text := range texts {
		n += len(text)
	}
	return n
}

// patternUnit is the size of a pattern, in bytes or matching steps, that counts as one comparison.
const patternUnit = 64

// compare counts the comparisons of the given number of names with the given number of patterns.
// These patterns have the given total size; see patternUnit.
func (r *reader) compare(names, patterns, size int) error {
	if r.compared += names * (patterns + size/patternUnit); r.compared > maxCompared {
		return fmt.Errorf("the Dockerfile has too many patterns for a build context of %d files: name directories, "+
			"or leave files out in .dockerignore", len(r.req.Files))
	}
	return nil
}

// whole is the index that stands for the build context itself. Other indexes stand for entries of
// the context.
const whole = -1

// matches returns the indexes of the entries of the build context that a name in an instruction
// matches.
func (r *reader) matches(pattern string, deep bool) ([]int, error) {
	clean := path.Clean("/" + pattern)[1:]
	if clean == "" {
		return []int{whole}, nil
	}
	if len(clean) > MaxPath {
		return nil, fmt.Errorf("%.40s: the source has %d bytes: want at most %d", clean, len(clean), MaxPath)
	}
	var match func(name string) bool
	size := len(clean)
	switch {
	case !strings.ContainsAny(clean, `*?[\`): // a plain name
		if i, ok := r.search(clean); ok {
			return []int{i}, nil
		}
		return nil, noSuchFile(pattern)
	case deep && strings.Contains(clean, "**"):
		one, err := NewIgnore([]string{clean})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", pattern, err)
		}
		match, size = one.Out, one.Size()
	default:
		if _, err := path.Match(clean, ""); err != nil {
			return nil, fmt.Errorf("%s: %w", pattern, err)
		}
		match = func(name string) bool {
			ok, _ := path.Match(clean, name) // never fails: the pattern was checked above
			return ok || name == clean
		}
	}
	var found []int
	if err := r.compare(len(r.req.Files), 1, size); err != nil {
		return nil, err
	}
	for i := range r.req.Files {
		if match(r.req.Files[i].Path) {
			found = append(found, i)
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

// search returns the index of a name in the build context. If the name is missing, it returns the
// index of the first entry that sorts after the name.
func (r *reader) search(name string) (i int, found bool) {
	return slices.BinarySearchFunc(r.req.Files, name, func(f plan.File, name string) int {
		return strings.Compare(f.Path, name)
	})
}

// sourceOf returns the source for an entry of the build context. A directory is copied with its
// content.
func (r *reader) sourceOf(i int, pattern string, parents bool, leave *exclude) (src plan.Source, err error) {
	if i == whole {
		src.Dir = true
		src.Files, err = r.list(i, i, r.req.Files, leave)
		return src, err
	}
	f := &r.req.Files[i]
	isDir, own := f.Kind == plan.KindDir, i+1 // the source's own entries have the indexes from i to own-1
	var below []plan.File
	src.Dir, src.Strip = isDir || parents, strings.LastIndexByte(f.Path, '/')+1
	if isDir {
		first, _ := r.search(f.Path + "/")
		end, _ := r.search(f.Path + "0") // '0' is the byte after '/'
		below = r.req.Files[first:end]
		src.Strip = len(f.Path) + 1
	}
	switch pivot, _, ok := strings.Cut(pattern, "/./"); {
	case !parents && isDir:
		own = i // no entry for the directory itself: its content is copied into the target
	case !parents:
	case ok && strings.HasPrefix(f.Path, path.Clean("/" + pivot)[1:]+"/"):
		src.Strip = len(path.Clean("/" + pivot))
	default:
		src.Strip = 0
	}
	src.Files, err = r.list(i, own, below, leave)
	return src, err
}

// list returns the files of a source: its own entries, whose indexes are i to own-1, and the files
// below these entries. If these files are adjacent in the context's list, the result is a part of
// that list.
func (r *reader) list(i, own int, below []plan.File, leave *exclude) ([]plan.File, error) {
	n := own - i + len(below)
	if r.entries += max(1, n); r.entries > MaxCopied(len(r.req.Files)) {
		return nil, fmt.Errorf("the instructions of the Dockerfile copy the %d files of the build context too many times: "+
			"want at most %d files in all", len(r.req.Files), MaxCopied(len(r.req.Files)))
	}
	if leave != nil {
		return r.without(leave, i, own, below)
	}
	switch {
	case own == i:
		return below, nil
	case len(below) == 0:
		return r.req.Files[i:own], nil
	case &below[0] == &r.req.Files[own:][0]:
		return r.req.Files[i : i+n], nil
	}
	return slices.Concat(r.req.Files[i:own], below), nil
}

// without(…) returns the files of a source that are not excluded. These are the source's own
// entries and the files below them, except for the files that match a pattern in leave. A pattern
// is compared with names relative to the source, and with the name of the source itself.
func (r *reader) without(leave *exclude, i, own int, below []plan.File) (kept []plan.File, err error) {
	prefix := 0
	if i != whole && r.req.Files[i].Kind == plan.KindDir {
		prefix = len(r.req.Files[i].Path) + 1
	}
	keep := func(f *plan.File, name string) error {
		if err := r.compare(1, leave.patterns, leave.size); err != nil {
			return err
		}
		if !leave.Out(name) {
			kept = append(kept, *f)
		}
		return nil
	}
	for ; i < own; i++ {
		if err := keep(&r.req.Files[i], path.Base(r.req.Files[i].Path)); err != nil {
			return nil, err
		}
	}
	for n := range below {
		if err := keep(&below[n], below[n].Path[prefix:]); err != nil {
			return nil, err
		}
	}
	return kept, nil
}
