package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// sandboxName matches the part before the colon of ID:PATH. This part is an id, the beginning of an
// id, or the name of a workspace.
var sandboxName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// remotePath splits "ID:/path". If the part before the colon is a sandbox id, remotePath also
// splits an argument with a relative path. The daemon then refuses this path and says why. If the
// part before the colon is something else, an argument with a relative path is a local file whose
// name has a colon.
func remotePath(arg string) (id, path string, ok bool) {
	id, path, ok = strings.Cut(arg, ":")
	switch {
	case !ok || !sandboxName.MatchString(id):
		return "", "", false
	case strings.HasPrefix(id, idPrefix):
		return id, path, path != ""
	}
	return id, path, strings.HasPrefix(path, "/")
}

// transfer is one copy between this host and a sandbox.
type transfer struct {
	cl     *client.Client
	id     string
	remote string // path in the sandbox
	local  string // local path; "-" for standard input or output
}

func newCpCmd() *cobra.Command {
	var c common
	var recursive bool
	cmd := &cobra.Command{
		Use:   "cp FILE ID:PATH | ID:PATH FILE",
		Short: "Copy a file or a directory into or out of a sandbox",
		Long: "FILE may be - for standard input or output. If the target ends in / or is an existing directory of this\n" +
			"host, the copy goes into that directory, under its old name. With -r, the contents of the directory DIR are\n" +
			"copied: 'cp -r DIR ID:/x' creates /x, or adds to it. With -r, - is a tar archive. Devices, sockets and pipes are\n" +
			"omitted, and files copied into a sandbox belong to its default user.",
		Example: "  forkd cp data.csv ID:/root/\n  forkd cp -r src ID:/root/src\n  forkd cp ID:/etc/os-release -\n" +
			"  forkd cp -r ID:/srv - | gzip > srv.tar.gz",
		Args: usageArgs(arguments(2, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			fromID, fromPath, out := remotePath(args[0])
			toID, toPath, in := remotePath(args[1])
			if in == out {
				return usageError{errors.New("one of the two must be ID:PATH, the other a local file")}
			}
			t := transfer{id: fromID, remote: fromPath, local: args[1]}
			if in {
				t = transfer{id: toID, remote: toPath, local: args[0]}
			}
			if t.local == "-" && !recursive && in && strings.HasSuffix(t.remote, "/") {
				return usageError{errors.New("-: standard input has no name: end ID:PATH with a file name, or give -r for an archive")}
			}
			if c.streams = t.local == "-"; c.streams && out && c.json() {
				return errNoJSON
			}
			return c.run(cmd, func(ctx context.Context, cl *client.Client) (err error) {
				t.cl = cl
				if t.id, err = sandboxID(ctx, cl, t.id); err != nil {
					return err
				}
				switch {
				case in && recursive:
					err = t.treeIn(ctx, cmd.InOrStdin())
				case in:
					err = t.fileIn(ctx, cmd.InOrStdin())
				case recursive:
					err = t.treeOut(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr())
				default:
					err = t.fileOut(ctx, cmd.OutOrStdout())
				}
				if err != nil || !c.json() {
					return err
				}
				return writeJSON(cmd.OutOrStdout(), map[string]any{"id": t.id, "path": t.remote, "local": t.local, "in": in})
			})
		},
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "copy a directory with everything in it")
	c.completePath(cmd)
	c.register(cmd)
	return cmd
}

// inTarget returns the path in the sandbox to which a local file or directory is copied.
func (t transfer) inTarget() (string, error) {
	if !strings.HasSuffix(t.remote, "/") {
		return t.remote, nil
	}
	abs, err := filepath.Abs(t.local) // resolves . and .. to names
	return path.Join(t.remote, filepath.Base(abs)), err
}

// outTarget returns the local path to which a file or directory of the sandbox is copied. It
// refuses a target that is a symbolic link if the path does not end with /. It also refuses a
// target behind a symbolic link. The link may come from an earlier copy out of a sandbox that wants
// to redirect this copy.
func (t transfer) outTarget() (string, error) {
	if err := refuseLinkAbove(t.local); err != nil {
		return "", err
	}
	into := strings.HasSuffix(t.local, "/")
	if !into {
		if err := refuseLink(t.local); err != nil {
			return "", err
		}
		s, err := os.Stat(t.local)
		into = err == nil && s.IsDir()
	}
	base := path.Base(path.Clean(t.remote))
	if !into || base == "/" {
		return t.local, nil
	}
	target := filepath.Join(t.local, base)
	return target, refuseLink(target)
}

// refuseLinkAbove returns an error if one of the directories that path names is a symbolic link. It
// accepts links that no copy has made: links on the way to the working directory, links directly in
// /, such as /tmp of macOS, and links in /dev and /proc.
func refuseLinkAbove(path string) error {
	if strings.HasPrefix(path, "/dev/") || strings.HasPrefix(path, "/proc/") {
		return nil
	}
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	path = strings.TrimRight(path, "/")
	for n, c := range path {
		at := path[:n]
		if c != '/' || filepath.Dir(at) == "/" || strings.HasPrefix(here+"/", at+"/") {
			continue
		}
		if s, err := os.Lstat(at); err == nil && s.Mode()&fs.ModeSymlink != 0 {
			return fmt.Errorf("%s is a symbolic link, and nothing is written through one: remove it, or name the place"+
				" behind it instead", at)
		}
	}
	return nil
}

// refuseLink returns an error if path is a symbolic link. A link to a pipe or a device, such as
// /dev/stdout, is accepted.
func refuseLink(path string) error {
	if s, err := os.Lstat(path); err != nil || s.Mode()&fs.ModeSymlink == 0 {
		return nil // opening the file will return any other error
	}
	if s, err := os.Stat(path); err == nil && !s.IsDir() && !s.Mode().IsRegular() {
		return nil
	}
	return fmt.Errorf("%s is a symbolic link, and nothing is written through one: remove it, or name the place itself"+
		" (a directory behind a link: give the link a / at its end)", path)
}

func (t transfer) fileIn(ctx context.Context, stdin io.Reader) error {
	if t.local == "-" {
		return t.cl.WriteFile(ctx, t.id, t.remote, stdin)
	}
	target, err := t.inTarget()
	if err != nil {
		return err
	}
	f, err := os.Open(t.local)
	if err != nil {
		return err
	}
	defer f.Close()
	if s, err := f.Stat(); err == nil && s.IsDir() {
		return fmt.Errorf("copy %s: it is a directory: use cp -r", t.local)
	}
	return t.cl.WriteFile(ctx, t.id, target, f)
}

func (t transfer) fileOut(ctx context.Context, stdout io.Writer) (err error) {
	r, err := t.cl.ReadFile(ctx, t.id, t.remote)
	if err != nil {
		if f, e := t.cl.StatFile(ctx, t.id, t.remote); e == nil && f.Type == "directory" {
			return fmt.Errorf("copy %s: it is a directory: use cp -r", t.remote)
		}
		return err
	}
	defer r.Close()
	if t.local == "-" {
		_, err = io.Copy(stdout, r)
		return err
	}
	target, err := t.outTarget()
	if err != nil {
		return err
	}
	f, err := os.Create(target)
	if err != nil {
		return err
	}
	if _, err = io.Copy(f, r); err != nil {
		err = fmt.Errorf("copy %s:%s: %s is incomplete: %w", t.id, t.remote, target, err)
	}
	return errors.Join(err, f.Close())
}
