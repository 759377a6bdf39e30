package cli

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/forkd/forkd/client"
)

// Bounds of a commit.
const (
	maxCommitted     = 4 << 30              // bytes of the content of its files
	maxCommitArchive = maxCommitted + 1<<30 // bytes of its archive, including headers and omitted files
)

// committed is the result of an export to git.
type committed struct {
	Branch  string `json:"branch"`
	Commit  string `json:"commit"`
	Written int    `json:"written"` // number of files that were added or changed
	Deleted int    `json:"deleted"` // number of files and directories that were deleted
	LeftOut int    `json:"left_out"`
}

// commit makes a branch with the exported files in a repository. It uses only commands of git that
// write objects and the new branch. The branch is made at the end, so after an error there is no
// new branch.
func (to *exportTo) commit(ctx context.Context, notes io.Writer, cl *client.Client, req client.ExportRequest) (
	made committed, err error) {
	if made.Branch = to.branch; made.Branch == "" {
		made.Branch = "forkd/" + req.To
	}
	repo := repository{ctx: ctx, dir: to.git}
	head, err := repo.checkBranch(made.Branch)
	if err != nil {
		return made, err
	}
	hooks, err := repo.hookDirs()
	if err != nil {
		return made, err
	}
	who, err := repo.git("var", "GIT_COMMITTER_IDENT")
	if err != nil {
		return made, err
	}
	message := to.message
	if message == "" {
		message = fmt.Sprintf("Changes of %s in %s", req.To, path.Clean(req.Path))
		if req.From != "" {
			message += " since " + req.From
		}
	}
	root := strings.Trim(path.Clean(req.Path), "/")
	imports := commitStream{root: root, hooks: hooks, notes: notes, marks: make(map[string]blob)}
	// The trial comes before the content is written to the temporary file, so that a commit that is
	// too large is detected first.
	trial := commitStream{root: root, hooks: hooks, notes: io.Discard, marks: make(map[string]blob),
		w: bufio.NewWriter(io.Discard)}
	err = withTar(ctx, cl, req, maxCommitArchive, trial.add, func(archive io.Reader) error {
		return repo.fastImport(func(w *bufio.Writer) error {
			trial, imports.w = commitStream{}, w // frees the memory of the trial
			if err := readExport(archive, maxCommitArchive, imports.add); err != nil {
				return err
			}
			return imports.end("refs/heads/"+made.Branch, who, message, head)
		})
	})
	made.Written, made.Deleted, made.LeftOut = imports.written, imports.deleted, imports.leftOut
	if err != nil {
		return made, err
	}
	made.Commit, err = repo.git("rev-parse", "--verify", "refs/heads/"+made.Branch)
	return made, err
}

// repository is a git repository of this host.
type repository struct {
	ctx context.Context
	dir string
}

// command returns a command of git. Variables that would name another repository have no effect.
func (r *repository) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(r.ctx, "git", append([]string{"-C", r.dir}, args...)...)
	for _, v := range os.Environ() {
		switch name, _, _ := strings.Cut(v, "="); name {
		case "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_NAMESPACE":
		default:
			cmd.Env = append(cmd.Env, v)
		}
	}
	return cmd
}

// git runs a command and returns the line that it prints.
func (r *repository) git(args ...string) (string, error) {
	out, err := r.command(args...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(exit.Stderr))
	}
	return strings.TrimSpace(string(out)), err
}

// checkBranch returns the commit of HEAD, or "" if HEAD has no commit yet. It returns an error if
// the branch exists, if its name is not valid, or if HEAD is this branch and has no commit yet.
func (r *repository) checkBranch(branch string) (head string, err error) {
	if _, err := r.git("rev-parse", "--git-dir"); err != nil {
		return "", err
	}
	ref := "refs/heads/" + branch
	if _, err := r.git("check-ref-format", ref); err != nil || strings.HasPrefix(branch, "-") {
		return "", usageError{fmt.Errorf("--branch %q: git does not allow this name", branch)}
	}
	if _, err := r.git("rev-parse", "--verify", "--quiet", ref); err == nil {
		return "", fmt.Errorf("the branch %s exists: name another one with --branch", branch)
	}
	if head, err = r.git("rev-parse", "--verify", "--quiet", "HEAD^{commit}"); err == nil {
		return head, nil
	}
	if current, err := r.git("symbolic-ref", "HEAD"); err != nil || current == ref {
		return "", fmt.Errorf("HEAD is the branch %s, which has no commit yet: name another one with --branch", branch)
	}
	return "", nil
}

