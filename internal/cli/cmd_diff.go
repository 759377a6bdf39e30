package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// diffForm says in which form differences are printed, and how many are printed at most.
type diffForm struct {
	stat, nameOnly, nameStatus, patch bool
	maxFiles, maxPatch                int
}

func newDiffCmd() *cobra.Command {
	var c common
	var form diffForm
	cmd := &cobra.Command{
		Use:   "diff A [B] [PATH]",
		Short: "Show which files differ between two snapshots or sandboxes",
		Long: "Compares the files of A and B, which are snapshots or sandboxes of one family. With A alone, a sandbox, the\n" +
			"command shows what has changed in it since its snapshot. An absolute PATH selects a file or directory. Files\n" +
			"that a running sandbox has not written to its disk yet count too; /dev/shm and /run do not.\n\n" +
			"'forkd diff ID --patch | git apply' applies the changes of text files in the current directory. --patch omits\n" +
			"changes of .git, because they could let git run programs on this host, and then exits with 1.",
		Args: usageArgs(arguments(1, 3)),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := form.request(args, c.json())
			if err != nil {
				return err
			}
			return c.run(cmd, func(ctx context.Context, cl *client.Client) error {
				if err := resolveSides(ctx, cl, &req.From, &req.To); err != nil {
					return err
				}
				d, err := cl.Diff(ctx, req)
				if err != nil {
					return err
				}
				if c.json() {
					return writeJSON(cmd.OutOrStdout(), d)
				}
				return form.print(cmd, d)
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&form.stat, "stat", false, "print a table of the files, and totals")
	f.BoolVar(&form.nameOnly, "name-only", false, "print only the paths")
	f.BoolVar(&form.nameStatus, "name-status", false, "print A (added), M (changed) or D (deleted) before each path")
	f.BoolVarP(&form.patch, "patch", "p", false, "print only the patch of text files, in the form for git apply")
	f.IntVar(&form.maxFiles, "max-files", 10_000, "maximum number of files to list, up to 20000")
	f.IntVar(&form.maxPatch, "max-patch-bytes", 1<<20, "maximum number of bytes of patches to print, up to 4194304")
	c.complete(cmd, sidesOf)
	c.register(cmd)
	return cmd
}

// sidesOf returns the names of all sandboxes and the tags of all snapshots.
func sidesOf(ctx context.Context, cl *client.Client) ([]string, error) {
	boxes, err := sandboxNames(ctx, cl)
	if err != nil {
		return nil, err
	}
	snapshots, err := tags(ctx, cl)
	return append(boxes, snapshots...), err
}

// request returns the request for a command line.
func (form *diffForm) request(args []string, json bool) (req client.DiffRequest, err error) {
	forms := 0
	for _, set := range []bool{form.stat, form.nameOnly, form.nameStatus, form.patch} {
		if set {
			forms++
		}
	}
	if forms > 1 {
		return req, usageError{errors.New("--stat, --name-only, --name-status and --patch exclude each other")}
	}
	if last := len(args) - 1; last > 0 && strings.HasPrefix(args[last], "/") {
		req.Path, args = args[last], args[:last]
	}
	switch len(args) {
	case 1:
		req.To = args[0]
	case 2:
		req.From, req.To = args[0], args[1]
	default:
		return req, usageError{fmt.Errorf("PATH %q: want an absolute path, such as /srv", args[2])}
	}
	req.MaxFiles, req.MaxPatchBytes = &form.maxFiles, &form.maxPatch
	if !json && (form.nameOnly || form.nameStatus) {
		req.Patch = new(false)
	}
	return req, nil
}

// print prints the differences.
func (form *diffForm) print(cmd *cobra.Command, d client.Diff) (err error) {
	w, all := cmd.OutOrStdout(), true
	if form.patch {
		d.Files, all = withoutGit(cmd.ErrOrStderr(), d.Files)
	}
	switch {
	case form.stat:
		err = printDiffStat(cmd, d)
	case form.nameOnly:
		for _, f := range d.Files {
			printLine(w, quotedPath(f.Path))
		}
	case form.nameStatus:
		for _, f := range d.Files {
			printf(w, "%s\t%s\n", changeMark(f), quotedPath(f.Path))
		}
	case form.patch && !isTerminal(w):
		for _, f := range d.Files {
			if _, err := io.WriteString(w, f.Patch); err != nil {
				return fmt.Errorf("write output: %w", err)
			}
		}
	default:
		for _, f := range d.Files {
			if !form.patch && (f.Patch == "" || f.PatchOmitted != "" || f.Change == "changed" && notContent(f) != "") {
				printf(w, "%s %s%s\n", changeMark(f), quotedPath(f.Path), describeDiff(f))
			}
			printPatch(w, f.Patch)
		}
	}
	if d.Omitted > 0 {
		printf(cmd.ErrOrStderr(), "forkd: %d more files differ: name a PATH, or raise --max-files\n", d.Omitted)
	}
	if d.Skipped > 0 {
		printf(cmd.ErrOrStderr(), "forkd: %d files could not be compared: the guest's file system is damaged, or their paths are longer than 4095 bytes\n",
			d.Skipped)
	}
	limited := slices.ContainsFunc(d.Files, func(f client.DiffFile) bool { return f.PatchOmitted == "limit" })
	if limited && !form.stat {
		printf(cmd.ErrOrStderr(), "forkd: some patches are not shown: name a PATH, or raise --max-patch-bytes\n")
	}
	if form.patch && (!all || limited || d.Omitted+d.Skipped > 0) && err == nil {
		return exitCode(exitError) // the printed part must not be applied as if it were the whole patch
	}
	return err
}

// changeMark returns the letter for the change of a file. git uses the same letters.
func changeMark(f client.DiffFile) string {
	switch f.Change {
	case "added":
		return "A"
	case "deleted":
		return "D"
	}
	return "M"
}

// quotedPath returns a path on one line. Different paths give different lines.
func quotedPath(path string) string {
	if quoted := fmt.Sprintf("%q", path); quoted != `"`+path+`"` {
		return quoted
	}
	return path
}

// describeDiff describes how the type, mode, owner and attributes of a file have changed. If the
// patch lacks the content, describeDiff may add the file's sizes and the reason. The result is
// empty or begins with ": ".
func describeDiff(f client.DiffFile) string {
	var words []string
	for _, n := range []*client.DiffNode{f.New, f.Old} {
		if n != nil && n.Type != "file" && f.Change != "changed" {
			words = append(words, n.Type)
		}
	}
	if changed := notContent(f); changed != "" {
		words = append(words, changed)
	}
	unseen := f.Content && (f.Patch == "" || f.PatchOmitted != "")
	if unseen && f.Change == "changed" && f.Old != nil && f.New != nil && f.Old.Type == f.New.Type {
		words = append(words, fmt.Sprintf("%d → %d bytes", f.Old.Size, f.New.Size))
	}
	if f.PatchOmitted != "" {
		words = append(words, map[string]string{"binary": "binary", "large": "too large for a patch",
			"limit": "patch not shown"}[f.PatchOmitted])
	}
	if len(words) == 0 {
		return ""
	}
	return ": " + strings.Join(words, ", ")
}

// notContent describes how the type, mode, owner and attributes of a changed file differ.
func notContent(f client.DiffFile) string {
	if f.Old == nil || f.New == nil {
		return ""
	}
	var words []string
	if f.Old.Type != f.New.Type {
		words = append(words, f.Old.Type+" → "+f.New.Type)
	}
	if f.Old.Mode != f.New.Mode {
		words = append(words, fmt.Sprintf("mode %04o → %04o", f.Old.Mode, f.New.Mode))
	}
	if f.Old.UID != f.New.UID || f.Old.GID != f.New.GID {
		words = append(words, fmt.Sprintf("owner %d:%d → %d:%d", f.Old.UID, f.Old.GID, f.New.UID, f.New.GID))
	}
	if len(f.Xattrs) > 0 {
		words = append(words, "attributes "+strings.Join(f.Xattrs, " "))
	}
	return strings.Join(words, ", ")
}

// patchMarks are the prefixes that lines of a patch can have.
var patchMarks = []string{" ", "+", "-", "@@ ", `\ `, "diff --git ", "new file mode ", "deleted file mode ",
	"old mode ",
	"new mode ", "Binary files "}

// printPatch prints a patch for people. It marks lines that cannot be part of a patch, so that such
// a line does not look like a message of this program.
func printPatch(w io.Writer, patch string) {
	for line := range strings.Lines(patch) {
		line = strings.TrimSuffix(line, "\n")
		colour := ""
		switch {
		case strings.HasPrefix(line, "+"):
			colour = green
		case strings.HasPrefix(line, "-"):
			colour = red
		case !slices.ContainsFunc(patchMarks, func(m string) bool { return strings.HasPrefix(line, m) }):
			line = "? " + line
		}
		text := strings.TrimSuffix(printableText(line), "\n")
		if colour != "" {
			printLine(w, coloured(w, colour, text))
		} else {
			printLine(w, styled(text))
		}
	}
}

// printDiffStat prints a table of the changed files, then the total numbers of files and lines.
func printDiffStat(cmd *cobra.Command, d client.Diff) error {
	if len(d.Files) > 0 {
		err := table(cmd, "CHANGE\tPATH\tLINES\tDETAIL", func(row func(...any)) {
			for _, f := range d.Files {
				lines := ""
				if f.LinesAdded+f.LinesDeleted > 0 {
					lines = fmt.Sprintf("+%d -%d", f.LinesAdded, f.LinesDeleted)
				}
				row(f.Change, quotedPath(f.Path), lines, strings.TrimPrefix(describeDiff(f), ": "))
			}
		})
		if err != nil {
			return err
		}
	}
	printf(cmd.OutOrStdout(), "%d added, %d changed, %d deleted; %s added, %d deleted", d.Added, d.Changed, d.Deleted,
		count(int(d.LinesAdded), "line", "lines"), d.LinesDeleted)
	if d.MemoryBytes != nil {
		printf(cmd.OutOrStdout(), "; %.1f MiB of memory differ", float64(*d.MemoryBytes)/(1<<20))
	}
	printLine(cmd.OutOrStdout())
	return nil
}
