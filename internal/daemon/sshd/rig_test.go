package sshd_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/daemon/auth"
	"github.com/forkd/forkd/internal/daemon/sshd"
	"github.com/forkd/forkd/internal/guest/agent"
	"github.com/forkd/forkd/internal/guest/sftpd"
)

// sftpEnv makes the test binary run as the SFTP server of a guest.
const sftpEnv = "FORKD_TEST_SFTP"

func TestMain(m *testing.M) {
	if os.Getenv(sftpEnv) != "" && os.Getenv(apirig.AgentDirEnv) == "" {
		os.Exit(sftpd.Main())
	}
	// If this process ignores SIGHUP, as under nohup, its children would ignore the signal too.
	// With a handler in this process, its children do not ignore the signal.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP)
	apirig.Main(cleaned{m}, agent.Main)
}

// rig is an SSH server over a rig of the API.
type rig struct {
	*apirig.Rig
	t        *testing.T
	id       string // id of a sandbox
	programs string // directory of the guests' SFTP server
}

// key is a key of a client.
type key struct {
	ssh.Signer
	file string // private key, for OpenSSH
}

func newKey(t *testing.T) key {
	t.Helper()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "test")
	if err != nil {
		t.Fatal(err)
	}
	k := key{signer, filepath.Join(t.TempDir(), "id")}
	if err := os.WriteFile(k.file, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	return k
}

// start serves SSH, and forks a sandbox.
func start(t *testing.T, o apirig.Options, limits sshd.Limits) *rig {
	t.Helper()
	t.Setenv("HOME", t.TempDir()) // the guests are processes of this host
	programs := t.TempDir()
	bin, err := program()
	if err != nil {
		t.Fatal(err)
	}
	o.Agent = apirig.SelfAgent
	o.SSH = &apirig.SSH{Limits: limits, Bin: bin, Program: sftpProgram, ProgramDir: programs}
	r := &rig{Rig: apirig.Start(t, o), t: t, programs: programs}
	if _, err := r.Bake(t.Context(), r.Parent); err != nil {
		t.Fatal(err)
	}
	r.id = r.fork(client.ForkRequest{})
	return r
}

// program builds forkd-ssh for all tests.
var program = sync.OnceValues(func() (path string, err error) {
	if programDir, err = os.MkdirTemp("", "sshd"); err != nil {
		return "", err
	}
	return apirig.BuildSSH(programDir)
})

var programDir string // removed after the tests

// cleaned runs tests, and removes what they have built.
type cleaned struct{ *testing.M }

func (c cleaned) Run() int {
	defer func() { _ = os.RemoveAll(programDir) }()
	return c.M.Run()
}

// sftpProgram returns a program that runs this test binary as the SFTP server.
func sftpProgram() ([]byte, error) {
	self, err := os.Executable()
	return fmt.Appendf(nil, "#!/bin/sh\nunset %s\n%s=1 exec %s\n", apirig.AgentDirEnv, sftpEnv, self), err
}

func (r *rig) fork(req client.ForkRequest) string {
	r.t.Helper()
	req.SnapshotTag, req.N = r.Parent.Tag, 1
	forked, err := r.Fork(r.t.Context(), req)
	if err != nil {
		r.t.Fatal(err)
	}
	return forked.Sandboxes[0].ID
}

// register registers a key for a token.
func (r *rig) register(k key, token string) {
	r.t.Helper()
	tokens, err := os.ReadFile(r.TokenFile)
	if err != nil {
		r.t.Fatal(err)
	}
	entry := auth.SSHKey{Key: k.PublicKey(), Comment: "test"}
	if err := auth.SSHKeyOfToken(&entry, tokens, token); err != nil {
		r.t.Fatal(err)
	}
	old, err := os.ReadFile(r.SSH.KeyFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.t.Fatal(err)
	}
	file, err := auth.AddSSHKey(old, entry)
	if err == nil {
		err = os.WriteFile(r.SSH.KeyFile, file, 0o600)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// dial logs in. The banner is the message that the server sends before it accepts or refuses the
// login.
func (r *rig) dial(user string, k ssh.Signer) (c *ssh.Client, banner string, err error) {
	c, err = ssh.Dial("tcp", r.SSH.Addr, &ssh.ClientConfig{User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(k)},
		HostKeyCallback: ssh.FixedHostKey(r.SSH.HostKey), Timeout: 20 * time.Second,
		BannerCallback: func(text string) error {
			banner += text
			return nil
		}})
	return c, banner, err
}

// client logs in with a new key of the token that has all rights.
func (r *rig) client() *ssh.Client {
	r.t.Helper()
	k := newKey(r.t)
	r.register(k, "default")
	c, _, err := r.dial(r.id, k)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c
}

func (r *rig) session(c *ssh.Client) *ssh.Session {
	r.t.Helper()
	s, err := c.NewSession()
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { s.Close() })
	return s
}

// openSSH returns an OpenSSH command with options for the rig.
func (r *rig) openSSH(k key, program string, args ...string) *exec.Cmd {
	r.t.Helper()
	needs(r.t, program)
	known := filepath.Join(r.t.TempDir(), "known_hosts")
	line := "forkd " + string(ssh.MarshalAuthorizedKey(r.SSH.HostKey))
	if err := os.WriteFile(known, []byte(line), 0o600); err != nil {
		r.t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(r.SSH.Addr)
	config := fmt.Sprintf("Host box\n\tHostName 127.0.0.1\n\tPort %s\n\tUser %s\n\tHostKeyAlias forkd\n\tUserKnownHostsFile %s\n"+
		"\tIdentityFile %s\n\tIdentitiesOnly yes\n\tIdentityAgent none\n\tBatchMode yes\n\tStrictHostKeyChecking yes\n",
		port, r.id, known, k.file)
	file := filepath.Join(r.t.TempDir(), "config")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		r.t.Fatal(err)
	}
	switch program {
	case "ssh", "scp", "sftp":
		args = append([]string{"-F", file}, args...)
	}
	cmd := r.plain(program, args...)
	cmd.Env = append(os.Environ(), "GIT_SSH_COMMAND=ssh -F "+file, "RSYNC_RSH=ssh -F "+file)
	return cmd
}

// plain() returns a command that is killed after a minute.
func (r *rig) plain(program string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	r.t.Cleanup(cancel)
	return exec.CommandContext(ctx, program, args...)
}

func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("this host has no %s", program)
	}
}

// output runs a command that must succeed.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v\n%s%s", cmd.Args, err, out, stderr.Bytes())
	}
	return string(out)
}

// eventually() waits until f returns true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// buffer collects output for a test.
type buffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

func (b *buffer) has(text string) func() bool {
	return func() bool { return strings.Contains(b.String(), text) }
}
