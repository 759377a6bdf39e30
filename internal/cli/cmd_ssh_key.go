package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/crypto/ssh"

	"github.com/forkd/forkd/internal/daemon"
	"github.com/forkd/forkd/internal/daemon/auth"
)

// sshKeyFlags are the flags of commands that use the file of SSH keys. These commands need no daemon: a
// daemon notices changes of the file.
type sshKeyFlags struct{ file string }

const sshKeysDefault = "(default /etc/forkd/ssh-keys for root, else forkd/ssh-keys in $XDG_CONFIG_HOME or ~/.config)"

func (f *sshKeyFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.file, "file", "", "file of SSH keys, which 'forkd daemon --ssh-keys' reads\n"+sshKeysDefault)
}

// path returns the path of the file of SSH keys.
func (f *sshKeyFlags) path() (string, error) {
	if f.file != "" {
		return f.file, nil
	}
	path, err := configPath("ssh-keys")
	if err != nil {
		return "", fmt.Errorf("%w; give --file", err)
	}
	return path, nil
}

// sshDaemonFlags registers the daemon's flags for SSH.
func sshDaemonFlags(f *pflag.FlagSet, cfg *daemon.Config) {
	f.StringVar(&cfg.SSH, "ssh", "",
		"serve SSH at this address, such as 127.0.0.1:2222; a port alone is on loopback. See docs/ssh.md")
	f.StringVar(&cfg.SSHKeys, "ssh-keys", "", "file of the keys of SSH clients: see 'forkd ssh-key'. Changes apply at once\n"+
		sshKeysDefault)
}

// setSSH completes the values of the daemon's flags for SSH.
func setSSH(cfg *daemon.Config) (err error) {
	if cfg.SSH == "" {
		return nil
	}
	if _, err := strconv.ParseUint(cfg.SSH, 10, 16); err == nil {
		cfg.SSH = "127.0.0.1:" + cfg.SSH
	}
	cfg.SSHKeys, err = (&sshKeyFlags{cfg.SSHKeys}).path()
	return err
}

const keyFileKind = "file of SSH keys"

func newSSHKeyCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ssh-key",
		Short: "Add, list and remove the keys of SSH clients",
		Long:  "A daemon with --ssh accepts these keys. The holder of a key has the rights of a token, or of a user of this host.",
		Args:  usageArgs(knownCommand),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSSHKeyAddCmd(), newSSHKeyLsCmd(), newSSHKeyRmCmd())
	return cmd
}

func newSSHKeyAddCmd() *cobra.Command {
	var f sshKeyFlags
	var tokens tokenFlags
	var token, name string
	cmd := &cobra.Command{
		Use:   "add [FILE]",
		Short: "Add the public key in a file, such as ~/.ssh/id_ed25519.pub",
		Long: "Adds a public key; - reads it from standard input. Without FILE, it is your first of id_ed25519.pub, id_ecdsa.pub\n" +
			"and id_rsa.pub in ~/.ssh. The key's holder has your rights at the daemon's socket, unless --token or --user is\n" +
			"given. A key of a token is void once the token is removed.",
		Args: usageArgs(arguments(0, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if token != "" && name != "" {
				return usageError{errors.New("--token and --user exclude each other")}
			}
			text, err := readPublicKey(cmd.InOrStdin(), args)
			if err != nil {
				return err
			}
			var k auth.SSHKey
			if k.Key, k.Comment, err = auth.ParseSSHKey(text); err != nil {
				return err
			}
			if token != "" {
				err = keyOfToken(&k, &tokens, token)
			} else {
				err = keyOfUser(&k, name)
			}
			if err != nil {
				return err
			}
			path, err := f.path()
			if err != nil {
				return err
			}
			if err := changeFile(keyFileKind, path, func(old []byte) ([]byte, error) {
				return auth.AddSSHKey(old, k)
			}); err != nil {
				return err
			}
			printf(cmd.ErrOrStderr(), "forkd: key %s of %s is in %s\n", ssh.FingerprintSHA256(k.Key), k.Who, path)
			return nil
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&token, "token", "", "name of the token whose rights the key's holder has")
	cmd.Flags().StringVar(&tokens.file, "token-file", "", "file of that token; see 'forkd token new --help'")
	cmd.Flags().StringVar(&name, "user", "", "user of this host whose rights at the daemon's socket the key's holder has")
	return cmd
}

// maxPublicKey bounds a file with a public key, in bytes.
const maxPublicKey = 64 << 10

// readPublicKey returns the text of the public key that the arguments name.
func readPublicKey(in io.Reader, args []string) (string, error) {
	path := ""
	if len(args) == 1 {
		path = args[0]
	} else {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("no public key: %w; give FILE", err)
		}
		for _, name := range []string{"id_ed25519.pub", "id_ecdsa.pub", "id_rsa.pub"} {
			at := filepath.Join(home, ".ssh", name)
			if _, err := os.Stat(at); err == nil {
				path = at
				break
			}
		}
		if path == "" {
			return "", fmt.Errorf("there is no public key in %s: make one with ssh-keygen, or give FILE", filepath.Join(home, ".ssh"))
		}
	}
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return "", fmt.Errorf("public key: %w", err)
		}
		defer file.Close()
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, maxPublicKey))
	if err != nil {
		return "", fmt.Errorf("public key: %w", err)
	}
	if strings.Contains(string(text), "PRIVATE KEY") {
		return "", fmt.Errorf("%s is a private key: give the public key, %s.pub", path, path)
	}
	return string(text), nil
}

