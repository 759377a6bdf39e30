package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/treetar"
)

// exportTo says where an export goes. One of the fields tar, patch and git is set.
type exportTo struct {
	tar, patch      string // a file, or - for standard output
	git             string // a directory in a git repository
	branch, message string
}

func newExportCmd() *cobra.Command {
	var c common
	var to exportTo
	var partial bool
	cmd := &cobra.Command{
		Use:   "export A..B [PATH]",
		Short: "Save the files that differ between two snapshots or sandboxes as an archive, a patch or a git branch",
		Long: "Saves the files of B that differ from those of A, which 'forkd diff A B' lists. With B alone, a sandbox, A is\n" +
			"the snapshot that B runs from. 'A B' is the same as A..B. An absolute PATH selects a file or directory.\n\n" +
			"--tar writes a tar archive with modes, owners, links, holes and extended attributes. As in a layer of a container\n" +
			"image, an empty file .wh.NAME stands for a deleted file NAME. --patch writes what 'forkd diff --patch' prints.\n" +
			"--tar - and --git check the whole archive in a temporary file first; TMPDIR names its directory.\n" +
			"--git makes a new branch with one commit on top of HEAD. The directory PATH becomes the root of the repository.\n" +
			"The work tree, the index and HEAD stay as they are. Paths with a part named .git, and hooks\n" +
			"below core.hooksPath of the repository, are left out.",
		Example: "  forkd export before..ID /srv/app --git . --branch attempt-2\n  forkd export ID --tar changes.tar\n" +
			"  forkd export ID1..ID2 /srv --patch - | git apply -p2",
		Args: usageArgs(arguments(1, 3)),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := to.request(args)
			if err != nil {
				return err
			}
			req.Partial = partial
			if c.streams = to.tar == "-" || to.patch == "-"; c.streams && c.json() {
				return errNoJSON
			}
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				if err := resolveSides(ctx, cl, &req.From, &req.To); err != nil {
					return err
				}
				return to.save(ctx, cmd, &c, cl, req)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&to.tar, "tar", "", "write a tar archive to this file; - for standard output")
	f.StringVar(&to.patch, "patch", "", "write the patch of text files to this file; - for standard output")
	f.StringVar(&to.git, "git", "", "commit to the git repository of this directory")
	f.StringVar(&to.branch, "branch", "", "with --git, the new branch (default forkd/B)")
	f.StringVarP(&to.message, "message", "m", "", "with --git, the message of the commit")
	f.BoolVar(&partial, "partial", false, "omit files that an archive cannot contain, such as damaged ones")
	c.complete(cmd, sidesOf)
	c.register(cmd)
	return cmd
}

// request returns the request for a command line.
func (to *exportTo) request(args []string) (req client.ExportRequest, err error) {
	targets := 0
	for _, t := range []string{to.tar, to.patch, to.git} {
		if t != "" {
			targets++
		}
	}
	switch {
	case targets != 1:
		return req, usageError{errors.New("want one of --tar FILE, --patch FILE and --git DIR")}
	case to.git == "" && (to.branch != "" || to.message != ""):
		return req, usageError{errors.New("--branch and --message need --git")}
	}
	if last := len(args) - 1; last > 0 && strings.HasPrefix(args[last], "/") {
		req.Path, args = args[last], args[:last]
	}
	switch from, b, isRange := strings.Cut(args[0], ".."); {
	case len(args) == 1 && isRange && from != "" && b != "":
		req.From, req.To = from, b
	case len(args) == 1 && isRange:
		return req, usageError{fmt.Errorf("%q: want A..B, or B alone", args[0])}
	case len(args) == 1:
		req.To = args[0]
	case len(args) == 2:
		req.From, req.To = args[0], args[1]
	default:
		return req, usageError{fmt.Errorf("PATH %q: want an absolute path, such as /srv", args[2])}
	}
	if to.git != "" && req.Path == "" {
		return req, usageError{errors.New("--git needs PATH, the directory that becomes the root of the repository")}
	}
	return req, nil
}

