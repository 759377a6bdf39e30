package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkd/forkd/client"
)

// sshAlias is the name of the daemon's host key for ssh, whatever the daemon's address is.
const sshAlias = "forkd"

// sshFlags are the flags of commands that reach sandboxes over SSH.
type sshFlags struct {
	common
	account string
	host    string
}

func (f *sshFlags) register(cmd *cobra.Command) {
	f.common.register(cmd)
	cmd.Flags().StringVarP(&f.account, "user", "u", "", "user in the sandbox (default its default user)")
	cmd.Flags().StringVar(&f.host, "host", "",
		"host name or address at which the daemon's SSH server is reached (default as in --daemon-url)")
}

// sshTarget describes how ssh reaches a sandbox.
type sshTarget struct {
	host, port, login string
	options           [][2]string // names and values of options, as in ssh_config
}

// target returns how ssh reaches a sandbox.
func (f *sshFlags) target(ctx context.Context, cl *client.Client, id string) (t sshTarget, err error) {
	v, err := cl.Version(ctx)
	if err != nil {
		return t, err
	}
	if v.SSH == nil {
		return t, errors.New("the daemon serves no SSH: start it with 'forkd daemon --ssh 2222', and add your key with 'forkd ssh-key add'")
	}
	if t.host, t.port, err = net.SplitHostPort(v.SSH.Address); err != nil {
		return t, fmt.Errorf("the daemon's SSH address: %w", err)
	}
	if !isPlain(v.SSH.HostKey) { // the key becomes a part of a command of ssh
		return t, fmt.Errorf("the daemon's host key %.100q is not one of SSH", v.SSH.HostKey)
	}
	// The port and the host become lines of ssh_config and arguments of ssh.
	if n, err := strconv.ParseUint(t.port, 10, 16); err != nil || n == 0 || !sshHost.MatchString(t.host) {
		return t, fmt.Errorf("the daemon's SSH address %.100q is not HOST:PORT", v.SSH.Address)
	}
	if !wholeID.MatchString(id) {
		return t, fmt.Errorf("%.100q is no sandbox id: 'forkd ls' lists sandboxes", id)
	}
	if t.host, err = f.hostOf(t.host); err != nil {
		return t, err
	}
	if t.login = id; f.account != "" {
		t.login = f.account + "+" + id
	}
	t.options = [][2]string{
		{"HostKeyAlias", sshAlias},
		{"KnownHostsCommand", "/bin/echo " + sshAlias + " " + v.SSH.HostKey},
		{"UserKnownHostsFile", "/dev/null"},
		{"StrictHostKeyChecking", "yes"},
		{"ForwardAgent", "no"},
		{"ForwardX11", "no"},
	}
	return t, nil
}

// sshHost matches a host name or an IP address without a zone.
var sshHost = regexp.MustCompile(`^[A-Za-z0-9:][A-Za-z0-9:._-]*$`)

