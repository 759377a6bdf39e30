package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/forkd/forkd/internal/daemon"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/vmm/kvm"
)

func templateNames() string { return strings.Join(vm.Templates(), ", ") }

func newDaemonCmd() *cobra.Command {
	cfg := daemon.Config{CPUTemplate: vm.TemplatePortable, Accel: "kvm", PoolSize: 8, PoolMost: 64, Version: version}
	var resolvers, peers []string
	var proxy string
	memoryReserve, diskReserve := mibValue(daemon.DefaultReserve()>>20), mibValue(daemon.DefaultDiskReserve>>20)
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "Serve the REST API and own the sandboxes of this host",
		Long: "Serves until SIGTERM or an interrupt. Sandboxes keep running then, and the next daemon takes them over,\n" +
			"unless --kill-on-exit is given.",
		Args: usageArgs(arguments(0, 0)),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := fromEnv(cmd.Flags(), os.LookupEnv); err != nil {
				return err
			}
			if cfg.Accel != "kvm" && cfg.Accel != "tcg" {
				return usageError{errAccel}
			}
			if err := cfg.Defaults(os.Getuid(), os.Getenv); err != nil {
				return err
			}
			cfg.Admit.MemoryReserve, cfg.Admit.DiskReserve = uint64(memoryReserve)<<20, uint64(diskReserve)<<20
			cfg.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			ctx, cancel := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer cancel()
			if err := complete(&cfg, resolvers, peers); err != nil {
				return err
			}
			if err := cfg.SetProxy(proxy, os.Getenv); err != nil {
				return usageError{err}
			}
			hangups, stop := onHangup()
			defer stop()
			cfg.Reopen, cfg.Probe = hangups, probeKVM
			return daemon.Run(ctx, cfg)
		},
	}
	f := cmd.Flags()
	socketFlags(f, &cfg)
	f.StringVar(&cfg.Bind, "bind", "",
		"TCP address such as 127.0.0.1:8889; beyond loopback it needs --token-file or --tls-client-ca")
	f.StringVar(&cfg.TokenFile, "token-file", "",
		"file of the tokens that clients may send: see 'forkd token'; or a file with a single token. Changes apply at once")
	sshDaemonFlags(f, &cfg)
	f.StringArrayVar(&peers, "allow-peer", nil,
		"let a user of this host, or a group, use the socket: user:NAME or group:NAME, with an optional\n"+
			"=read, =run or =admin; default run (repeatable)")
	f.StringVar(&cfg.TLS.Cert, "tls-cert", "",
		"certificate of --bind, in PEM with its intermediate certificates; changes apply at once")
	f.StringVar(&cfg.TLS.Key, "tls-key", "", "private key of --tls-cert, in PEM")
	f.StringVar(&cfg.TLS.ClientCA, "tls-client-ca", "", "certificate authority, in PEM; clients need a certificate that it has signed")
	f.StringArrayVar(&cfg.Hosts, "allow-host", nil,
		"host name that TCP clients may use without a token, besides localhost (repeatable)")
	f.StringVar(&cfg.ProxyDomain, "proxy-domain", "",
		"give ports of sandboxes host names PORT-ID.DOMAIN. Write DOMAIN as clients use it, optionally with\n"+
			"http:// or https:// and :PORT; localhost works for browsers on this host")
	trustDaemonFlags(f, &cfg)
	f.StringVar(&cfg.StateDir, "state-dir", "", "directory of snapshots and private disks (default /var/lib/forkd, or the user's state directory)")
	f.StringVar(&cfg.RAMDir, "ram-dir", "", "tmpfs directory for hot memory (default /dev/shm/forkd-<uid>)")
	f.StringVar(&cfg.RunDir, "run-dir", "",
		"directory of the sockets and records of sandboxes (default /run/forkd, or the user's runtime directory)")
	f.StringVar(&cfg.AuditLog, "audit-log", "",
		"append one JSON line per request to this file; SIGHUP opens it again after a rotation")
	f.StringVar(&cfg.FlowLog, "flow-log", "",
		"append one JSON line per connection of a sandbox to this file; SIGHUP opens it again after a rotation")
	f.StringVar(&cfg.Webhooks, "webhooks", "",
		"JSON file of the servers that receive signed events; read at the start (docs/api.md, Webhooks)")
	f.StringArrayVar(&resolvers, "resolver", nil,
		"DNS server for the names that sandboxes look up, an address with or without a port (repeatable; default those of /etc/resolv.conf)")
	f.StringVar(&cfg.Cgroup, "cgroup", "",
		"cgroup v2 directory below which sandboxes get their limits; none: no limits (default: what systemd\n"+
			"delegated to the daemon, or for root the root of the hierarchy)")
	f.IntVar(&cfg.Admit.MaxSandboxes, "max-sandboxes", 0,
		"maximum number of running and paused sandboxes; further forks are refused (429). 0: no limit")
	f.Float64Var(&cfg.Admit.VCPUsPerCPU, "vcpu-overcommit", 0,
		"maximum number of vCPUs of all sandboxes, per CPU of this host; further forks are refused (429). 0: no limit")
	f.Var(&memoryReserve, "memory-reserve-mib",
		"memory of this host to keep available: forks that would leave less are refused (503); 0: none")
	f.Var(&diskReserve, "disk-reserve-mib",
		"space to keep free on the state directory's disk: forks are refused (503) while less is free; 0: none")
	f.StringVar(&proxy, "upstream-proxy", "",
		"HTTP proxy for outgoing TCP connections of sandboxes: http://HOST:PORT, or env for\n"+
			"HTTPS_PROXY of the daemon; NO_PROXY lists direct destinations")
	f.IntVar(&cfg.Branches, "branch-concurrency", 4, "maximum number of concurrent branches; more are refused")
	clientDaemonFlags(f, &cfg)
	f.IntVar(&cfg.PoolSize, "pool", cfg.PoolSize,
		"number of VMM processes to keep ready for each size of VM that is forked; 0: none")
	f.IntVar(&cfg.PoolMost, "pool-most", cfg.PoolMost,
		"temporary maximum of --pool: after a larger fork, the daemon keeps as many ready as it used, for 5 minutes; 0: never")
	f.StringArrayVar(&cfg.CmdlineArgs, "cmdline-extra", nil,
		"add a parameter to the kernel command line of parents (repeatable)")
	f.StringVar(&cfg.CPUTemplate, "cpu-template", cfg.CPUTemplate, "CPU template of parents: "+templateNames())
	f.IntVar(&cfg.GuestPort, "guest-port", 0,
		"give sandboxes addresses (guest_addr) with this port, as forkd 0.5 did, for 'forkd forward-guests'; 0: none")
	f.StringVar(&cfg.Accel, "accel", cfg.Accel, "accelerator named in reports: kvm, or tcg on an emulated host")
	f.BoolVar(&cfg.Jail.NoNamespaces, "no-namespaces", false,
		"weaken the jail of VMMs and of forkd-net, on hosts that allow no namespaces (see forkd doctor)")
	f.BoolVar(&cfg.KillOnExit, "kill-on-exit", false, "kill all sandboxes when the daemon stops")
	return cmd
}

