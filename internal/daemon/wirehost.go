package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/forkd/forkd/internal/atomicfile"
	"github.com/forkd/forkd/internal/embedded"
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
func startNet(cfg *Config, bin string, jails *jail.Starter, cgroups *cgroup.Tree) (*netclient.Client, error) {
	path, err := install(bin, netclient.Name)
	if err != nil {
		return nil, err
	}
	return netclient.New(netclient.Config{Bin: path, Dir: filepath.Join(cfg.RunDir, "net"), Resolvers: cfg.Resolvers,
		Proxy:     cfg.Proxy,
		Authority: filepath.Join(cfg.StateDir, "secrets-ca.pem"), FlowLog: cfg.FlowLog,
		Jail: jails, Cgroups: cgroups, Log: cfg.Log})
}

// openCgroups finds the cgroup for limits of sandboxes. It also returns the limits that cannot be
// enforced.
func openCgroups(cfg *Config) (tree *cgroup.Tree, missing string) {
	tree = cgroup.Open(cgroup.Config{Parent: cfg.Cgroup, RunDir: cfg.RunDir, StateDir: cfg.StateDir})
	err := tree.Missing()
	if err == nil {
		return tree, ""
	}
	cfg.Log.Warn("limits of sandboxes cannot all be enforced", "reason", err)
	return tree, err.Error()
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

// install writes an embedded program into dir. The parameter dir is not the run directory, because
// many hosts mount that directory with noexec. The file name has no version: running processes keep
// the old file open, and new processes use the new file. An identical file is kept, so that a
// daemon can start on a full disk. The users that a jail.Starter gives to processes can read and
// execute the program through dir, but cannot list dir. Only the daemon's user can change dir and
// the program.
func install(dir, name string) (string, error) {
	p, err := embedded.Open(name)
	if err != nil {
		return "", err
	}
	const dirMode, mode = 0o711, 0o555
	path := filepath.Join(dir, name)
	err = os.MkdirAll(dir, dirMode)
	if have, unread := os.ReadFile(path); err == nil && (unread != nil || !bytes.Equal(have, p)) {
		err = atomicfile.Write(path, p, mode)
	}
	if err == nil { // an earlier build or the umask may have set another mode
		err = errors.Join(os.Chmod(dir, dirMode), os.Chmod(path, mode))
	}
	if err != nil {
		return "", fmt.Errorf("install %s: %w", name, err)
	}
	return path, nil
}