// fastImport runs git fast-import, and calls fill(w) to write the command's input.
func (r *repository) fastImport(fill func(*bufio.Writer) error) error {
	cmd := r.command("fast-import", "--quiet", "--done") // with --done, incomplete input makes no branch
	var errs bytes.Buffer
	cmd.Stderr = &errs
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	w := bufio.NewWriterSize(in, 256<<10)
	err = fill(w)
	if err == nil {
		err = w.Flush()
	}
	if err != nil && !errors.Is(err, syscall.EPIPE) {
		_ = cmd.Process.Kill() // if the input just ended, git would write a report of a crash into the repository
		_ = cmd.Wait()
		return err
	}
	in.Close()
	ended := cmd.Wait()
	if ended != nil {
		return fmt.Errorf("git fast-import: %w: %.2000s", ended, bytes.TrimSpace(errs.Bytes()))
	}
	return err
}

// blob is the content of a file in the input of git fast-import.
type blob struct {
	mark int
	mode string
}

// commitStream writes the input of git fast-import. The content of files comes first, and the commit at the
// end. So a failure leaves only a temporary file, which git gc removes later, and no branch.
type commitStream struct {
	w     *bufio.Writer
	notes io.Writer
	root  string          // path of the guest that becomes the root of the repository
	hooks []string        // directories of the repository's hooks in the work tree
	marks map[string]blob // marks of files, by path in the archive; needed for hard links
	last  int             // last mark
	bytes int64

	changes                   bytes.Buffer // commands of the commit
	written, deleted, leftOut int
}

// add adds an entry of the archive.
func (s *commitStream) add(e exportEntry) error {
	at, isBelow := strings.CutPrefix(e.path, s.root+"/")
	if s.root == "" {
		at, isBelow = e.path, e.path != "."
	}
	switch {
	case !isBelow && e.Typeflag == tar.TypeDir && !e.deleted:
		return nil // the entry is PATH itself
	case !isBelow:
		return fmt.Errorf("PATH /%s is not a directory on both sides: name a directory", s.root)
	case isGitPath(at):
		return s.leave(e, "git does not allow its name")
	case s.isHook(at, e):
		return s.leave(e, "git could run it as a hook, because of core.hooksPath")
	case e.deleted:
		s.deleted++
		s.changes.WriteString("D " + gitQuoted(at) + "\n")
		return nil
	}
	var b blob
	switch e.Typeflag {
	case tar.TypeDir:
		return nil // git has no directories without files
	case tar.TypeReg:
		b.mode = "100644"
		if e.Mode&0o100 != 0 {
			b.mode = "100755"
		}
		if err := s.blob(&b, e.content, e.Size); err != nil {
			return err
		}
	case tar.TypeSymlink:
		b.mode = "120000"
		if err := s.blob(&b, strings.NewReader(e.Linkname), int64(len(e.Linkname))); err != nil {
			return err
		}
	case tar.TypeLink:
		var ok bool
		if b, ok = s.marks[e.Linkname]; !ok {
			return s.leave(e, "it is a hard link to a file that was left out")
		}
	default:
		return s.leave(e, "it is a device or a pipe")
	}
	if s.marks[e.path] = b; b.mode == "120000" {
		delete(s.marks, e.path) // a hard link to a symbolic link would have the wrong mode
	}
	s.written++
	s.changes.WriteString(fmt.Sprintf("M %s :%d %s\n", b.mode, b.mark, gitQuoted(at)))
	return nil
}

// leave omits an entry from the commit and reports why.
func (s *commitStream) leave(e exportEntry, why string) error {
	const most = 10
	switch s.leftOut++; {
	case s.leftOut <= most:
		printf(s.notes, "forkd: %s is left out: %s\n", quotedPath("/"+e.path), why)
	case s.leftOut == most+1:
		printf(s.notes, "forkd: more files are left out\n")
	}
	return nil
}

