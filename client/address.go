package client

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// Default returns a client of the daemon that the command forkd would use. If $FORKD_URL is set, it
// names that daemon; the token is in $FORKD_TOKEN, and the TLS files for https are in $FORKD_CA,
// $FORKD_CERT and $FORKD_KEY. If $FORKD_URL is not set, the client uses the daemon in the emulated
// host ('forkd machine') if that host is running, or else the daemon at this user's socket. Options
// are applied after the environment. Default does not connect yet.
func Default(options ...Option) (*Client, error) {
	address, token := os.Getenv("FORKD_URL"), os.Getenv("FORKD_TOKEN")
	if address == "" {
		if at, its, ok := emulated(); ok {
			return New(at, its, options...)
		}
		address = "unix://" + localSocket(os.Getuid())
		options = append([]Option{WithPrivateSocket()}, options...)
	}
	files, err := tlsFiles()
	if err != nil {
		return nil, err
	}
	return New(address, token, append(files, options...)...)
}

// tlsFiles returns options for the TLS files that $FORKD_CA, $FORKD_CERT and $FORKD_KEY name.
func tlsFiles() (options []Option, err error) {
	read := func(name string) (p []byte) {
		path := os.Getenv(name)
		if path == "" || err != nil {
			return nil
		}
		if p, err = os.ReadFile(path); err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		return p
	}
	ca, cert, key := read("FORKD_CA"), read("FORKD_CERT"), read("FORKD_KEY")
	if err != nil {
		return nil, err
	}
	if (cert == nil) != (key == nil) {
		return nil, wrong("FORKD_KEY", "goes with FORKD_CERT: set both or none")
	}
	if ca != nil {
		options = append(options, WithCA(ca))
	}
	if cert != nil {
		options = append(options, WithCertificate(cert, key))
	}
	return options, nil
}

// localSocket returns the default socket path of a daemon that the user started.
func localSocket(uid int) string {
	run := "/run"
	if uid != 0 {
		if run = os.Getenv("XDG_RUNTIME_DIR"); !filepath.IsAbs(run) {
			run = filepath.Join(os.TempDir(), fmt.Sprint(runPrefix, uid))
		}
	}
	return filepath.Join(run, "forkd", "forkd.sock")
}

// dialSocket connects to a unix socket. dialSocket checks a private socket after it has connected
// and before it sends anything, because the socket's directory may have been created after New.
func dialSocket(ctx context.Context, path string, private bool) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil || !private {
		return conn, err
	}
	if err := checkSocket(path); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// runPrefix is the prefix of a user's socket directory in the directory for temporary files. Any
// user can create a directory with such a name.
const runPrefix = "forkd-run-"

// checkSocket returns an error if a user other than root and the current user may have created the
// unix socket at path. It accepts missing directories, because a connect then fails.
func checkSocket(path string) error {
	dirs := []string{filepath.Dir(path)}
	if above := filepath.Dir(dirs[0]); strings.HasPrefix(filepath.Base(above), runPrefix) {
		dirs = []string{above, dirs[0]}
	}
	for _, dir := range dirs {
		s, err := os.Lstat(dir)
		if err != nil {
			return nil
		}
		reason := ""
		switch uid, known := ownerOf(s); {
		case !s.IsDir():
			reason = "is a symbolic link or not a directory"
		case known && uid != 0 && uid != os.Getuid():
			reason = fmt.Sprintf("belongs to user %d", uid)
		case s.Mode().Perm()&0o022 != 0:
			reason = fmt.Sprintf("has the mode %#o, with which other users can write to it", s.Mode().Perm())
		default:
			continue
		}
		return fmt.Errorf("%s %s, so the daemon's socket below it may be somebody else's: remove the directory and"+
			" start the daemon again, or start it with another --socket, and set FORKD_URL=unix://PATH to that", dir, reason)
	}
	return nil
}

// emulated returns the address and token of the daemon in the emulated host, if that host is
// running.
func emulated() (address, token string, ok bool) {
	cache := os.Getenv("FORKD_CACHE")
	if xdg := os.Getenv("XDG_CACHE_HOME"); cache == "" && filepath.IsAbs(xdg) {
		cache = filepath.Join(xdg, "forkd")
	}
	if home := os.Getenv("HOME"); cache == "" && filepath.IsAbs(home) {
		cache = filepath.Join(home, ".cache", "forkd")
	}
	if !filepath.IsAbs(cache) {
		return "", "", false
	}
	dir := filepath.Join(cache, "machine", cmp.Or(os.Getenv("FORKD_MACHINE"), "default"))
	p, err := os.ReadFile(filepath.Join(dir, "state.json"))
	var state struct {
		Phase      string `json:"phase"`
		DaemonAddr string `json:"daemon_addr"`
	}
	if err != nil || json.Unmarshal(p, &state) != nil || state.Phase != "ready" ||
		!isLocked(filepath.Join(dir, "supervisor.lock")) {
		return "", "", false
	}
	if p, err = os.ReadFile(filepath.Join(dir, "daemon", "token")); err != nil {
		return "", "", false
	}
	return "http://" + state.DaemonAddr, strings.TrimSpace(string(p)), true
}
