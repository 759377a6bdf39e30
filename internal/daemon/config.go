package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/inbound"
	"github.com/forkd/forkd/internal/format/snapshot"
	"github.com/forkd/forkd/internal/host/admit"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/host/hub"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/private"
)

// Config configures a daemon.
type Config struct {
	Socket    string          // unix socket; empty: none
	Docker    string          // unix socket of the Docker Engine API; empty: none
	Bind      string          // TCP address; empty: none
	Peers     []auth.PeerRule // users that may use the socket, in addition to root and the daemon's own user
	TLS       TLS             // TLS on the TCP address
	TokenFile string          // clients on TCP must have a token from this file; empty: no token is needed
	SSH       string          // address of the SSH server, host:port; empty: none
	SSHKeys   string          // file of the keys of SSH clients; see auth.ParseSSHKeys
	Webhooks  string          // file of the servers that receive events; empty: none. See webhook.Open.
	// Host names that requests without a token may use on TCP, in addition to those of the loopback
	// interface.
	Hosts []string
	// Parent domain of the host names of ports; empty: ports have no host names. See
	// inbound.ParseDomain.
	ProxyDomain string
	// Rules about snapshots from outside (see hub.ParseTrust), and the directory of the trusted
	// public keys.
	Trust       []string
	TrustedKeys string
	LazyTimeout time.Duration // see hub.Config; 0: the default
	KeyFile     string        // file with the secret that wraps the keys of encrypted snapshots; empty: none
	KMSCommand  string        // program that wraps the keys, and its arguments; empty: none. See vault.ParseCommand
	KMSEnv      []string      // names of variables that this program gets, see vault.Config
	StateDir    string        // snapshots and private disks
	RAMDir      string        // tmpfs for hot memory layers
	RunDir      string        // sockets and records of running sandboxes
	AuditLog    string        // file for the audit log; empty: none
	FlowLog     string        // file for the log of sandboxes' connections; empty: none
	// On each signal, the daemon opens the logs again. Another program sends the signal after it
	// has renamed the files. May be nil.
	Reopen        <-chan os.Signal
	Resolvers     []netip.AddrPort // DNS servers for sandboxes; if empty, the servers in /etc/resolv.conf
	Cgroup        string           // parent of the VMs' cgroups; see cgroup.Config.Parent
	Admit         admit.Rules
	Proxy         netclient.Proxy // proxy for outgoing TCP connections of sandboxes
	MaxVolumesGiB uint64          // maximum size of all volumes of one owner together, in GiB; 0: no limit
	// Clients with the scope run may allow sandboxes to connect to private networks and to the
	// host.
	OpenPrivate bool
	PoolSize    int      // waiting VMM processes per machine shape; 0: none
	PoolMost    int      // temporary maximum of PoolSize, used after forks found too few waiting processes
	Branches    int      // maximum number of concurrent branches; 0 means 4
	CmdlineArgs []string // added to the kernel command line of parents
	CPUTemplate string   // CPU template of parents
	Accel       string   // "kvm" or "tcg", as shown in reports
	// Port of the addresses that clients of forkd 0.5 get for sandboxes. The command `forkd
	// forward-guests` listens on these addresses. 0: none.
	GuestPort  int
	Node       string // name of this host in a cluster, by which the ids of new sandboxes identify it; empty: none
	KillOnExit bool   // kill all sandboxes when the daemon stops
	Jail       jail.Options
	Version    string
	Log        *slog.Logger

	// Probe runs a few guest instructions. It returns the reason why no VM can run on this host, or
	// nil if VMs can run. It also reports whether this result is certain. Without KVM the daemon
	// still serves requests that need no VM. If Probe is nil, the daemon assumes that VMs work.
	Probe func() (sure bool, reason error)
}

// Defaults fills in the directories and the socket for the calling user: system directories for
// root, and the directories of the XDG Base Directory specification for other users.
func (c *Config) Defaults(uid int, getenv func(string) string) error {
	state, run := "/var/lib/forkd", "/run/forkd"
	if uid != 0 {
		home := getenv("HOME")
		if state = getenv("XDG_STATE_HOME"); !filepath.IsAbs(state) {
			state = filepath.Join(home, ".local", "state")
		}
		if run = getenv("XDG_RUNTIME_DIR"); !filepath.IsAbs(run) {
			run = filepath.Join(os.TempDir(), fmt.Sprintf("forkd-run-%d", uid))
		}
		if !filepath.IsAbs(state) {
			return errors.New("no directory for the daemon's state: set HOME, or give --state-dir")
		}
		state, run = filepath.Join(state, "forkd"), filepath.Join(run, "forkd")
	}
	for _, d := range []struct {
		field *string
		def   string
	}{
		{&c.StateDir, state}, {&c.RunDir, run}, {&c.RAMDir, fmt.Sprintf("/dev/shm/forkd-%d", uid)},
	} {
		if *d.field == "" {
			*d.field = d.def
		}
	}
	if c.Socket == "" && c.Bind == "" {
		c.Socket = filepath.Join(c.RunDir, "forkd.sock")
	}
	return nil
}

// SetProxy parses the option --upstream-proxy: a URL, or "env" for the environment variables. A URL
// on the command line must not contain a password: every user of this host can read command lines.
func (c *Config) SetProxy(text string, getenv func(string) string) (err error) {
	switch {
	case text == "":
		return nil
	case text == "env":
		text = cmp.Or(getenv("HTTPS_PROXY"), getenv("https_proxy"))
	case strings.Contains(text, "@"):
		return errors.New("--upstream-proxy: a user and a password are only taken from HTTPS_PROXY, by --upstream-proxy env")
	}
	if c.Proxy, err = netclient.ParseProxy(text, cmp.Or(getenv("NO_PROXY"), getenv("no_proxy"))); err != nil {
		return fmt.Errorf("--upstream-proxy: %w", err)
	}
	return nil
}

