package cli

import (
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	ociregistry "github.com/google/go-containerregistry/pkg/registry"
	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/apirig"
	"github.com/forkd/forkd/internal/embedded"
)

// agentHere returns a command that runs an agent on this host, with the host as its guest.
func agentHere(dir string) *exec.Cmd { return exec.Command("forkd-agent", "-listen-dir", dir) }

// TestScriptsWithDaemon runs scripts against an API in which agents on this host stand in for
// guests. $ID is the id of a sandbox of the snapshot "base". The guest sees the script's files.
func TestScriptsWithDaemon(t *testing.T) {
	program, err := apirig.BuildSSH(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	setup := func(env *testscript.Env) error {
		keys := env.WorkDir + "/trusted-keys"
		rig := apirig.Start(t, apirig.Options{Agent: agentHere, GuestPort: guestPort(t), TrustedKeys: keys,
			SSH: &apirig.SSH{Bin: program, ProgramDir: t.TempDir(),
				Program: func() ([]byte, error) { return embedded.Open(embedded.SFTP) }}})
		parent := rig.Parent
		parent.Tag = "base"
		if _, err := rig.Bake(t.Context(), parent); err != nil {
			return err
		}
		f, err := rig.Fork(t.Context(), client.ForkRequest{SnapshotTag: "base", N: 1})
		if err != nil {
			return err
		}
		env.Setenv("HOME", env.WorkDir)
		env.Setenv("FORKD_CACHE", env.WorkDir+"/cache")
		env.Setenv("FORKD_URL", rig.URL)
		env.Setenv("FORKD_TOKEN", apirig.Token)
		registry := httptest.NewServer(ociregistry.New(ociregistry.Logger(stdlog.New(io.Discard, "", 0))))
		env.Defer(registry.Close)
		env.Setenv("REGISTRY", strings.TrimPrefix(registry.URL, "http://"))
		web := httptest.NewServer(&webServer{})
		env.Defer(web.Close)
		env.Setenv("WEB", web.URL)
		env.Setenv("TRUSTED_KEYS", keys)
		env.Setenv("ID", f.Sandboxes[0].ID)
		env.Setenv("AUDIT", rig.AuditLog)
		env.Setenv("TOKENS", rig.TokenFile)
		env.Setenv("SSH_KEYS", rig.SSH.KeyFile)
		env.Setenv("USER", os.Getenv("USER"))
		return nil
	}
	mapGuestRAM(t)
	testscript.Run(t, testscript.Params{Dir: "testdata/daemon", Setup: setup,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code": wantCode,
		}, Condition: condition})
}

// webServer keeps one file for each path, as a bucket does. It accepts only requests that have a
// signature in the query, and an upload only with its length.
type webServer struct{ files sync.Map }

func (s *webServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.RawQuery != "signature=secret" {
		http.Error(w, "", http.StatusForbidden)
		return
	}
	switch r.Method {
	case http.MethodPut:
		p, err := io.ReadAll(r.Body)
		if err != nil || int64(len(p)) != r.ContentLength {
			http.Error(w, "", http.StatusLengthRequired)
			return
		}
		s.files.Store(r.URL.Path, p)
	case http.MethodGet:
		if r.URL.Path == "/away" { // redirect to a server without TLS
			http.Redirect(w, r, "http://host.test/one.tar?signature=secret", http.StatusFound)
			return
		}
		p, ok := s.files.Load(r.URL.Path)
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(p.([]byte))
	}
}

// mapGuestRAM maps guest memory into this process, which stands in for the VMM. The statistics of
// guests measure this memory.
func mapGuestRAM(t *testing.T) {
	t.Helper()
	ram, err := unix.Mmap(-1, 0, 512<<20, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(ram) })
}

// guestPort returns an unused port below the range from which the kernel assigns ports by itself.
func guestPort(t *testing.T) int {
	for port := 20000 + os.Getpid()%10000; port < 32768; port++ {
		l, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port))
		if err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}
