package client

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// runDir makes the directories of a user without $XDG_RUNTIME_DIR and returns the path of the socket.
func runDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), runPrefix+"1", "forkd")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "forkd.sock")
}

// New refuses a socket that another user may have created.
func TestPrivateSocketIsNobodyElses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(dir string) error
		above  bool   // change the directory above the socket's directory
		want   string // empty: accepted
	}{
		"private":                 {func(string) error { return nil }, false, ""},
		"missing":                 {os.RemoveAll, true, ""},
		"readable":                {func(dir string) error { return os.Chmod(dir, 0o755) }, false, ""},
		"writable for the group":  {func(dir string) error { return os.Chmod(dir, 0o770) }, false, "has the mode 0770"},
		"writable for all, above": {func(dir string) error { return os.Chmod(dir, 0o777) }, true, "has the mode 0777"},
		"a link":                  {toLink, false, "is a symbolic link"},
		"a link above":            {toLink, true, "is a symbolic link"},
		"of a stranger":           {func(dir string) error { return os.Chown(dir, 4242, -1) }, true, "belongs to user 4242"},
	} {
		t.Run(name, func(t *testing.T) {
			socket := runDir(t)
			dir := filepath.Dir(socket)
			if c.above {
				dir = filepath.Dir(dir)
			}
			if name == "of a stranger" && os.Getuid() != 0 {
				t.Skip("only root gives files away")
			}
			if err := c.change(dir); err != nil {
				t.Fatal(err)
			}
			cl, err := New("unix://"+socket, "secret", WithPrivateSocket())
			if err == nil {
				cl.Close()
			}
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), dir+" "+c.want) ||
				!strings.Contains(err.Error(), "FORKD_URL=unix://PATH")) {
				t.Errorf("made with %v, want %q", err, c.want)
			}
			if cl, err = New("unix://"+socket, "secret"); err != nil {
				t.Errorf("a socket that the user names: %v", err)
			} else {
				cl.Close()
			}
		})
	}
}

// toLink replaces a directory with a link to the same directory.
func toLink(dir string) error {
	if err := os.Rename(dir, dir+".real"); err != nil {
		return err
	}
	return os.Symlink(dir+".real", dir)
}

// If another user creates the socket's directory after the check in New, the client sends no token.
func TestPrivateSocketThatAppearsLaterGetsNoToken(t *testing.T) {
	socket := runDir(t)
	dir := filepath.Dir(socket)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	cl, err := New("unix://"+socket, "secret", WithPrivateSocket())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.Healthy(t.Context()); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("without a socket: %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan int, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			got <- 0
			return
		}
		defer conn.Close()
		n, _ := conn.Read(make([]byte, 1))
		got <- n
	}()
	if err := cl.Healthy(t.Context()); err == nil || !strings.Contains(err.Error(), "has the mode 0777") {
		t.Errorf("with a socket of others: %v", err)
	}
	if n := <-got; n != 0 {
		t.Error("the other side was sent something")
	}
}
