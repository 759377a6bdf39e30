package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/forkd/forkd/client"
)

// networkFlags are the flags for a network policy.
type networkFlags struct {
	client.Network
	secrets []string
	hold    holdFlags
}

func (n *networkFlags) register(f *pflag.FlagSet) {
	f.StringVar(&n.Mode, "net", "",
		"network policy: none, public (the internet, no private networks), allow (what --allow lists) or open")
	f.StringArrayVar(&n.Allow, "allow", nil,
		"permitted destination: a name, *.name, an address or a network, optionally with :port (repeatable); without --net it implies allow")
	f.StringArrayVar(&n.Deny, "deny", nil, "denied destination, in every mode (repeatable)")
	f.BoolVar(&n.AllowECH, "allow-ech", false,
		"permit TLS with an encrypted server name (ECH) even where rules for names decide; browsers need it")
	f.Uint64Var(&n.Limits.BytesPerSecond, "net-bytes-per-second", 0, "limit of bytes per second in each direction (0: the daemon's default)")
	f.Uint32Var(&n.Limits.Connections, "net-connections", 0, "limit of concurrent connections (0: the daemon's default)")
}

func (n *networkFlags) complete(cmd *cobra.Command) {
	completeWords(cmd, "net", "none", "public", "allow", "open")
}

// registerSecrets is for commands that make or change a sandbox. Commands for snapshots do not call
// it, because a snapshot cannot have secrets.
func (n *networkFlags) registerSecrets(f *pflag.FlagSet) {
	f.StringArrayVar(&n.secrets, "secret", nil,
		"HOST:HEADER=env:NAME or =file:PATH: header that forkd adds to HTTPS requests, outside of the sandbox,\n"+
			"with a value from a variable or a file (repeatable; without =, the current value stays)")
}

// registerNew registers the flags of commands that make sandboxes.
func (n *networkFlags) registerNew(cmd *cobra.Command) {
	n.register(cmd.Flags())
	n.registerSecrets(cmd.Flags())
	n.hold.register(cmd, cmd.Flags())
	n.complete(cmd)
}

// giveTo sets the policy and the hold of a request.
func (n *networkFlags) giveTo(req *client.ForkRequest) (err error) {
	if req.HoldEffects, err = n.hold.given(); err != nil {
		return err
	}
	req.Network, err = n.given()
	return err
}

// given returns the policy that the flags set, or nil if no flag is set.
func (n *networkFlags) given() (*client.Network, error) {
	if n.Mode == "" && len(n.Allow) == 0 && len(n.Deny) == 0 && !n.AllowECH && n.Limits == (client.NetworkLimits{}) &&
		len(n.secrets) == 0 {
		return nil, nil
	}
	n.Secrets = nil
	for _, text := range n.secrets {
		s, err := parseSecret(text)
		if err != nil {
			return nil, usageError{fmt.Errorf("--secret %w", err)}
		}
		n.Secrets = append(n.Secrets, s)
	}
	return &n.Network, nil
}

// maxSecret bounds a file with a secret, in bytes. The daemon's bound is lower.
const maxSecret = 64 << 10

// parseSecret parses HOST:HEADER=SOURCE. The value is never an argument, because every user of this
// host can read command lines.
func parseSecret(text string) (s client.NetworkSecret, err error) {
	about, source, hasSource := strings.Cut(text, "=")
	var ok bool
	if s.Host, s.Header, ok = strings.Cut(about, ":"); !ok || s.Host == "" || s.Header == "" {
		return s, fmt.Errorf("%q: want HOST:HEADER=env:NAME or HOST:HEADER=file:PATH", about)
	}
	if !hasSource {
		return s, nil
	}
	kind, name, _ := strings.Cut(source, ":")
	switch kind {
	case "env":
		s.Value = os.Getenv(name)
	case "file":
		f, err := os.Open(name)
		if err != nil {
			return s, err
		}
		defer f.Close()
		p, err := io.ReadAll(io.LimitReader(f, maxSecret))
		if err != nil {
			return s, err
		}
		s.Value = strings.TrimRight(string(p), "\r\n")
	default: // the text may be the value of the secret, so the error does not quote it
		return s, fmt.Errorf("%s: after = give the source of the value: env:NAME or file:PATH", about)
	}
	if s.Value == "" {
		return s, fmt.Errorf("%s: %s is empty", about, source)
	}
	return s, nil
}

func newNetCmd() *cobra.Command {
	var c common
	cmd := &cobra.Command{
		Use:   "net ID",
		Short: "Show the network policy and the traffic of a sandbox",
		Args:  usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return showOf(cmd, &c, args[0], func(ctx context.Context, cl *client.Client,
				id string) (client.SandboxNetwork, error) {
				return cl.Network(ctx, id)
			}, func(n client.SandboxNetwork) error { return printNetwork(cmd, n) })
		},
	}
	c.completeSandboxes(cmd)
	c.register(cmd)
	cmd.AddCommand(newNetSetCmd())
	return cmd
}