// save makes the export.
func (to *exportTo) save(ctx context.Context, cmd *cobra.Command, c *common, cl *client.Client,
	req client.ExportRequest) error {
	done := func(answer any, text string) error {
		if c.json() {
			return writeJSON(cmd.OutOrStdout(), answer)
		}
		printLine(cmd.OutOrStdout(), text)
		return nil
	}
	switch {
	case to.git != "":
		made, err := to.commit(ctx, cmd.ErrOrStderr(), cl, req)
		if err != nil {
			return err
		}
		return done(made, fmt.Sprintf("branch %s has commit %s: %s written, %d deleted", made.Branch, made.Commit,
			count(made.Written, "file", "files"), made.Deleted))
	case to.patch != "":
		if err := to.savePatch(ctx, cmd, cl, req); err != nil || to.patch == "-" {
			return err
		}
		return done(map[string]any{"patch": to.patch}, to.patch)
	case to.tar == "-":
		return withTar(ctx, cl, req, treetar.MaxBytes, anyEntry, func(archive io.Reader) error {
			if _, err := io.Copy(cmd.OutOrStdout(), archive); err != nil {
				return fmt.Errorf("write output: %w", err)
			}
			return nil
		})
	}
	if err := intoFile(to.tar, func(w io.Writer) error {
		return fetchTar(ctx, cl, req, w, treetar.MaxBytes, anyEntry)
	}); err != nil {
		return err
	}
	return done(map[string]any{"tar": to.tar}, to.tar)
}

// anyEntry accepts each entry of an archive.
func anyEntry(exportEntry) error { return nil }

// fetchTar fetches an archive, checks it, and writes it to w. It calls check(e) for each entry e.
// It fails if the archive has more than the given number of bytes. After an error, w may contain a
// part of the archive. This part must not be used.
func fetchTar(ctx context.Context, cl *client.Client, req client.ExportRequest, w io.Writer, most int64,
	check func(exportEntry) error) error {
	archive, err := cl.Export(ctx, req)
	if err != nil {
		return err
	}
	defer archive.Close()
	return readExport(io.TeeReader(archive, w), most, check)
}

// withTar fetches an archive into an unlinked temporary file, checks it as fetchTar does, and calls
// use(archive).
func withTar(ctx context.Context, cl *client.Client, req client.ExportRequest, most int64,
	check func(exportEntry) error, use func(io.Reader) error) error {
	f, err := os.CreateTemp("", "forkd-export")
	if err != nil {
		return fmt.Errorf("make a temporary file: %w: set TMPDIR to another directory", err)
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return err
	}
	if err := fetchTar(ctx, cl, req, f, most, check); err != nil {
		return noSpaceError(err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return use(f)
}

// noSpaceError names the fix if err means that the directory of temporary files is full.
func noSpaceError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%s is full: set TMPDIR to a directory with more space, or name a PATH with fewer files: %w",
			os.TempDir(), err)
	}
	return err
}

// savePatch writes the patch of the text files.
func (to *exportTo) savePatch(ctx context.Context, cmd *cobra.Command, cl *client.Client,
	req client.ExportRequest) error {
	form := diffForm{patch: true, maxFiles: 20_000, maxPatch: 4 << 20}
	d, err := cl.Diff(ctx, client.DiffRequest{From: req.From, To: req.To, Path: req.Path, MaxFiles: &form.maxFiles,
		MaxPatchBytes: &form.maxPatch})
	if err != nil {
		return err
	}
	if to.patch == "-" {
		return form.print(cmd, d)
	}
	return intoFile(to.patch, func(w io.Writer) error {
		stdout := cmd.OutOrStdout()
		defer cmd.SetOut(stdout)
		cmd.SetOut(w)
		if err := form.print(cmd, d); err != nil && (!req.Partial || !errors.Is(err, exitCode(exitError))) {
			return err
		}
		return nil
	})
}

// intoFile makes or replaces a file, whose content fill(w) writes. If fill returns an error, the
// file is unchanged.
func intoFile(path string, fill func(io.Writer) error) error {
	if s, err := os.Stat(path); err == nil && !s.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file: name another one, or - for standard output", path)
	}
	return atomicfile.Fill(path, func(tmp string) error {
		f, err := createNew(tmp, 0o600)
		if err != nil {
			return err
		}
		return errors.Join(fill(f), f.Close())
	})
}

// createNew creates a file with the given mode. It fails if path exists, because in a directory
// such as /tmp another user may have made a link or a file at path.
func createNew(path string, mode os.FileMode) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
}
