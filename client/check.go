package client

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	v1 "github.com/forkd/forkd/api/v1"
)

// ArgumentError says that an argument of a call is wrong. Nothing was sent.
type ArgumentError struct {
	Field  string // name of the argument, or of the request's field in the API, such as "timeout_secs"
	Reason string
	Err    error // the error that Reason describes, if any
}

func (e *ArgumentError) Error() string { return e.Field + ": " + e.Reason }

func (e *ArgumentError) Unwrap() error { return e.Err }

func wrong(field, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &ArgumentError{Field: field, Reason: err.Error(), Err: errors.Unwrap(err)}
}

// Bounds of requests, equal to the daemon's bounds.
const (
	maxChildren = 1000
	maxTry      = 24 * time.Hour      // maximum run time of a command or judge of a try
	maxCode     = time.Hour           // maximum run time of code
	maxCommand  = 30 * 24 * time.Hour // maximum run time of a command whose output is streamed
	maxDepth    = 64
)

// checkPath refuses a path that a server would not parse as intended. For example, if the id is
// empty, the server would take the next segment as the id.
func checkPath(of string) error {
	of, _, _ = strings.Cut(of, "?")
	if path.Clean(of) == of {
		return nil
	}
	field := "name"
	switch {
	case strings.HasPrefix(of, "/v1/sandboxes/"):
		field = "id"
	case strings.HasPrefix(of, "/v1/snapshots/"):
		field = "tag"
	}
	return wrong(field, "an id, tag or name in the path %s is empty or made of dots", of)
}

func checkFork(req ForkRequest) error {
	switch {
	case req.SnapshotTag == "" && req.SourceID == "":
		return wrong("snapshot_tag", "missing: want a snapshot, or source_id")
	case req.SnapshotTag != "" && req.SourceID != "":
		return wrong("source_id", "excludes snapshot_tag")
	case req.N < 1 || req.N > maxChildren:
		return wrong("n", "%d: want 1 to %d", req.N, maxChildren)
	case req.TTLSecs < 0:
		return wrong("ttl_secs", "%g: want 0 or more", req.TTLSecs)
	case req.IdleTimeoutSecs < 0:
		return wrong("idle_timeout_secs", "%g: want 0 or more", req.IdleTimeoutSecs)
	}
	return checkEnv(req.Env)
}

func checkExec(req ExecRequest) error {
	if len(req.Args) == 0 {
		return wrong("args", "no command: want the command and its arguments")
	}
	if req.Args[0] == "" {
		return wrong("args", "the command is empty")
	}
	if i := slices.IndexFunc(req.Args, hasNUL); i >= 0 {
		return wrong("args", "[%d]: contains a NUL byte", i)
	}
	if hasNUL(req.Cwd) {
		return wrong("cwd", "contains a NUL byte")
	}
	if err := checkSeconds("timeout_secs", req.TimeoutSecs, maxCommand); err != nil {
		return err
	}
	if req.TTY != nil {
		if err := checkSize(*req.TTY); err != nil {
			return err
		}
	}
	return checkEnv(req.Env)
}

func checkTry(req TryRequest) error {
	commands := req.Each
	switch {
	case (len(req.Args) == 0) == (len(req.Each) == 0):
		return wrong("args", "want either this and n, or each")
	case len(req.Each) == 0 && (req.N < 1 || req.N > v1.MaxTry):
		return wrong("n", "%d: want 1 to %d", req.N, v1.MaxTry)
	case len(req.Each) > v1.MaxTry:
		return wrong("each", "%d commands: want at most %d", len(req.Each), v1.MaxTry)
	case len(req.Each) == 0:
		commands = [][]string{req.Args}
	}
	if len(req.Judge) > 0 {
		commands = append(slices.Clip(commands), req.Judge)
	}
	for _, args := range commands {
		if err := checkExec(ExecRequest{Args: args, Env: req.Env, Cwd: req.Cwd}); err != nil {
			return err
		}
	}
	return checkSeconds("timeout_secs", req.TimeoutSecs, maxTry)
}

