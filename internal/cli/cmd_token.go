package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/daemon/auth"
)

// tokenFlags are the flags of commands that change a token file. These commands need no daemon,
// because a daemon notices changes of the file.
type tokenFlags struct{ file string }

func (f *tokenFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.file, "file", "", "token file, which 'forkd daemon --token-file' reads\n"+
		"(default /etc/forkd/tokens for root, else forkd/tokens in $XDG_CONFIG_HOME or ~/.config)")
}

// path returns the path of the token file.
func (f *tokenFlags) path() (string, error) {
	if f.file != "" {
		return f.file, nil
	}
	path, err := configPath("tokens")
	if err != nil {
		return "", fmt.Errorf("%w; give --file", err)
	}
	return path, nil
}

// configPath returns the path of a configuration file or directory of forkd. The path differs
// between root and other users.
func configPath(name string) (string, error) {
	if os.Getuid() == 0 {
		return filepath.Join("/etc/forkd", name), nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("no place for %s: %w", name, err)
	}
	return filepath.Join(dir, "forkd", name), nil
}

// change replaces the text of the token file with edit(text).
func (f *tokenFlags) change(edit func([]byte) ([]byte, error)) (path string, err error) {
	if path, err = f.path(); err != nil {
		return "", err
	}
	return path, changeFile("token file", path, edit)
}

// changeFile replaces the text of a file of the daemon's credentials with edit(text). It holds the
// lock of the file's directory during the change. If the file is missing, edit receives an empty
// text. Errors name the given kind of file.
func changeFile(what, path string, edit func([]byte) ([]byte, error)) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("%s: lock %s: %w", what, dir.Name(), err)
	}
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", what, err)
	}
	text, err := edit(old)
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, path, err)
	}
	return atomicfile.WriteDurable(path, text, 0o600)
}

// readList reads and parses a file of the daemon's credentials. A missing file contains none.
// Errors name the given kind of file.
func readList[T any](what, path string, parse func([]byte) ([]T, error)) ([]T, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	list, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", what, path, err)
	}
	return list, nil
}

func newTokenCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Create, list and remove tokens for clients of the daemon",
		Args:  usageArgs(knownCommand),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTokenNewCmd(), newTokenLsCmd(), newTokenRmCmd())
	return cmd
}

func newTokenNewCmd() *cobra.Command {
	var f tokenFlags
	var e2b bool
	t := auth.Token{}
	scope, prefix := auth.Run.String(), ""
	cmd := &cobra.Command{
		Use:   "new NAME",
		Short: "Create a token and print it; the file gets only its hash",
		Long: "Creates a token and prints it, once. The token file gets only its hash. A daemon with --token-file FILE\n" +
			"accepts the token immediately.",
		Args: usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if t.Scope, err = auth.ParseScope(scope); err != nil {
				return usageError{fmt.Errorf("--scope: %w", err)}
			}
			if prefix != "" {
				if err := t.LimitTo(prefix); err != nil {
					return usageError{fmt.Errorf("--%w", err)}
				}
			}
			if t.Name = args[0]; t.MaxSandboxes < 0 {
				return usageError{fmt.Errorf("--max-sandboxes %d: want 0 or more", t.MaxSandboxes)}
			}
			if err := auth.CheckName(t.Name); err != nil {
				return usageError{err}
			}
			var token string
			path, err := f.change(func(old []byte) (text []byte, err error) {
				text, token, err = auth.Add(old, t, e2b)
				return text, err
			})
			if err != nil {
				return err
			}
			printf(cmd.ErrOrStderr(), "forkd: token %s with scope %s is in %s; it is shown only now:\n", t.Name, t.Scope,
				path)
			printLine(cmd.OutOrStdout(), token)
			return nil
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&scope, "scope", scope, "rights of the holder: pull, read, run or admin")
	cmd.Flags().StringVar(&prefix, "label-prefix", "",
		"limit the token to sandboxes with a label whose name begins with this, such as team-a/,\n"+
			"to its own snapshots and to parents; see docs/security.md")
	cmd.Flags().IntVar(&t.MaxSandboxes, "max-sandboxes", 0, "maximum number of the holder's sandboxes; 0: no limit")
	cmd.Flags().BoolVar(&e2b, "e2b", false, "use the form of an API key that E2B's clients require")
	return cmd
}

func newTokenLsCmd() *cobra.Command {
	var f tokenFlags
	var output string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the names and rights of the tokens in the file",
		Args:  usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			path, err := f.path()
			if err != nil {
				return err
			}
			list, err := readList("token file", path, auth.ParseTokens)
			if err != nil {
				return err
			}
			return printTokens(cmd, list, output)
		},
	}
	f.register(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func printTokens(cmd *cobra.Command, list []auth.Token, output string) error {
	if output == "json" {
		type row struct {
			Name         string `json:"name"`
			Scope        string `json:"scope"`
			MaxSandboxes int    `json:"max_sandboxes,omitempty"`
			LabelPrefix  string `json:"label_prefix,omitempty"`
		}
		rows := []row{}
		for _, t := range list {
			rows = append(rows, row{t.Name, t.Scope.String(), t.MaxSandboxes, string(t.Prefix)})
		}
		return writeJSON(cmd.OutOrStdout(), rows)
	}
	return table(cmd, "NAME\tSCOPE\tMAX SANDBOXES\tLABEL PREFIX", func(row func(...any)) {
		for _, t := range list {
			limit := "-"
			if t.MaxSandboxes > 0 {
				limit = fmt.Sprint(t.MaxSandboxes)
			}
			row(t.Name, t.Scope, limit, cmp.Or(string(t.Prefix), "-"))
		}
	})
}

func newTokenRmCmd() *cobra.Command {
	var f tokenFlags
	cmd := &cobra.Command{
		Use:     "rm NAME",
		Aliases: []string{"remove", "revoke"},
		Short:   "Remove a token, so that the daemon refuses it",
		Args:    usageArgs(arguments(1, 1)),
		RunE: func(_ *cobra.Command, args []string) error {
			_, err := f.change(func(old []byte) ([]byte, error) { return auth.Remove(old, args[0]) })
			return err
		},
	}
	f.register(cmd)
	return cmd
}
