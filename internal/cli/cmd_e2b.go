package cli

import (
	"fmt"
	"io"
	"regexp"
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
	cmd.AddCommand(newE2BEnvCmd())
	return cmd
}

func newE2BEnvCmd() *cobra.Command {
	var c common
	var domain string
	cmd := &cobra.Command{
		Use:   "env",
		Short: "Print the environment in which programs that use E2B's SDKs find the daemon",
		Long: "For a shell: eval \"$(forkd e2b env)\". With --domain the SDKs reach each sandbox by a host name of its own, which\n" +
			"needs TLS with a certificate for *.DOMAIN, and a daemon with --proxy-domain.",
		Args: usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			address, token, err := locate(cmd.Context(), c.url, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return printE2BEnv(cmd.OutOrStdout(), address, token, domain)
		},
	}
	cmd.Flags().StringVar(&c.url, "daemon-url", "", "daemon to talk to; default as of the other commands")
	cmd.Flags().StringVar(&domain, "domain", "", "the daemon's --proxy-domain, with :PORT behind it if that is not 443")
	return cmd
}

// e2bKey matches what SDKs of 2025 take for an API key.
var e2bKey = regexp.MustCompile(`^e2b_[0-9a-f]+$`)

func printE2BEnv(w io.Writer, address, token, domain string) error {
	address = strings.TrimSuffix(address, "/")
	switch {
	case domain != "":
		fmt.Fprintf(w, "export E2B_DOMAIN=%s\n", quoted(domain))
	case strings.HasPrefix(address, "unix:"):
		return fmt.Errorf("%s: E2B's SDKs cannot use a unix socket: start the daemon with --bind 127.0.0.1:8889, and set %s", address, urlEnv)
	default:
		fmt.Fprintf(w, "export E2B_API_URL=%s\nexport E2B_SANDBOX_URL=%s\n", quoted(address), quoted(address))
	}
	key := token
	switch {
	case token == "":
		key = "e2b_00" // the SDKs want one; the daemon does not
	case e2bKey.MatchString("e2b_" + token):
		key = "e2b_" + token
	}
	fmt.Fprintf(w, "export E2B_API_KEY=%s\n", quoted(key))
	if !e2bKey.MatchString(key) {
		fmt.Fprintln(w, "export E2B_VALIDATE_API_KEY=false")
	}
	return nil
}

// quoted is a text as a word of a shell.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
