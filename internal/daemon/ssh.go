package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/daemon/metrics"
	"github.com/forkd/forkd/internal/daemon/sshd"
	"github.com/forkd/forkd/internal/embedded"
	"github.com/forkd/forkd/internal/host/cgroup"
	"github.com/forkd/forkd/internal/jail"
)

// sshFace is the daemon's SSH server and its listener. A nil *sshFace serves nothing.
type sshFace struct {
	server   *sshd.Server
	listener net.Listener
	hostKey  ssh.PublicKey
	leaf     *cgroup.Leaf
}

// openSSH makes the SSH server of a configuration, or returns nil if the configuration has none.
// The caller must call serve() on the result, or close the result's listener.
func openSSH(cfg *Config, shared *face.Face, counts *metrics.Metrics, bin string, jails *jail.Starter,
	cgroups *cgroup.Tree) (*sshFace, error) {
	if cfg.SSH == "" {
		return nil, nil
	}
	program, err := install(bin, embedded.SSH)
	if err != nil {
		return nil, err
	}
	leaf, memory, err := sshLeaf(cgroups)
	if err != nil {
		return nil, err
	}
	keys, err := auth.OpenSSHKeys(cfg.SSHKeys, cfg.Log)
	if err != nil {
		return nil, err
	}
	hostKey, err := sshd.OpenHostKey(filepath.Join(cfg.StateDir, "ssh", "host_key"))
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", cfg.SSH)
	if err != nil {
		return nil, fmt.Errorf("--ssh: %w", err)
	}
	sftp := sshd.NewProgram(sshd.ProgramDir, func() ([]byte, error) { return embedded.Open(embedded.SFTP) })
	server := sshd.New(sshd.Config{Face: shared, Keys: keys, HostKey: hostKey,
		Process: sshd.Process{Bin: program, Jail: jails, Cgroup: leaf, Memory: memory},
		SFTP:    sftp, Counts: counts, Log: cfg.Log})
	return &sshFace{server, l, hostKey.PublicKey(), leaf}, nil
}

// sshLeaf makes the cgroup of all forkd-ssh processes. It also returns the memory limit of the
// cgroup, in bytes. When the processes together reach the limit, the kernel kills one of them. The
// leaf is nil if the host does not support limits.
func sshLeaf(cgroups *cgroup.Tree) (leaf *cgroup.Leaf, memory uint64, err error) {
	var host unix.Sysinfo_t
	if err := unix.Sysinfo(&host); err != nil {
		return nil, 0, fmt.Errorf("find the size of memory: %w", err)
	}
	memory = max(uint64(host.Totalram)*uint64(host.Unit)/sshMemoryShare, sshLeastMemory)
	if leaf, err = cgroups.NewShared("ssh", memory>>20, sshMaxPIDs); leaf == nil {
		memory = 0
	}
	return leaf, memory, err
}

// Limits of the cgroup of all forkd-ssh processes. Together they may use 1/sshMemoryShare of the
// host's memory, or sshLeastMemory bytes if that is more, and may have sshMaxPIDs threads. One
// process has about ten threads.
const (
	sshMemoryShare = 8
	sshLeastMemory = 512 << 20
	sshMaxPIDs     = 8192
)

// serve serves until ctx ends.
func (s *sshFace) serve(ctx context.Context, log *slog.Logger) {
	if s == nil {
		return
	}
	log.Info("listening", "address", "ssh://"+s.listener.Addr().String(), "host_key", ssh.FingerprintSHA256(s.hostKey))
	if err := s.server.Serve(ctx, s.listener); err != nil {
		log.Error("SSH is no longer served", "error", err)
	}
}

// info describes the server to clients.
func (s *sshFace) info() *apiv1.SSH {
	if s == nil {
		return nil
	}
	return &apiv1.SSH{Address: s.listener.Addr().String(),
		HostKey: strings.TrimSpace(string(ssh.MarshalAuthorizedKey(s.hostKey)))}
}

func (s *sshFace) close() {
	if s != nil {
		s.listener.Close()
		_ = s.leaf.Remove() // if this fails, the next daemon removes it
	}
}