func newNetSetCmd() *cobra.Command {
	var c common
	var n networkFlags
	cmd := &cobra.Command{
		Use:   "set ID",
		Short: "Replace the network policy of a sandbox",
		Long: "Replaces the whole policy: an omitted setting takes its default, not its previous value. Connections that\n" +
			"the new policy denies are reset.",
		Args: usageArgs(arguments(1, 1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if n.Mode == "" && len(n.Allow) == 0 {
				return usageError{errors.New("say which policy: --net none, public, allow or open, or --allow")}
			}
			network, err := n.given()
			if err != nil {
				return err
			}
			return showOf(cmd, &c, args[0], func(ctx context.Context, cl *client.Client,
				id string) (client.SandboxNetwork, error) {
				return cl.SetNetwork(ctx, id, *network)
			}, func(n client.SandboxNetwork) error { return printNetwork(cmd, n) })
		},
	}
	n.register(cmd.Flags())
	n.registerSecrets(cmd.Flags())
	c.completeSandboxes(cmd)
	n.complete(cmd)
	c.register(cmd)
	return cmd
}

func printNetwork(cmd *cobra.Command, n client.SandboxNetwork) error {
	list := func(items []string) string {
		if len(items) == 0 {
			return "-"
		}
		return strings.Join(items, " ")
	}
	var refused []string
	for _, reason := range slices.Sorted(maps.Keys(n.Stats.Refused)) {
		refused = append(refused, fmt.Sprintf("%s %d", reason, n.Stats.Refused[reason]))
	}
	var limits []string
	for _, l := range []struct {
		limit uint64
		unit  string
	}{{n.Limits.BytesPerSecond, "B/s"}, {uint64(n.Limits.PacketsPerSecond), "packets/s"},
		{uint64(n.Limits.Connections), "connections"}} {
		if l.limit != 0 {
			limits = append(limits, fmt.Sprintf("%d %s", l.limit, l.unit))
		}
	}
	var secrets []string
	for _, s := range n.Secrets {
		secrets = append(secrets, s.Host+":"+s.Header)
	}
	return values(cmd, "MODE\t"+n.Mode, func(row func(...any)) {
		row("ALLOW", list(n.Allow))
		row("DENY", list(n.Deny))
		row("ECH", map[bool]string{true: "passes", false: "refused where rules for names decide"}[n.AllowECH])
		row("LIMITS", list(limits))
		row("SECRETS", list(secrets))
		row("CONNECTIONS", fmt.Sprintf("%d now, %d ended", n.Stats.Open, n.Stats.Connections))
		row("BYTES", fmt.Sprintf("%d up, %d down", n.Stats.UpBytes, n.Stats.DownBytes))
		row("NAMES ASKED", n.Stats.DNSQueries)
		row("REFUSED", list(refused))
		for _, c := range n.Stats.OpenConnections {
			row("OPEN", connectionText(c))
		}
		for _, a := range n.Stats.RecentAllowed {
			row("LAST ALLOWED", allowedText(a))
		}
		for _, r := range n.Stats.Recent {
			row("LAST REFUSED", refusalText(r))
		}
	})
}

// allowedText describes a destination of allowed connections that have ended.
func allowedText(a client.NetworkAllowed) string {
	text := a.Address
	if a.Name != "" {
		text += " of " + a.Name
	}
	if a.Protocol != "tcp" {
		text = a.Protocol + " " + text
	}
	if a.Count > 1 {
		text += fmt.Sprintf(" %d times", a.Count)
	}
	return text + fmt.Sprintf(": %d bytes up, %d down", a.UpBytes, a.DownBytes)
}

// connectionText describes an open connection.
func connectionText(c client.NetworkConnection) string {
	text := allowedText(client.NetworkAllowed{Protocol: c.Protocol, Address: c.Address, Name: c.Name,
		UpBytes: c.UpBytes, DownBytes: c.DownBytes})
	return text + ", since " + time.Unix(c.BeganUnix, 0).Format(time.TimeOnly)
}

// refusalText describes a destination that the policy has refused.
func refusalText(r client.NetworkRefusal) string {
	text := r.Address
	switch {
	case r.Protocol == "dns":
		text = "the name " + r.Name
	case r.Name != "":
		text += " of " + r.Name
	}
	if r.Protocol == "udp" || r.Protocol == "icmp" {
		text = r.Protocol + " " + text
	}
	text += fmt.Sprintf(" refused (%s)", r.Why)
	if r.Count > 1 {
		text += fmt.Sprintf(" %d times", r.Count)
	}
	if r.Fix != "" {
		text += ": " + r.Fix
	}
	return text
}
