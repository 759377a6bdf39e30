package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"

	"github.com/forkd/forkd/internal/daemon/stamp"
)

// Tokens are those of a token file, as it is now: a changed file holds from the next request on.
// One that cannot be used changes nothing, and is logged. Methods may be called concurrently.
type Tokens struct {
	path string
	log  *slog.Logger

	mu       sync.Mutex
	list     []Token
	seen     stamp.Stamp // of the file that list is from, or that was found to be of no use
	reported string      // the last error
}

// tokenWho begins who has a token.
const tokenWho = "token:"

// OpenTokens reads a token file; see ParseTokens. It must be readable by its owner alone.
func OpenTokens(path string, log *slog.Logger) (*Tokens, error) {
	t := &Tokens{path: path, log: log}
	if err := t.loadLocked(); err != nil {
		return nil, err
	}
	if len(t.list) == 0 {
		return nil, fmt.Errorf("token file %s has no token: make one with 'forkd token new'", path)
	}
	return t, nil
}

// Resolve returns who has a token. It takes the same time for every wrong one of every length:
// digests are compared, in constant time, with all of the file.
func (t *Tokens) Resolve(token string) (p Principal, ok bool) {
	sum := sha256.Sum256([]byte(token))
	for _, k := range t.current() {
		if subtle.ConstantTimeCompare(sum[:], k.digest[:]) == 1 {
			p, ok = Principal{Who: tokenWho + k.Name, Scope: k.Scope, MaxSandboxes: k.MaxSandboxes, Prefix: k.Prefix}, true
		}
	}
	return p, ok
}

// has reports whether there is a token with a name and at least a scope.
func (t *Tokens) has(name string, want Scope) bool {
	return slices.ContainsFunc(t.current(), func(k Token) bool { return k.Name == name && k.Scope >= want })
}

// current returns the tokens of the file as it is now.
func (t *Tokens) current() []Token {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.seen.Holds(t.path) {
		return t.list
	}
	switch err := t.loadLocked(); {
	case err == nil:
		t.reported = ""
	case err.Error() != t.reported:
		t.reported = err.Error()
		t.log.Error("the token file cannot be used: the tokens of before still hold", "error", err)
	}
	return t.list
}

func (t *Tokens) loadLocked() error {
	f, err := os.Open(t.path)
	if err != nil {
		return fmt.Errorf("read token file: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return fmt.Errorf("read token file: %w", err)
	}
	t.seen = stamp.Of(fi)
	switch {
	case !fi.Mode().IsRegular():
		return fmt.Errorf("token file %s is no regular file", t.path)
	case fi.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("token file %s has mode %#o, which lets other users in: chmod 600 %s", t.path, fi.Mode().Perm(),
			t.path)
	}
	p, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	if err != nil {
		return fmt.Errorf("read token file: %w", err)
	}
	list, err := ParseTokens(p)
	if err != nil {
		return fmt.Errorf("token file %s: %w", t.path, err)
	}
	t.list = list
	return nil
}
