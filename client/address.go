package client

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Default returns a client of the daemon that the command forkd would use: the one at $FORKD_URL, with
// the token in $FORKD_TOKEN and, for https, the files in $FORKD_CA, $FORKD_CERT and $FORKD_KEY; else
// the one in the emulated host that runs ('forkd machine'); else the one at the socket of this user.
// Options are applied on top of that. Default does not connect yet.
func Default(options ...Option) (*Client, error) {
	address, token := os.Getenv("FORKD_URL"), os.Getenv("FORKD_TOKEN")
	if address == "" {
		if at, its, ok := emulated(); ok {
			return New(at, its, options...)
		}
		address = "unix://" + localSocket(os.Getuid())
	}
	files, err := tlsFiles()
	if err != nil {
		return nil, err
	}
	return New(address, token, append(files, options...)...)
}

// tlsFiles returns options for the files that the environment names.
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

// localSocket returns the socket of a daemon that the user started without options.
func localSocket(uid int) string {
	run := "/run"
	if uid != 0 {
		if run = os.Getenv("XDG_RUNTIME_DIR"); !filepath.IsAbs(run) {
			run = filepath.Join(os.TempDir(), fmt.Sprintf("forkd-run-%d", uid))
		}
	}
	return filepath.Join(run, "forkd", "forkd.sock")
}

// emulated returns address and token of the daemon in the emulated host, if the host is running.
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
