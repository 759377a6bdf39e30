package auth

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"

	"github.com/forkd/forkd/internal/daemon/stamp"
	"github.com/forkd/forkd/internal/host/owner"
	"github.com/forkd/forkd/internal/private"
)

// SSHKeys holds the keys of a file; see ParseSSHKeys. A change of the file applies from the next
// use on. If the file is missing, unreadable or invalid, there are no keys: it is unknown which
// keys have been removed. Methods may be called concurrently.
type SSHKeys struct {
	path string
	log  *slog.Logger

	mu       sync.Mutex
	by       map[string][]SSHKey // the key is the result of ssh.PublicKey.Marshal
	seen     stamp.Stamp         // state of the file when it was last read
	reported string              // the last error that was logged
}

// OpenSSHKeys opens a file of SSH keys, which may be missing. It refuses a file that other users can
// change.
func OpenSSHKeys(path string, log *slog.Logger) (*SSHKeys, error) {
	s := &SSHKeys{path: path, log: log}
	return s, s.loadLocked()
}

// Find returns the entries for a key, one for each principal that has it. The key is in the wire
// format, and need not be valid.
func (s *SSHKeys) Find(key []byte) []SSHKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.seen.Holds(s.path) {
		err := s.loadLocked()
		switch {
		case err == nil:
			s.reported = ""
		case err.Error() != s.reported:
			s.reported = err.Error()
			s.log.Error("the file of SSH keys cannot be used: no key is accepted", "error", err)
		}
	}
	return s.by[string(key)]
}

func (s *SSHKeys) loadLocked() error {
	s.by, s.seen = nil, stamp.Stamp{}
	p, fi, err := private.ReadFile(s.path, 0o022, maxKeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("file of SSH keys: %w", err)
	}
	list, err := ParseSSHKeys(p)
	if err != nil {
		return fmt.Errorf("file of SSH keys %s: %w", s.path, err)
	}
	s.by, s.seen = make(map[string][]SSHKey), stamp.Of(fi)
	for _, k := range list {
		s.by[string(k.Key.Marshal())] = append(s.by[string(k.Key.Marshal())], k)
	}
	return nil
}

// OfSSHKey returns the principal of a key, with the current rights of the principal. If the token
// of the principal has been removed or replaced, it returns false.
func (g *Guard) OfSSHKey(k SSHKey) (p Principal, ok bool) {
	uid, isUser := uidOf(k.Who)
	switch {
	case g == nil:
		return Principal{Who: owner.Anyone, Scope: Admin}, true
	case isUser:
		return g.byPeer(Peer{UID: uid, GID: nobody}), true
	case g.Tokens == nil:
		return Principal{}, false
	}
	for _, t := range g.Tokens.current() {
		if tokenWho+t.Name == k.Who && t.mark() == k.Token {
			return t.principal(), true
		}
	}
	return Principal{}, false
}
