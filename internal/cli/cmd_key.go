package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/forkd/forkd/internal/sigstore"
)

// keyPasswordEnv is the variable with the password of a private key.
const keyPasswordEnv = "FORKD_KEY_PASSWORD"

// trustedKeys is the name of the directory of trusted keys in forkd's configuration directory.
const trustedKeys = "trusted-keys"

// trustFlags are the flags of commands that use the directory of trusted keys. These commands need
// no daemon, because a daemon reads the directory again for each snapshot that it receives.
type trustFlags struct{ dir string }

func (f *trustFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dir, "dir", "", "directory of trusted keys, which 'forkd daemon --trusted-keys' reads\n"+
		"(default /etc/forkd/trusted-keys for root, else forkd/trusted-keys in $XDG_CONFIG_HOME or ~/.config)")
}

func (f *trustFlags) path() (string, error) {
	if f.dir != "" {
		return f.dir, nil
	}
	path, err := configPath(trustedKeys)
	if err != nil {
		return "", fmt.Errorf("%w; give --dir", err)
	}
	return path, nil
}

func newKeyCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Create keys that sign snapshots, and manage the keys that the daemon trusts",
		Args:  usageArgs(knownCommand),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKeyGenerateCmd(), newKeyTrustCmd(), newKeyLsCmd(), newKeyRmCmd())
	return cmd
}

func newKeyGenerateCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "generate [NAME]",
		Aliases: []string{"new"},
		Short:   "Create a key that signs snapshots: NAME.key, encrypted, and NAME.pub",
		Long: "Writes the private key to NAME.key and the public key to NAME.pub; without NAME, forkd.key and forkd.pub. The\n" +
			"private key is encrypted with a password, which comes from the variable " + keyPasswordEnv + " or, on a\n" +
			"terminal, is asked for. Both files have the form of cosign's keys: each program reads those of the other.",
		Example: "  forkd key generate\n  forkd sign ghcr.io/owner/python-numpy@sha256:… --key forkd.key",
		Args:    usageArgs(arguments(0, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := "forkd"
			if len(args) == 1 {
				name = args[0]
			}
			public, err := generateKey(cmd, name)
			if err != nil {
				return err
			}
			printf(cmd.ErrOrStderr(), "forkd: %s.key is the private key, %s.pub the public one: %s\n", name, name, public.ID())
			printLine(cmd.OutOrStdout(), name+sigstore.KeySuffix)
			return nil
		},
	}
}

// generateKey writes a new key to two new files.
func generateKey(cmd *cobra.Command, name string) (*sigstore.PublicKey, error) {
	private, public := name+".key", name+sigstore.KeySuffix
	for _, path := range []string{private, public} {
		if _, err := os.Lstat(path); err == nil {
			return nil, fmt.Errorf("%s exists: give another NAME", path)
		}
	}
	password, err := keyPassword(cmd, private, true)
	if err != nil {
		return nil, err
	}
	key, err := sigstore.NewPrivateKey()
	if err != nil {
		return nil, err
	}
	text, err := key.Seal(password)
	if err != nil {
		return nil, err
	}
	if err := writeNew(private, text, 0o600); err != nil {
		return nil, err
	}
	return key.Public(), writeNew(public, key.Public().PEM(), 0o644)
}

