package cli

import (
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

func newE2BCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "e2b",
		Short: "Use the daemon with E2B's SDKs",
		Args:  usageArgs(knownCommand),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newE2BEnvCmd(), newE2BSetupCmd())
	return cmd
}

func newE2BEnvCmd() *cobra.Command {
	var c common
	var domain, named string
	var plain bool
	cmd := &cobra.Command{
		Use:   "env",
		Short: "Print the environment for programs that use E2B's SDKs",
		Long: "For a shell: eval \"$(forkd e2b env)\". After 'forkd e2b setup', or with --domain, the SDKs reach each\n" +
			"sandbox by its own host name, over TLS. This needs a daemon with --proxy-domain and a certificate for\n" +
			"*.DOMAIN. With --plain the SDKs use the daemon's single address.",
		Args: usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(c.output); err != nil {
				return err
			}
			if plain && domain != "" {
				return usageError{fmt.Errorf("--plain and --domain exclude each other")}
			}
			dir, err := e2bDirPath(named)
			if err != nil {
				return err
			}
			made, err := readE2BSetup(dir)
			if err != nil {
				return err
			}
			address, token, err := locate(cmd.Context(), c.url, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if domain == "" && !plain {
				domain = made
			}
			if domain == "" || domain != made {
				dir = "" // setup did not make the certificate
			}
			env, err := e2bEnv(address, token, domain, dir)
			if err != nil {
				return err
			}
			return printE2BEnv(cmd.OutOrStdout(), env, c.json())
		},
	}
	cmd.Flags().StringVar(&c.url, "daemon-url", "", "daemon to talk to; default as of the other commands")
	cmd.Flags().StringVarP(&c.output, "output", "o", "text", "text, for a shell, or json")
	cmd.Flags().StringVar(&domain, "domain", "",
		"the daemon's --proxy-domain, followed by :PORT unless that is 443 (default that of 'forkd e2b setup')")
	cmd.Flags().BoolVar(&plain, "plain", false, "do not use host names, even after 'forkd e2b setup'")
	e2bDir(cmd, &named)
	return cmd
}

// e2bKey matches the API keys that SDKs of 2025 accept.
var e2bKey = regexp.MustCompile(`^e2b_[0-9a-f]+$`)

// e2bVars are all variables that the command prints, in this order. Variables that the chosen
// configuration does not need are unset, because old values would interfere.
var e2bVars = []string{"E2B_DOMAIN", "E2B_API_URL", "E2B_SANDBOX_URL", "E2B_VOLUME_API_URL", "E2B_API_KEY",
	"E2B_VALIDATE_API_KEY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"}

// e2bEnv returns the variables for a daemon. If a domain is given, clients reach sandboxes by host
// names. If a directory is given, clients trust the certificates that setup makes in this
// directory.
func e2bEnv(address, token, domain, dir string) (map[string]string, error) {
	env := map[string]string{}
	address = strings.TrimSuffix(address, "/")
	switch {
	case domain != "":
		env["E2B_DOMAIN"] = domain
	case strings.HasPrefix(address, "unix:"):
		return nil, fmt.Errorf("%s: E2B's SDKs cannot use a unix socket: start the daemon with --bind 127.0.0.1:8889, and set %s", address, urlEnv)
	default:
		env["E2B_API_URL"], env["E2B_SANDBOX_URL"], env["E2B_VOLUME_API_URL"] = address, address, address
	}
	if dir != "" {
		env["SSL_CERT_FILE"] = filepath.Join(dir, bundleFile)
		env["REQUESTS_CA_BUNDLE"] = env["SSL_CERT_FILE"]
		env["NODE_EXTRA_CA_CERTS"] = filepath.Join(dir, caFile)
	}
	key := token
	switch {
	case token == "":
		key = "e2b_00" // the SDKs require a key, although the daemon does not
	case e2bKey.MatchString("e2b_" + token):
		key = "e2b_" + token
	}
	env["E2B_API_KEY"] = key
	if !e2bKey.MatchString(key) {
		env["E2B_VALIDATE_API_KEY"] = "false"
	}
	return env, nil
}

// printE2BEnv prints variables as JSON, or as shell commands.
func printE2BEnv(w io.Writer, env map[string]string, asJSON bool) error {
	if asJSON {
		return writeJSON(w, env)
	}
	for _, name := range e2bVars {
		if value, ok := env[name]; ok {
			printf(w, "export %s=%s\n", name, quoted(value))
		}
	}
	unset := slices.DeleteFunc(slices.Clone(e2bVars[:4]), func(name string) bool { _, ok := env[name]; return ok })
	_, err := printf(w, "unset %s\n", strings.Join(unset, " "))
	return err
}

// quoted returns text as one word for a shell.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// plainWord matches words that need no quotes in a shell.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:@-]+$`)

// quotedIfNeeded returns text as one word for a shell, with quotes only if they are needed.
func quotedIfNeeded(text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return quoted(text)
}
