package webhook

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/forkd/forkd/internal/daemon/stamp"
	"github.com/forkd/forkd/internal/private"
)

// Bounds on a file of secrets.
const (
	maxSecrets    = 4
	maxSecretFile = 4 << 10 // bytes
)

// secretPrefix begins a secret in the form of Standard Webhooks.
const secretPrefix = "whsec_"

// secrets holds the secrets of a file. A change of the file applies from the next request on. If the
// file becomes unreadable or invalid, the error is logged, and the previous secrets stay valid.
type secrets struct {
	path     string
	log      *slog.Logger
	keys     [][]byte
	seen     stamp.Stamp // state of the file when it was last read
	reported string      // the last error that was logged
}

func openSecrets(path string, log *slog.Logger) (*secrets, error) {
	s := &secrets{path: path, log: log}
	return s, s.load()
}

// current returns the secrets, after reading the file again if it has changed.
func (s *secrets) current() [][]byte {
	if s.seen.Holds(s.path) {
		return s.keys
	}
	switch err := s.load(); {
	case err == nil:
		s.reported = ""
	case err.Error() != s.reported:
		s.reported = err.Error()
		s.log.Error("the file of secrets cannot be used: the previous secrets stay valid", "error", err)
	}
	return s.keys
}

func (s *secrets) load() error {
	fi, err := os.Stat(s.path)
	if err != nil {
		return err
	}
	s.seen = stamp.Of(fi)
	text, _, err := private.ReadFile(s.path, 0o077, maxSecretFile)
	if err != nil {
		return err
	}
	keys, err := parseSecrets(text)
	if err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	s.keys = keys
	return nil
}

// parseSecrets parses a file of secrets. Each line is a secret in the form of Standard Webhooks:
// whsec_ and 24 to 64 bytes in base64. Empty lines and lines that begin with # are ignored. The
// errors do not quote a line.
func parseSecrets(text []byte) (keys [][]byte, err error) {
	n := 0
	for line := range bytes.Lines(text) {
		n++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		encoded, ok := strings.CutPrefix(string(line), secretPrefix)
		key, err := base64.StdEncoding.DecodeString(encoded)
		if !ok || err != nil || len(key) < 24 || len(key) > 64 {
			return nil, fmt.Errorf("line %d: want %s and 24 to 64 bytes in base64: "+
				`make one with echo "%s$(openssl rand -base64 32)"`, n, secretPrefix, secretPrefix)
		}
		keys = append(keys, key)
	}
	switch {
	case len(keys) == 0:
		err = fmt.Errorf(`it has no secret: make one with echo "%s$(openssl rand -base64 32)"`, secretPrefix)
	case len(keys) > maxSecrets:
		err = errors.New("it has more than " + strconv.Itoa(maxSecrets) + " secrets: remove old ones")
	}
	return keys, err
}

// sign returns the value of the header webhook-signature: one signature for each key. During a
// change of the secret, a server accepts a message if it knows one of the keys.
func sign(keys [][]byte, id string, at time.Time, body []byte) string {
	var list []string
	for _, key := range keys {
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%d.%s", id, at.Unix(), body)
		list = append(list, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	return strings.Join(list, " ")
}