// writeNew writes a new file. It returns an error if the file exists already.
func writeNew(path string, text []byte, mode os.FileMode) error {
	f, err := createNew(path, mode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists: remove it first", path)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}

// keyPassword returns the password of a private key. If isNew is true, the user must type the
// password twice.
func keyPassword(cmd *cobra.Command, path string, isNew bool) ([]byte, error) {
	if p, ok := os.LookupEnv(keyPasswordEnv); ok {
		if isNew && p == "" {
			return nil, fmt.Errorf("%s: the password is empty", keyPasswordEnv)
		}
		return []byte(p), nil
	}
	in, ok := cmd.InOrStdin().(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) {
		return nil, fmt.Errorf("the password of %s: standard input is no terminal; set %s", path, keyPasswordEnv)
	}
	ask := func(text string) ([]byte, error) {
		printf(cmd.ErrOrStderr(), "%s %s: ", text, path)
		defer printf(cmd.ErrOrStderr(), "\n")
		return term.ReadPassword(int(in.Fd()))
	}
	if !isNew {
		return ask("Password of")
	}
	first, err := ask("New password of")
	if err != nil {
		return nil, err
	}
	if len(first) == 0 {
		return nil, errors.New("the password is empty")
	}
	second, err := ask("Again, password of")
	if err == nil && !bytes.Equal(first, second) {
		err = errors.New("the passwords differ")
	}
	return first, err
}

// readPrivateKey reads and decrypts a private key.
func readPrivateKey(cmd *cobra.Command, path string) (*sigstore.PrivateKey, error) {
	text, err := readShort(path, sigstore.MaxKey)
	if err != nil {
		return nil, err
	}
	password, err := keyPassword(cmd, path, false)
	if err != nil {
		return nil, err
	}
	key, err := sigstore.OpenPrivateKey(text, password)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

// readShort returns the content of a file of at most limit bytes.
func readShort(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", path, limit)
	}
	return text, err
}

// keyName is the form of names of trusted keys.
var keyName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$`)

func newKeyTrustCmd() *cobra.Command {
	var f trustFlags
	var name string
	cmd := &cobra.Command{
		Use:     "trust FILE",
		Aliases: []string{"add"},
		Short:   "Let the daemon trust a public key, such as forkd.pub or cosign.pub",
		Long: "Copies a public key to the directory of trusted keys. The daemon then accepts snapshots from other hosts that\n" +
			"this key has signed. The key's owner determines the programs that run in forks of such a snapshot.",
		Args: usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := readShort(args[0], sigstore.MaxKey)
			if err != nil {
				return err
			}
			key, err := sigstore.ParsePublicKey(text)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if name == "" {
				name = strings.TrimSuffix(filepath.Base(args[0]), sigstore.KeySuffix)
			}
			if !keyName.MatchString(name) {
				return usageError{fmt.Errorf("--name %q: want letters, digits and . _ @ -, at most 64", name)}
			}
			dir, err := f.path()
			if err != nil {
				return err
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			path := filepath.Join(dir, name+sigstore.KeySuffix)
			if err := writeNew(path, key.PEM(), 0o644); err != nil {
				return err
			}
			printf(cmd.ErrOrStderr(), "forkd: the daemon trusts %s, which is in %s\n", key.ID(), path)
			return nil
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&name, "name", "", "name of the key (default that of FILE)")
	return cmd
}

func newKeyLsCmd() *cobra.Command {
	var f trustFlags
	var output string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the keys that the daemon trusts",
		Args:  usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			dir, err := f.path()
			if err != nil {
				return err
			}
			keys, err := sigstore.ReadKeys(dir)
			if err != nil {
				return err
			}
			if output == "json" {
				type row struct {
					Name   string `json:"name"`
					Digest string `json:"digest"`
				}
				rows := []row{}
				for _, k := range keys {
					rows = append(rows, row{k.Name, k.ID()})
				}
				return writeJSON(cmd.OutOrStdout(), rows)
			}
			return table(cmd, "NAME\tDIGEST", func(row func(...any)) {
				for _, k := range keys {
					row(k.Name, k.ID())
				}
			})
		},
	}
	f.register(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func newKeyRmCmd() *cobra.Command {
	var f trustFlags
	cmd := &cobra.Command{
		Use:     "rm NAME",
		Aliases: []string{"remove", "distrust"},
		Short:   "Remove a key from those that the daemon trusts; snapshots that it has accepted stay",
		Args:    usageArgs(arguments(1, 1)),
		RunE: func(_ *cobra.Command, args []string) error {
			if !keyName.MatchString(args[0]) {
				return usageError{fmt.Errorf("%q is no name of a key: see 'forkd key ls'", args[0])}
			}
			dir, err := f.path()
			if err != nil {
				return err
			}
			err = os.Remove(filepath.Join(dir, args[0]+sigstore.KeySuffix))
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("there is no key %q; 'forkd key ls' lists them", args[0])
			}
			return err
		},
	}
	f.register(cmd)
	return cmd
}
