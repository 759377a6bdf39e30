package integration_test

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"github.com/forkd/forkd/client"
)

// TestSSH uses a sandbox over SSH: commands, files in both directions, a port, and a sandbox that was
// suspended because it was idle.
func TestSSH(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "ssh-keys")
	d := load(t).start(t, withArgs("--ssh", "0", "--ssh-keys", keys))
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	public := filepath.Join(t.TempDir(), "id.pub")
	if err := os.WriteFile(public, ssh.MarshalAuthorizedKey(signer.PublicKey()), 0o600); err != nil {
		t.Fatal(err)
	}
	d.cli(t, 0, "ssh-key", "add", public, "--file", keys)
	version, err := d.Version(t.Context())
	if err != nil || version.SSH == nil {
		t.Fatalf("%+v, %v", version, err)
	}
	hostKey, _, _, _, err := ssh.ParseAuthorizedKey([]byte(version.SSH.HostKey))
	if err != nil {
		t.Fatal(err)
	}
	dial := func(login string) *ssh.Client {
		t.Helper()
		c, err := ssh.Dial("tcp", version.SSH.Address, &ssh.ClientConfig{User: login,
			Auth:            []ssh.AuthMethod{ssh.PublicKeys(signer)},
			HostKeyCallback: ssh.FixedHostKey(hostKey), Timeout: quietLimit})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	run := func(c *ssh.Client, command string) string {
		t.Helper()
		s, err := c.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		out, err := s.CombinedOutput(command)
		if err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
		return string(out)
	}
	s := d.fork(t, 1)[0]
	c := dial(s.ID)
	if out := run(c, "hostname; echo $HOME $SHELL"); !strings.HasPrefix(out, s.Hostname+"\n/") {
		t.Errorf("%q", out)
	}
	testSFTP(t, c, func(command string) string { return run(c, command) })
	d.startServers(t, s.ID)
	conn, err := c.Dial("tcp", "localhost:8000")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "GET /1000 HTTP/1.0\r\n\r\n")
	if got, err := io.ReadAll(conn); !bytes.HasPrefix(got, []byte("HTTP/1.")) {
		t.Errorf("%.100q, %v", got, err)
	}
	conn.Close()
	if _, err := c.Dial("tcp", "192.0.2.1:53"); err == nil {
		t.Error("the daemon connects to addresses other than the guest's own")
	}

	forked, err := d.Fork(d.ctx(t, bakeLimit), client.ForkRequest{SnapshotTag: tag, N: 1, IdleTimeoutSecs: idleTimeout})
	if err != nil {
		t.Fatal(err)
	}
	idle := forked.Sandboxes[0].ID
	c = dial(idle)
	run(c, "echo kept >/root/note")
	d.inState(t, idle, "suspended")
	if out := run(c, "cat /root/note"); out != "kept\n" {
		t.Errorf("%q", out)
	}
	other, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	other.Stderr = &stderr
	if err := other.Start("sleep 1000"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Rollback(d.ctx(t, bakeLimit), idle, ""); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- other.Wait() }()
	select {
	case <-ended:
		if !strings.Contains(stderr.String(), "rolled back") {
			t.Errorf("%q", stderr.String())
		}
	case <-time.After(quietLimit):
		t.Error("the session survives a rollback")
	}
	d.kill(t, s, client.Sandbox{ID: idle})
}

// testSFTP copies a file into a guest and back. It calls run to run a command in the guest.
func testSFTP(t *testing.T, c *ssh.Client, run func(string) string) {
	t.Helper()
	files, err := sftp.NewClient(c)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	to, err := files.Create("/tmp/large")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := to.Write(large); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	if out := run("wc -c </tmp/large && ls /run/forkd | grep -c sftp-"); out != "1048576\n1\n" {
		t.Errorf("%q", out)
	}
	from, err := files.Open("/tmp/large")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	if got, err := io.ReadAll(from); !bytes.Equal(got, large) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := files.Open("/no/such/file"); !os.IsNotExist(err) {
		t.Error(err)
	}
}
