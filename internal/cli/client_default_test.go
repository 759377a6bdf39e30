package cli

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/client"
)

// Without an address, package client finds the same daemon as the forkd command.
func TestClientsFindTheDaemonOfTheCommand(t *testing.T) {
	for _, name := range []string{"FORKD_URL", "FORKD_TOKEN", "FORKD_MACHINE", "FORKD_CA", "FORKD_CERT", "FORKD_KEY",
		"XDG_CACHE_HOME"} {
		t.Setenv(name, "")
	}
	cache := t.TempDir()
	t.Setenv("FORKD_CACHE", cache)
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	same := func(what string) (address string) {
		t.Helper()
		address, _, err := locate(t.Context(), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		c, err := client.Default()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if c.Address() != address {
			t.Errorf("%s: the client is for %s, and the command for %s", what, c.Address(), address)
		}
		return address
	}
	same("no daemon at all")
	if os.Getuid() != 0 { // root's socket is elsewhere
		dir := filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "forkd")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)); err != nil {
			t.Fatal(err)
		}
		_, _, err := connect(t.Context(), "", nil)
		if _, its := client.Default(); err == nil || its == nil || its.Error() != err.Error() {
			t.Errorf("a socket that others can have made: the command says %v, the client %v", err, its)
		}
		named, _, err := connect(t.Context(), "unix://"+filepath.Join(dir, "forkd.sock"), nil)
		if err != nil {
			t.Fatal(err)
		}
		named.Close()
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}

	machine := filepath.Join(cache, "machine", "default")
	if err := os.MkdirAll(filepath.Join(machine, "daemon"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"state.json": `{"phase":"ready","daemon_addr":"127.0.0.1:4321"}`,
		"daemon/token": "0123456789abcdef\n"} {
		if err := os.WriteFile(filepath.Join(machine, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lock, err := os.Create(filepath.Join(machine, "supervisor.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	same("an emulated host that has ended")
	if err := unix.FcntlFlock(lock.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	if got := same("an emulated host"); got != "http://127.0.0.1:4321" {
		t.Errorf("the emulated host was not found, but %s", got)
	}
	t.Setenv("FORKD_URL", "http://127.0.0.1:1234")
	if got := same("$FORKD_URL"); got != "http://127.0.0.1:1234" {
		t.Errorf("got %s", got)
	}
	t.Setenv("FORKD_CA", filepath.Join(cache, "none"))
	if _, err := client.Default(); err == nil {
		t.Error("a missing $FORKD_CA was passed over")
	}
}