func socketFlags(f *pflag.FlagSet, cfg *daemon.Config) {
	f.StringVar(&cfg.Socket, "socket", "", "unix socket (default forkd.sock in the run directory, unless --bind is given)")
	f.StringVar(&cfg.Docker, "docker-socket", "",
		"unix socket on which to serve a part of the Docker Engine API, for DOCKER_HOST=unix://PATH (docs/docker.md)")
	f.StringVar(&cfg.Node, "node", "",
		"name of this host in a cluster, by which 'forkd router' finds the sandboxes that are created from now on")
}

// clientDaemonFlags registers the flags about the rights and the shares of clients.
func clientDaemonFlags(f *pflag.FlagSet, cfg *daemon.Config) {
	f.Uint64Var(&cfg.MaxVolumesGiB, "max-volumes-gib", 0,
		"maximum total size of the volumes of one client, in GiB; more are refused (429). 0: no limit")
	f.BoolVar(&cfg.OpenPrivate, "run-may-open-private", false,
		"let clients of the scope run give sandboxes access to private networks, the host and metadata services;\n"+
			"by default only clients of the scope admin may")
}

func trustDaemonFlags(f *pflag.FlagSet, cfg *daemon.Config) {
	encryptionDaemonFlags(f, cfg)
	f.StringArrayVar(&cfg.Trust, "trust", nil,
		"policy for snapshots from outside that no trusted key has signed: require, warn or off; SOURCE=POLICY for\n"+
			"those of a registry (ghcr.io), of its repositories (ghcr.io/owner) or of archives (archive) (repeatable;\n"+
			"default require)")
	f.DurationVar(&cfg.LazyTimeout, "lazy-timeout", daemon.DefaultLazyTimeout,
		"how long sandboxes of a snapshot that is still arriving wait for a registry that does not answer; then they\n"+
			"are killed, and the snapshot has failed")
	f.StringVar(&cfg.TrustedKeys, "trusted-keys", "",
		"directory of the public keys that sign trusted snapshots: see 'forkd key trust'; changes apply at once\n"+
			"(default /etc/forkd/trusted-keys for root, else forkd/trusted-keys in $XDG_CONFIG_HOME or ~/.config)")
}

