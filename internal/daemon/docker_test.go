package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/daemon/auth"
)

// Only the daemon's user, and users that a rule admits, may connect to the socket of the Docker
// Engine API.
func TestDockerSocket(t *testing.T) {
	cfg := Config{Docker: filepath.Join(t.TempDir(), "d", "docker.sock")}
	mode := func() os.FileMode {
		t.Helper()
		l, err := listenDocker(&cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		i, err := os.Stat(cfg.Docker)
		if err != nil {
			t.Fatal(err)
		}
		return i.Mode().Perm()
	}
	if m := mode(); m != 0o600 {
		t.Errorf("mode %o", m)
	}
	if l, err := listenDocker(&Config{}); l != nil || err != nil {
		t.Errorf("without the option: %v, %v", l, err)
	}
	cfg.Peers = []auth.PeerRule{{ID: 1, Scope: auth.Run}}
	if m := mode(); m != 0o666 {
		t.Errorf("mode with a rule: %o", m)
	}
	first, err := listenDocker(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if _, err := listenDocker(&cfg); err == nil || !strings.Contains(err.Error(), "--docker-socket") {
		t.Errorf("second daemon: %v", err)
	}
	for _, wrong := range []Config{
		{Docker: "/run/x.sock", Socket: "/run/x.sock"},
		{Docker: "/run/forkd/x.sock", RunDir: "/run/forkd", Peers: cfg.Peers},
	} {
		if err := wrong.check(); err == nil || !strings.Contains(err.Error(), "--docker-socket") {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
}
