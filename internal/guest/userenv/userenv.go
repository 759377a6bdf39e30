// Package userenv determines the properties of a new process in the guest: its user, its
// environment, its working directory, and the meaning of relative paths.
//
// It reads /etc/passwd and /etc/group at each call and writes nothing.
package userenv

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// DefaultPath is the PATH of all processes. It is Debian's PATH for root. It also has every
// directory of Debian's PATH for other users, except the directories of games.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Env is the state that all later processes share. It may be used concurrently.
type Env struct {
	mu          sync.Mutex
	vars        map[string]string
	defaultUser string
	defaultDir  string
}

// New returns an Env without variables.
func New() *Env { return &Env{vars: map[string]string{}} }

// Merge adds variables to the environment of later processes.
func (e *Env) Merge(vars map[string]string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.Copy(e.vars, vars)
}

// Vars returns a copy of the variables added so far.
func (e *Env) Vars() map[string]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.vars)
}

// SetDefaults changes the user and the working directory for requests that do not name them. An
// empty string leaves the value unchanged.
func (e *Env) SetDefaults(user, dir string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if user != "" {
		e.defaultUser = user
	}
	if dir != "" {
		e.defaultDir = dir
	}
}

// User is an account of the guest.
type User struct {
	Name   string
	UID    uint32
	GID    uint32
	Groups []uint32
	Home   string
}

// User looks up an account. An empty name means the default user.
func (e *Env) User(name string) (*User, error) { return e.UserOr(name, "") }

// UserOr is like User, for clients that have a default user of their own. If name is empty and
// SetDefaults has set no user, it returns the account with the name in preferred. If the guest
// lacks that account, it returns root.
func (e *Env) UserOr(name, preferred string) (*User, error) {
	if name == "" {
		e.mu.Lock()
		name = e.defaultUser
		e.mu.Unlock()
	}
	if name == "" && preferred != "" {
		if u, err := lookup(preferred); err == nil {
			return u, nil
		}
	}
	return lookup(cmp.Or(name, "root"))
}

func lookup(name string) (*User, error) { return account(name, user.Lookup) }

// account returns the account with the given name or number. It uses find to look up an account by
// its name.
func account(name string, find func(string) (*user.User, error)) (*User, error) {
	u, err := find(name)
	if err != nil && name == "root" {
		return &User{Name: "root", Home: rootHome()}, nil // without /etc/passwd, root is the only account
	}
	if err != nil {
		return nil, fmt.Errorf("user %q does not exist in the guest", name)
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err1 != nil || err2 != nil {
		return nil, fmt.Errorf("user %q: /etc/passwd has ids %q:%q", name, u.Uid, u.Gid)
	}
	out := &User{Name: u.Username, UID: uint32(uid), GID: uint32(gid), Home: u.HomeDir}
	ids, err := u.GroupIds()
	if err != nil {
		ids = nil // without /etc/group, there are no further groups
	}
	for _, id := range ids {
		if n, err := strconv.ParseUint(id, 10, 32); err == nil {
			out.Groups = append(out.Groups, uint32(n))
		}
	}
	return out, nil
}

func rootHome() string {
	if info, err := os.Stat("/root"); err == nil && info.IsDir() {
		return "/root"
	}
	return "/"
}

// CheckVars returns an error for variables that cannot be in an environment.
func CheckVars(vars map[string]string) error {
	for name, value := range vars {
		switch {
		case name == "":
			return errors.New("environment: a variable has an empty name")
		case strings.ContainsAny(name, "=\x00"):
			return fmt.Errorf("environment: the name %q has a '=' or a NUL byte in it", name)
		case strings.ContainsRune(value, 0):
			return fmt.Errorf("environment: the value of %s has a NUL byte in it", name)
		}
	}
	return nil
}

// Credential returns the credential for starting a process as u. The result is nil if the agent
// itself runs as u.
func (u *User) Credential() *syscall.Credential {
	if os.Getuid() == int(u.UID) && os.Getgid() == int(u.GID) {
		return nil
	}
	return &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
}

// Environ returns the environment of a process of u: the variables of the account, the shared
// variables, and the variables of this call. If a name occurs more than once, this call's value
// takes precedence over the shared value, and the shared value takes precedence over the account's
// value.
func (e *Env) Environ(u *User, call map[string]string) []string {
	vars := map[string]string{"PATH": DefaultPath, "HOME": u.Home, "USER": u.Name, "LOGNAME": u.Name}
	e.mu.Lock()
	maps.Copy(vars, e.vars)
	e.mu.Unlock()
	maps.Copy(vars, call)
	out := make([]string, 0, len(vars))
	for _, k := range slices.Sorted(maps.Keys(vars)) {
		out = append(out, k+"="+vars[k])
	}
	return out
}

// Dir returns the working directory of a process of u. If dir is empty, Dir returns the default
// directory or, without one, the user's home. If that home is missing, Dir returns "/".
func (e *Env) Dir(u *User, dir string) (string, error) {
	if dir == "" {
		e.mu.Lock()
		dir = e.defaultDir
		e.mu.Unlock()
	}
	if dir == "" {
		if info, err := os.Stat(Path(u, "")); err != nil || !info.IsDir() {
			return "/", nil
		}
	}
	dir = Path(u, dir)
	info, err := os.Stat(dir)
	if err != nil {
		return "", fmt.Errorf("cwd %q does not exist", dir)
	}
	if !info.IsDir() {
		return "", fmt.Errorf("cwd %q is not a directory", dir)
	}
	return dir, nil
}

// Path makes a path absolute. "~", relative paths and the empty path are relative to u's home.
func Path(u *User, path string) string {
	if path == "~" || strings.HasPrefix(path, "~/") {
		path = path[1:]
		path = filepath.Join(u.Home, path)
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(u.Home, path)
	}
	return filepath.Clean(path)
}
