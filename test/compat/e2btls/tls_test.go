// Package e2btls tests that E2B's published SDKs reach sandboxes by host names over TLS, with the
// certificates and the environment that `forkd e2b setup` makes.
//
// The API is the real one over fake VMs. Each VM has a real agent, which is a process of this host.
// The SDK's program has its own /etc/hosts, in which all names resolve to this host. scripts/compat
// runs this package.
package e2btls

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/cli"
	"github.com/forkd/forkd/internal/guest/agent"
)

// Environment variables. run.py sets programEnv to a command that uses an SDK.
const (
	programEnv = "E2B_TLS_PROGRAM"
	agentEnv   = "E2B_TLS_AGENT" // makes the test binary an agent
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(agentEnv); dir != "" {
		os.Exit(agent.Main([]string{"-listen-dir", dir}, os.Stderr))
	}
	os.Exit(m.Run())
}

// ownHosts runs a command in a mount namespace in which the file $1 is /etc/hosts. The command may
// append to that file.
const ownHosts = `mount --bind "$1" /etc/hosts; shift; exec "$@"`

// ownSystem runs an agent as root. The agent cannot change accounts or devices of this host. The
// agent's login shells do not read this user's profile, because the profile is not under test.
// Profiles can also be slow. For example, a profile may start pyenv, which waits a minute for a
// lock that a killed shell has left.
const ownSystem = `for d in /etc /dev; do
	mount --rbind "$d" "$d"
	mount -o remount,bind,ro "$d"
done
for f in .bash_profile .bash_login .profile; do
	[ ! -e "$HOME/$f" ] || mount --bind /dev/null "$HOME/$f"
done
exec "$@"`

func TestSDK(t *testing.T) {
	program := os.Getenv(programEnv)
	if program == "" {
		t.Skip(programEnv + " is not set: run scripts/compat e2btls")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	domain, dir := "e2b.localhost:"+port, filepath.Join(t.TempDir(), "e2b")
	forkd(t, "e2b", "setup", "--dir", dir, "--domain", domain)
	rig := apirig.Start(t, apirig.Options{Domain: "https://" + domain, Agent: func(dir string) *exec.Cmd {
		cmd := exec.Command("unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", ownSystem, "sh", self)
		cmd.Env = append(os.Environ(), agentEnv+"="+dir)
		return cmd
	}})
	parent := rig.Parent
	parent.Tag = "base"
	if _, err := rig.Bake(t.Context(), parent); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	var http2 atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 && strings.HasPrefix(r.Host, "49983-") {
			http2.Add(1)
		}
		rig.Server.Config.Handler.ServeHTTP(w, r)
	}))
	server.Listener.Close()
	server.Listener, server.EnableHTTP2, server.TLS = l, true, &tls.Config{Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	defer server.Close()

	t.Setenv("FORKD_TOKEN", apirig.Token)
	t.Setenv("FORKD_URL", rig.URL)
	env := map[string]string{}
	if err := json.Unmarshal(forkd(t, "e2b", "env", "--dir", dir, "-o", "json"), &env); err != nil {
		t.Fatal(err)
	}
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte("127.0.0.1 localhost api.e2b.localhost\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"--user", "--map-root-user", "--mount", "sh", "-ec", ownHosts, "sh", hosts},
		strings.Fields(program)...)
	cmd := exec.CommandContext(t.Context(), "unshare", args...)
	cmd.Env = os.Environ()
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
	if http2.Load() == 0 {
		t.Error("the SDK has not used HTTP/2")
	}
}

func forkd(t *testing.T, args ...string) []byte {
	t.Helper()
	var out, errs bytes.Buffer
	if code := cli.Main(args, cli.Stdio{In: strings.NewReader(""), Out: &out, Err: &errs}); code != 0 {
		t.Fatalf("forkd %q: exit code %d: %s", args, code, errs.String())
	}
	return out.Bytes()
}
