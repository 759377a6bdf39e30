package apirig

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"

	apiv1 "github.com/forkd/forkd/api/v1"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/face"
	"github.com/forkd/forkd/internal/daemon/metrics"
	"github.com/forkd/forkd/internal/daemon/sshd"
	"github.com/forkd/forkd/internal/jail"
)

// SSH configures the SSH server of a rig.
type SSH struct {
	Limits sshd.Limits
	Bin    string // path of forkd-ssh; see BuildSSH
	// Program returns the SFTP server, which is put into ProgramDir. This is a directory of this
	// host, because the guests are processes of this host.
	Program    func() ([]byte, error)
	ProgramDir string
}

// BuildSSH builds forkd-ssh in a directory, and returns its path.
func BuildSSH(dir string) (string, error) {
	path := filepath.Join(dir, "forkd-ssh")
	build := exec.Command("go", "build", "-o", path, "github.com/forkd/forkd/cmd/forkd-ssh")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build forkd-ssh: %w\n%s", err, out)
	}
	return path, os.Chmod(dir, 0o755) // in its jail, forkd-ssh runs as another user
}

// RunningSSH is the SSH server of a rig.
type RunningSSH struct {
	Addr    string // address of the server; empty: there is no server
	HostKey ssh.PublicKey
	KeyFile string // file of the clients' keys; missing at first
	Stop    func() // stops the server
}

// info describes the server to clients.
func (s *RunningSSH) info() *apiv1.SSH {
	if s.Addr == "" {
		return nil
	}
	return &apiv1.SSH{Address: s.Addr, HostKey: strings.TrimSpace(string(ssh.MarshalAuthorizedKey(s.HostKey)))}
}

// serveSSH serves SSH on a loopback address until t ends. If o is nil, it does nothing.
func (r *Rig) serveSSH(t T, o *SSH, dir string, shared *face.Face, counts *metrics.Metrics) {
	t.Helper()
	if o == nil {
		return
	}
	hostKey, err := sshd.OpenHostKey(filepath.Join(dir, "ssh", "host_key"))
	if err != nil {
		t.Fatal(err)
	}
	r.SSH.KeyFile = filepath.Join(dir, "ssh-keys")
	keys, err := auth.OpenSSHKeys(r.SSH.KeyFile, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	jails, err := jail.New(jail.Options{})
	if err != nil {
		t.Fatal(err)
	}
	server := sshd.New(sshd.Config{Face: shared, Keys: keys, HostKey: hostKey,
		Process: sshd.Process{Bin: o.Bin, Jail: jails}, Counts: counts, Limits: o.Limits,
		SFTP: sshd.NewProgram(o.ProgramDir, o.Program), Log: slog.New(slog.DiscardHandler)})
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if err := server.Serve(ctx, l); err != nil {
			t.Errorf("%v", err)
		}
	}()
	r.SSH.Addr, r.SSH.HostKey = l.Addr().String(), hostKey.PublicKey()
	r.SSH.Stop = func() {
		stop()
		<-stopped
	}
	t.Cleanup(r.SSH.Stop)
}