// encryptionDaemonFlags registers the flags about the keys of encrypted snapshots.
func encryptionDaemonFlags(f *pflag.FlagSet, cfg *daemon.Config) {
	f.StringVar(&cfg.KeyFile, "key-file", "",
		"file with 32 to 4096 random bytes, which encrypt the keys of encrypted snapshots (docs/encryption.md)")
	f.StringVar(&cfg.KMSCommand, "kms-command", "",
		"absolute path and arguments of a program that encrypts these keys instead; it receives 'wrap ID' or 'unwrap ID'\n"+
			"as further arguments, reads standard input and writes standard output")
	f.StringSliceVar(&cfg.KMSEnv, "kms-env", nil,
		"names of environment variables that this program gets, in addition to PATH, HOME and LANG (repeatable)")
}

// complete sets the fields of cfg that are parsed from the texts of flags, or that need a default.
func complete(cfg *daemon.Config, resolvers, peers []string) (err error) {
	if cfg.Resolvers, err = parseResolvers(resolvers); err != nil {
		return err
	}
	if cfg.Peers, err = parsePeers(peers); err != nil {
		return err
	}
	if cfg.TrustedKeys == "" {
		// A daemon without a home directory trusts no key.
		cfg.TrustedKeys, _ = configPath(trustedKeys)
	}
	return setSSH(cfg)
}

// onHangup receives SIGHUP until stop is called. It is used even if there is no log to reopen.
// Without it, SIGHUP would kill the daemon.
func onHangup() (hangups chan os.Signal, stop func()) {
	hangups = make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	return hangups, func() { signal.Stop(hangups) }
}

// parsePeers parses the rules of --allow-peer.
func parsePeers(texts []string) (rules []auth.PeerRule, err error) {
	for _, text := range texts {
		rule, err := auth.ParsePeer(text)
		if err != nil {
			return nil, usageError{fmt.Errorf("--allow-peer: %w", err)}
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

// probeKVM returns the reason why no VM can run on this host, or nil. After a timeout, the result
// sure is false, because VMs of an earlier daemon may keep the host busy.
func probeKVM() (sure bool, reason error) {
	err := kvm.Probe()
	if unfit := (*kvm.UnfitError)(nil); errors.As(err, &unfit) && unfit.Slow {
		return false, nil
	}
	return true, err
}

// daemonEnv maps options to environment variables. forkd 0.5's controller could take these options
// from these variables, and users rely on them, for example for the token file.
var daemonEnv = map[string]string{
	"bind": "FORKD_BIND", "token-file": "FORKD_TOKEN_FILE", "audit-log": "FORKD_AUDIT_LOG",
	"tls-cert": "FORKD_TLS_CERT", "tls-key": "FORKD_TLS_KEY", "branch-concurrency": "FORKD_BRANCH_CONCURRENCY",
}

// fromEnv sets each unset option whose variable is set.
func fromEnv(f *pflag.FlagSet, lookup func(string) (string, bool)) error {
	for option, name := range daemonEnv {
		if value, ok := lookup(name); ok && value != "" && !f.Changed(option) {
			if err := f.Set(option, value); err != nil {
				return usageError{fmt.Errorf("$%s: %w", name, plainFlagError(err))}
			}
		}
	}
	return nil
}

// parseResolvers reads addresses of DNS servers.
func parseResolvers(texts []string) (resolvers []netip.AddrPort, err error) {
	for _, text := range texts {
		a, err := netip.ParseAddrPort(text)
		if err != nil {
			host, err := netip.ParseAddr(text)
			if err != nil {
				return nil, usageError{fmt.Errorf("--resolver %q: want an address such as 9.9.9.9 or 127.0.0.1:5353", text)}
			}
			a = netip.AddrPortFrom(host, 53)
		}
		resolvers = append(resolvers, a)
	}
	return resolvers, nil
}