// isPlain reports whether text is a public key without characters that mean something to ssh.
func isPlain(text string) bool {
	kind, key, ok := strings.Cut(text, " ")
	return ok && strings.HasPrefix(kind, "ssh-") && strings.Trim(kind+key,
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/=-") == ""
}

// hostOf returns the host that ssh connects to, given the host at which the daemon listens. If the
// daemon listens at all addresses, ssh connects to the host at which this program reaches the
// daemon.
func (f *sshFlags) hostOf(listens string) (string, error) {
	if f.host != "" {
		return f.host, nil
	}
	at, err := url.Parse(f.where)
	if err != nil {
		return "", err
	}
	remote := at.Hostname() // empty for a unix socket
	ip := net.ParseIP(listens)
	switch {
	case ip == nil || !ip.IsUnspecified():
		return listens, nil
	case remote != "":
		return remote, nil
	}
	return "127.0.0.1", nil
}

func newSSHCmd() *cobra.Command {
	f := sshFlags{common: common{streams: true}}
	cmd := &cobra.Command{
		Use:   "ssh ID [-- ARGUMENT…]",
		Short: "Run ssh, connected to a sandbox",
		Long: "Runs this host's ssh with the address and the host key of the daemon's SSH server. Arguments go to ssh: its\n" +
			"options, and a command. The exit code is ssh's. 'forkd ssh-config' does the same for other programs.",
		Example: "  forkd ssh ID                            # a shell\n" +
			"  forkd ssh ID -- make test               # a command\n" +
			"  forkd ssh ID -- -L 8080:localhost:80    # with a port of the sandbox",
		Args: usageArgs(arguments(1, anyNumber)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.json() {
				return errNoJSON
			}
			return f.runOn(cmd, args[0], func(ctx context.Context, cl *client.Client, id string) error {
				t, err := f.target(ctx, cl, id)
				if err != nil {
					return err
				}
				return t.run(cmd, args[1:])
			})
		},
	}
	f.completeSandboxes(cmd)
	f.register(cmd)
	return cmd
}

// run runs ssh with the input and outputs of a command, and returns its exit code as an exitCode.
func (t *sshTarget) run(cmd *cobra.Command, args []string) error {
	path, err := exec.LookPath("ssh")
	if err != nil {
		return fmt.Errorf("%w: install OpenSSH's client (on Debian: openssh-client)", err)
	}
	argv := []string{"-p", t.port}
	for _, o := range t.options {
		argv = append(argv, "-o", o[0]+"="+o[1])
	}
	argv = append(append(argv, t.login+"@"+t.host), args...)
	ssh := exec.Command(path, argv...) // without a context, because ssh itself receives Ctrl-C
	ssh.Stdin, ssh.Stdout, ssh.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	err = ssh.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return exitWith(max(ended.ExitCode(), exitError), nil)
	}
	return err
}

func newSSHConfigCmd() *cobra.Command {
	var f sshFlags
	var name string
	cmd := &cobra.Command{
		Use:   "ssh-config ID",
		Short: "Print a Host block for ~/.ssh/config, for editors, scp, rsync and git",
		Long: "Prints the lines with which OpenSSH, and programs that use it, reach a sandbox by its id or by --name. They contain\n" +
			"the host key of the daemon, so ssh does not ask whether to trust it.",
		Example: "  forkd ssh-config ID --name box >> ~/.ssh/config\n" +
			"  scp -r src box:            # then, for example",
		Args: usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.ContainsAny(name, " \t\r\n\"*?!,%#") {
				return usageError{fmt.Errorf("--name %q: want a name without spaces and without \" * ? ! , %% #", name)}
			}
			return f.runOn(cmd, args[0], func(ctx context.Context, cl *client.Client, id string) error {
				if _, err := cl.Sandbox(ctx, id); err != nil {
					return err
				}
				t, err := f.target(ctx, cl, id)
				if err != nil {
					return err
				}
				if name == "" {
					name = id
				}
				if f.json() {
					return writeJSON(cmd.OutOrStdout(), map[string]string{"host": name, "host_name": t.host, "port": t.port,
						"user": t.login, "known_hosts": strings.TrimPrefix(t.options[1][1], "/bin/echo ")})
				}
				return t.print(cmd.OutOrStdout(), name)
			})
		},
	}
	f.completeSandboxes(cmd)
	f.register(cmd)
	cmd.Flags().StringVar(&name, "name", "", "name of the Host block (default the id)")
	return cmd
}

// print prints a Host block.
func (t *sshTarget) print(out io.Writer, name string) error {
	text := fmt.Sprintf("Host %s\n\tHostName %s\n\tPort %s\n\tUser %s\n", name, t.host, t.port, t.login)
	for _, o := range t.options {
		text += fmt.Sprintf("\t%s %s\n", o[0], o[1])
	}
	_, err := io.WriteString(out, text)
	return err
}