// blob writes the content of a file, and sets the mark of b.
func (s *commitStream) blob(b *blob, content io.Reader, size int64) error {
	if size > maxCommitted-s.bytes { // a hole may have any size
		return fmt.Errorf("the files have more than %d GiB: name a PATH with fewer of them", maxCommitted>>30)
	}
	s.bytes += size
	s.last++
	b.mark = s.last
	if _, err := s.w.WriteString(fmt.Sprintf("blob\nmark :%d\ndata %d\n", b.mark, size)); err != nil {
		return err
	}
	if _, err := io.CopyN(s.w, content, size); err != nil {
		return err
	}
	return s.w.WriteByte('\n')
}

// end writes the commit. If from is empty, the commit has no parent.
func (s *commitStream) end(ref, who, message, from string) error {
	if s.written+s.deleted == 0 {
		return errors.New("no file differs: there is nothing to commit")
	}
	head := fmt.Sprintf("commit %s\ncommitter %s\ndata %d\n%s\n\n", ref, who, len(message)+1, message)
	if from != "" {
		head += "from " + from + "\n"
	}
	if _, err := s.w.WriteString(head); err != nil {
		return err
	}
	if _, err := s.changes.WriteTo(s.w); err != nil {
		return err
	}
	_, err := s.w.WriteString("done\n")
	return err
}

// isHook reports whether git may run the file of an entry as a hook after a checkout, or may find a
// hook through that file. The entry has the given path in the repository.
func (s *commitStream) isHook(at string, e exportEntry) bool {
	parts := strings.Split(at, "/")
	for _, dir := range s.hooks {
		same, want := 0, strings.Split(dir, "/")
		for same < min(len(parts), len(want)) && isSameName(parts[same], want[same]) {
			same++
		}
		// A file or link that replaces a directory above the hooks could lead to other hooks.
		if same == len(want) || same == len(parts) && (e.deleted || e.Typeflag != tar.TypeDir) {
			return true
		}
	}
	return false
}

// hookDirs returns the directories of the work tree from which git runs hooks. The results are
// relative to the root of the work tree.
func (r *repository) hookDirs() (dirs []string, err error) {
	dir, err := r.git("config", "--type=path", "--get", "core.hooksPath")
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 1 {
		return nil, nil // core.hooksPath is not set
	}
	if err != nil || dir == "" { // if the setting is empty, git looks for hooks in the root directory of the host
		return nil, err
	}
	top, err := r.git("rev-parse", "--show-toplevel")
	if err != nil { // a bare repository: a relative path is relative to the root of each of its work trees
		top = "/"
	}
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(top, dir)
	}
	pairs := [][2]string{{top, dir}}
	if realTop, err := filepath.EvalSymlinks(top); err == nil {
		if realDir, err := filepath.EvalSymlinks(dir); err == nil { // dir may not exist yet
			pairs = append(pairs, [2]string{realTop, realDir})
		}
	}
	for _, pair := range pairs {
		below, err := filepath.Rel(pair[0], pair[1])
		switch below = filepath.ToSlash(below); {
		case err != nil || below == ".." || strings.HasPrefix(below, "../"):
			continue
		case below == ".":
			return nil, errors.New("core.hooksPath of the repository is its work tree, so any file may be a hook: change it")
		}
		// The hooks that husky writes to such a directory run the files in its parent.
		if up := path.Dir(below); path.Base(below) == "_" && up != "." {
			below = up
		}
		dirs = append(dirs, below)
	}
	return dirs, nil
}

// isGitPath reports whether git, or a file system, may treat a part of a path as .git.
func isGitPath(at string) bool { return gitOf(at) != "" }

// gitQuoted returns a path as a C string literal, which git fast-import reads.
func gitQuoted(at string) string {
	var p strings.Builder
	p.WriteByte('"')
	for _, c := range []byte(at) {
		if c == '"' || c == '\\' || c < ' ' || c >= 0x7f {
			p.WriteString(fmt.Sprintf(`\%03o`, c))
			continue
		}
		p.WriteByte(c)
	}
	p.WriteByte('"')
	return p.String()
}