// domain returns the parent domain of host names. A missing port is replaced by the port of the
// daemon's address.
func (c *Config) domain() (d inbound.Domain, err error) {
	if c.ProxyDomain == "" {
		return d, nil
	}
	if d, err = inbound.ParseDomain(c.ProxyDomain); err != nil {
		return d, fmt.Errorf("--proxy-domain %w", err)
	}
	if _, port, err := net.SplitHostPort(c.Bind); err == nil && port != "0" && !strings.Contains(c.ProxyDomain, "://") {
		d = d.WithPort(port)
	}
	return d, nil
}

// trust returns the rules about snapshots from outside.
func (c *Config) trust() (hub.Trust, error) {
	t, err := hub.ParseTrust(c.TrustedKeys, c.Trust)
	if err != nil {
		err = fmt.Errorf("--trust %w", err)
	}
	return t, err
}

// check reports errors in a configuration.
func (c *Config) check() error {
	if _, err := c.domain(); err != nil {
		return err
	}
	if _, err := c.trust(); err != nil {
		return err
	}
	if err := c.TLS.check(c.Bind); err != nil {
		return err
	}
	if c.Node != "" {
		if err := snapshot.CheckNode(c.Node); err != nil {
			return fmt.Errorf("--node: %w", err)
		}
	}
	if _, _, err := net.SplitHostPort(c.SSH); c.SSH != "" && err != nil {
		return fmt.Errorf("--ssh %q: want host:port: %w", c.SSH, err)
	}
	if strings.HasPrefix(c.Socket, c.RunDir+"/") && len(c.Peers) > 0 {
		return fmt.Errorf("--allow-peer: nobody else reaches %s, whose directory is the daemon's alone: give another --socket, "+
			"such as /run/forkd.sock", c.Socket)
	}
	if strings.HasPrefix(c.Docker, c.RunDir+"/") && len(c.Peers) > 0 {
		return fmt.Errorf("--allow-peer: nobody else reaches %s, whose directory is the daemon's alone: give another "+
			"--docker-socket, such as /run/forkd-docker.sock", c.Docker)
	}
	if c.Docker != "" && c.Docker == c.Socket {
		return fmt.Errorf("--docker-socket %s: this is also the path of --socket: give another path", c.Docker)
	}
	for flag, dir := range map[string]string{"--state-dir": c.StateDir, "--ram-dir": c.RAMDir, "--run-dir": c.RunDir} {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("%s %q: want an absolute path", flag, dir)
		}
	}
	if c.PoolSize < 0 || c.PoolSize > maxPool {
		return fmt.Errorf("--pool %d: want 0 to %d", c.PoolSize, maxPool)
	}
	if c.PoolMost < 0 || c.PoolMost > maxPool {
		return fmt.Errorf("--pool-most %d: want 0 to %d", c.PoolMost, maxPool)
	}
	if a := c.Admit; a.MaxSandboxes < 0 || !(a.VCPUsPerCPU >= 0 && a.VCPUsPerCPU <= maxOvercommit) {
		return fmt.Errorf("--max-sandboxes %d, --vcpu-overcommit %g: want 0 or more, and at most %d of the latter",
			a.MaxSandboxes, a.VCPUsPerCPU, maxOvercommit)
	}
	if c.MaxVolumesGiB > maxVolumesGiB {
		return fmt.Errorf("--max-volumes-gib %d: want 0 to %d", c.MaxVolumesGiB, maxVolumesGiB)
	}
	if c.LazyTimeout != 0 && (c.LazyTimeout < time.Second || c.LazyTimeout > maxLazyTimeout) {
		return fmt.Errorf("--lazy-timeout %v: want 1s to %v", c.LazyTimeout, maxLazyTimeout)
	}
	if c.GuestPort < 0 || c.GuestPort > 65535 {
		return fmt.Errorf("--guest-port %d: want 1 to 65535, or 0 for no addresses", c.GuestPort)
	}
	if c.Branches < 0 || c.Branches > maxBranches {
		return fmt.Errorf("--branch-concurrency %d: want 1 to %d", c.Branches, maxBranches)
	}
	return nil
}

// checkDirs makes the daemon's directories and refuses directories that other users can change.
// Other users know the paths and can write to some of the parent directories. A user who could
// change a directory's content could replace guest memory or take over control sockets.
func (c *Config) checkDirs() error {
	for _, d := range []struct{ option, path string }{
		{"--state-dir", c.StateDir}, {"--ram-dir", c.RAMDir}, {"--run-dir", c.RunDir},
	} {
		f, err := private.Dir(d.path, d.option)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

const maxBranches = 64

const maxPool = 1000

const maxOvercommit = 10_000 // vCPUs per CPU

const maxVolumesGiB = 1 << 30

// Default and maximum of Config.LazyTimeout.
const (
	DefaultLazyTimeout = hub.LazyTimeout
	maxLazyTimeout     = 24 * time.Hour
)

// DefaultReserve returns how much host memory is withheld from sandboxes by default, in bytes. It
// is enough for the rest of the system, and it is only a small share of a small host's memory.
func DefaultReserve() uint64 { return min(bake.HostMemoryMiB()/32, 512) << 20 }

// DefaultDiskReserve is the disk space withheld from sandboxes by default, in bytes. A sandbox that
// writes to a full disk is paused, so it should not start when the disk is almost full.
const DefaultDiskReserve = 64 << 20
