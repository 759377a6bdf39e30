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

// Tokens holds the tokens of a token file. A change of the file applies from the next request on.
// If the file becomes unreadable or invalid, the error is logged, and the previous tokens stay
// valid. Methods may be called concurrently.
type Tokens struct {
	path string
	log  *slog.Logger

	mu       sync.Mutex
	list     []Token
	seen     stamp.Stamp // state of the file when it was last read
	reported string      // the last error that was logged
}

// tokenWho is the prefix of Principal.Who for holders of tokens.
const tokenWho = "token:"

// OpenTokens reads a token file; see ParseTokens. It refuses a file that other users can read.
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

// Resolve returns the holder of a token. It compares the token's digest with the digests of all
// tokens in the file, in constant time. So the duration of a call does not reveal the token's bytes
// or length.
func (t *Tokens) Resolve(token string) (p Principal, ok bool) {
	sum := sha256.Sum256([]byte(token))
	for _, k := range t.current() {
		if subtle.ConstantTimeCompare(sum[:], k.digest[:]) == 1 {
			p, ok = k.principal(), true
		}
	}
	return p, ok
}

func (t *Token) principal() Principal {
	return Principal{Who: tokenWho + t.Name, Scope: t.Scope, MaxSandboxes: t.MaxSandboxes, Prefix: t.Prefix}
}

// has() reports whether there is a token with this name whose scope includes the wanted scope.
func (t *Tokens) has(name string, want Scope) bool {
	return slices.ContainsFunc(t.current(), func(k Token) bool { return k.Name == name && k.Scope.includes(want) })
}

// current returns the tokens, after reading the file again if it has changed.
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
		t.log.Error("the token file cannot be used: the previous tokens stay valid", "error", err)
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
		return fmt.Errorf("token file %s is not a regular file", t.path)
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
