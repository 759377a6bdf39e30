package daemon

import (
	"fmt"
	"path/filepath"

	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/host/netclient"
	"github.com/forkd/forkd/internal/host/vault"
	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/private"
)

// openJails returns the starter of jailed VMMs, or an error if this host cannot jail them.
func openJails(cfg *Config, vmm string) (*jail.Starter, error) {
	jails, err := jail.New(cfg.Jail)
	if err == nil {
		err = jails.Try(vmm)
	}
	if err != nil {
		return nil, fmt.Errorf("VMMs cannot be locked up on this host (--no-namespaces locks them up less; see forkd doctor): %w", err)
	}
	if cfg.Jail.NoNamespaces {
		cfg.Log.Warn("VMMs and forkd-net have no namespaces of their own: a guest that takes one over has only the " +
			"filter of system calls, and Landlock, between itself and what the daemon's user may do")
	}
	return jails, nil
}

// startNet installs forkd-net. It connects to a running forkd-net, or starts one.
func (w *wired) startNet(cfg *Config, bin string, jails *jail.Starter) error {
	path, err := install(bin, netclient.Name)
	if err != nil {
		return err
	}
	w.net, err = netclient.New(netclient.Config{Bin: path, Dir: filepath.Join(cfg.RunDir, "net"), Resolvers: cfg.Resolvers,
		Proxy:     cfg.Proxy,
		Authority: filepath.Join(cfg.StateDir, "secrets-ca.pem"), FlowLog: cfg.FlowLog,
		Jail: jails, Cgroups: w.cgroups, Log: cfg.Log})
	return err
}

// openCgroups finds the cgroup for limits of sandboxes. The result lists the limits that cannot be
// enforced.
func (w *wired) openCgroups(cfg *Config) (missing string) {
	w.cgroups = cgroup.Open(cgroup.Config{Parent: cfg.Cgroup, RunDir: cfg.RunDir, StateDir: cfg.StateDir})
	err := w.cgroups.Missing()
	if err == nil {
		return ""
	}
	cfg.Log.Warn("limits of sandboxes cannot all be enforced", "reason", err)
	return err.Error()
}

// openVault opens the keys of encrypted snapshots.
func openVault(cfg *Config) (*vault.Vault, error) {
	command, err := vault.ParseCommand(cfg.KMSCommand)
	if err != nil {
		return nil, err
	}
	state, err := private.Dir(cfg.StateDir, "--state-dir") // the store does this later, with the same result
	if err != nil {
		return nil, err
	}
	defer state.Close()
	return vault.Open(vault.Config{Dir: filepath.Join(cfg.StateDir, "keys"), RAM: cfg.RAMDir, KeyFile: cfg.KeyFile,
		Command: command, Env: cfg.KMSEnv})
}