func keyOfToken(k *auth.SSHKey, tokens *tokenFlags, name string) error {
	path, err := tokens.path()
	if err != nil {
		return err
	}
	file, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("token file: %w", err)
	}
	if err := auth.SSHKeyOfToken(k, file, name); err != nil {
		return fmt.Errorf("token file %s: %w", path, err)
	}
	return nil
}

// keyOfUser sets the principal of a key to a user of this host, or to the user of this process if name
// is empty.
func keyOfUser(k *auth.SSHKey, name string) error {
	uid := uint64(os.Getuid())
	if name != "" {
		u, err := user.Lookup(name)
		if err != nil {
			return fmt.Errorf("--user: %w", err)
		}
		if uid, err = strconv.ParseUint(u.Uid, 10, 32); err != nil {
			return fmt.Errorf("--user: %w", err)
		}
	}
	auth.SSHKeyOfUser(k, uint32(uid))
	return nil
}

func newSSHKeyLsCmd() *cobra.Command {
	var f sshKeyFlags
	var output string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the keys and whose rights they give",
		Args:  usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			path, err := f.path()
			if err != nil {
				return err
			}
			list, err := readList(keyFileKind, path, auth.ParseSSHKeys)
			if err != nil {
				return err
			}
			return printSSHKeys(cmd, list, output)
		},
	}
	f.register(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func printSSHKeys(cmd *cobra.Command, list []auth.SSHKey, output string) error {
	if output == "json" {
		type row struct {
			Principal   string `json:"principal"`
			Type        string `json:"type"`
			Fingerprint string `json:"fingerprint"`
			Comment     string `json:"comment,omitempty"`
		}
		rows := []row{}
		for _, k := range list {
			rows = append(rows, row{k.Who, k.Key.Type(), ssh.FingerprintSHA256(k.Key), k.Comment})
		}
		return writeJSON(cmd.OutOrStdout(), rows)
	}
	return table(cmd, "PRINCIPAL\tTYPE\tFINGERPRINT\tCOMMENT", func(row func(...any)) {
		for _, k := range list {
			row(k.Who, k.Key.Type(), ssh.FingerprintSHA256(k.Key), k.Comment)
		}
	})
}

func newSSHKeyRmCmd() *cobra.Command {
	var f sshKeyFlags
	cmd := &cobra.Command{
		Use:     "rm FINGERPRINT",
		Aliases: []string{"remove", "revoke"},
		Short:   "Remove a key, so that the daemon refuses it and ends its connections",
		Args:    usageArgs(arguments(1, 1)),
		RunE: func(_ *cobra.Command, args []string) error {
			path, err := f.path()
			if err != nil {
				return err
			}
			return changeFile(keyFileKind, path, func(old []byte) ([]byte, error) {
				rest, n, err := auth.RemoveSSHKeys(old, func(k auth.SSHKey) bool { return ssh.FingerprintSHA256(k.Key) == args[0] })
				if err == nil && n == 0 {
					err = fmt.Errorf("there is no key %q; 'forkd ssh-key ls' lists them", args[0])
				}
				return rest, err
			})
		},
	}
	f.register(cmd)
	return cmd
}
