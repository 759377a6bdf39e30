package auth

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"

	"github.com/forkd/forkd/internal/atomicfile"
)

// Keys derives the tokens of sandboxes from one key. So the tokens need not be stored, and are
// still valid after a restart. (The only copies on disk are in answers kept for repeated requests;
// see package once.)
type Keys struct{ key [32]byte }

// OpenKeys reads the key in a file. If the file is missing, it is created with a random key.
func OpenKeys(path string) (*Keys, error) {
	key, err := openKey(path, "the key of sandboxes' tokens", "all tokens made with it are void")
	return &Keys{key}, err
}

// Token returns the token of a sandbox for a purpose: 40 hexadecimal digits.
func (k *Keys) Token(purpose, id string) string {
	h := hmac.New(sha256.New, k.key[:])
	fmt.Fprintf(h, "forkd sandbox token\x00%s\x00%s", purpose, id)
	return hex.EncodeToString(h.Sum(nil)[:20])
}

// Is reports whether token is the token of a sandbox for a purpose. It compares in constant time.
func (k *Keys) Is(purpose, id, token string) bool {
	return hmac.Equal([]byte(token), []byte(k.Token(purpose, id)))
}

// openKey reads a key, or makes one. Error messages contain the name of the key (what), and the
// effect of losing the key (loss).
func openKey(path, what, loss string) (key [32]byte, err error) {
	p, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		rand.Read(key[:])
		// Durable, because tokens derived from the key are given out from now on.
		if err := atomicfile.WriteDurable(path, key[:], 0o600); err != nil {
			return key, fmt.Errorf("write %s: %w", what, err)
		}
		return key, nil
	}
	if err != nil {
		return key, fmt.Errorf("read %s: %w", what, err)
	}
	if copy(key[:], p) != len(p) || len(p) != len(key) {
		return key, fmt.Errorf("read %s: %s has %d bytes, want %d: remove it, and %s", what, path, len(p), len(key), loss)
	}
	return key, nil
}