func checkCode(req CodeRequest) error {
	if req.Language != "" && req.ContextID != "" {
		return wrong("language", "excludes context_id: a context has its language")
	}
	if err := checkSeconds("timeout_secs", req.TimeoutSecs, maxCode); err != nil {
		return err
	}
	return checkEnv(req.Env)
}

// checkBuild refuses builds that the daemon would refuse, and texts that are not valid UTF-8. JSON
// would change such texts.
func checkBuild(req BuildRequest) error {
	switch {
	case req.Tag == "":
		return wrong("tag", "empty: want the tag of the new snapshot")
	case strings.TrimSpace(req.Dockerfile) == "" && req.Recipe == "":
		return wrong("dockerfile", "it is empty")
	case req.Recipe != "" && req.Dockerfile != "":
		return wrong("recipe", "excludes dockerfile")
	case req.Recipe != "" && req.Boot == nil:
		return wrong("boot", "want the kernel and the rootfs that were made for the recipe")
	case !utf8.ValidString(req.Recipe):
		return wrong("recipe", "the recipe is not UTF-8, and JSON would change it: convert it")
	case len(req.Dockerfile) > v1.MaxDockerfile:
		return wrong("dockerfile", "%d bytes: want at most %d", len(req.Dockerfile), v1.MaxDockerfile)
	case !utf8.ValidString(req.Dockerfile):
		return wrong("dockerfile", "the Dockerfile is not UTF-8, and JSON would change it: convert it")
	case len(req.Secrets) > v1.MaxBuildSecrets:
		return wrong("secrets", "there are %d: want at most %d", len(req.Secrets), v1.MaxBuildSecrets)
	}
	for name, value := range req.Args {
		if !utf8.ValidString(name + value) {
			return wrong("args", "the value of the argument %q is not UTF-8, and JSON would change it: convert it", name)
		}
	}
	for id, secret := range req.Secrets {
		if id == "" || len(secret) > v1.MaxBuildSecret {
			return wrong("secrets", "%.100q: %d bytes: want an id, and at most %d bytes", id, len(secret), v1.MaxBuildSecret)
		}
	}
	return checkRegistries(req.RegistryAuth)
}

func checkRegistries(auths map[string]v1.RegistryAuth) error {
	if n := len(auths); n > v1.MaxBuildRegistries {
		return wrong("registry_auth", "there are %d registries: want at most %d", n, v1.MaxBuildRegistries)
	}
	for host, a := range auths {
		if host == "" || a.IdentityToken == "" && a.RegistryToken == "" && (a.Username == "" || a.Password == "") {
			return wrong("registry_auth", "%q: want a host with a username and a password, or with a token", host)
		}
		if !utf8.ValidString(a.Username + a.Password + a.IdentityToken + a.RegistryToken) {
			return wrong("registry_auth", "%q: the credentials are not UTF-8, and JSON would change them", host)
		}
	}
	return nil
}

func checkSize(size v1.TTYSize) error {
	const most = 65535
	if size.Cols > most {
		return wrong("cols", "%d: want at most %d", size.Cols, most)
	}
	if size.Rows > most {
		return wrong("rows", "%d: want at most %d", size.Rows, most)
	}
	return nil
}

func checkSeconds(field string, v float64, most time.Duration) error {
	if v < 0 || v > most.Seconds() {
		return wrong(field, "%g: want 0 to %g", v, most.Seconds())
	}
	return nil
}

func checkEnv(env map[string]string) error {
	for name, value := range env {
		switch {
		case name == "":
			return wrong("env", "a name is empty")
		case strings.ContainsAny(name, "=\x00"):
			return wrong("env", "name %q: contains '=' or a NUL byte", name)
		case hasNUL(value):
			return wrong("env", "value of %q: contains a NUL byte", name)
		}
	}
	return nil
}

func checkPort(port int) error {
	if port < 1 || port > 65535 {
		return wrong("port", "%d: want 1 to 65535", port)
	}
	return nil
}

// checkFile refuses paths of a sandbox that name no file.
func checkFile(field, name string) error {
	if name == "" {
		return wrong(field, "empty: want a path in the sandbox")
	}
	if hasNUL(name) {
		return wrong(field, "contains a NUL byte")
	}
	return nil
}

func hasNUL(text string) bool { return strings.ContainsRune(text, 0) }
