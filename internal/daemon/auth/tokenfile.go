package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/forkd/forkd/internal/host/owner"
)

// Token is one line of a token file: the holder's name and rights, but not the token itself.
type Token struct {
	Name         string
	Scope        Scope
	MaxSandboxes int // 0: no limit
	Prefix       owner.Prefix
	digest       [sha256.Size]byte
}

// Bounds of a token file. maxTokenFile is the maximum size of the file, in bytes.
const (
	minToken     = 16 // bytes of a token
	maxTokenFile = 1 << 20
	maxName      = 64
)

// hashPrefix is the prefix of a token's SHA-256 in a token file. A single round of hashing
// suffices, because tokens are random and cannot be guessed like passwords.
const hashPrefix = "sha256:"

// commentMark starts a comment line.
const commentMark = "#"

// soleName is the name of a token that is the whole content of its file.
const soleName = "default"

// ParseTokens reads a token file. Each line has a name, a scope, "sha256:" with the SHA-256 of the
// token in hexadecimal digits, and optionally max-sandboxes=N and label-prefix=PREFIX:
//
//	# may fork and exec
//	ci run sha256:9f86d0818… max-sandboxes=20 label-prefix=ci/
//
// If a file consists of a single word, that word is a token in plain text, with the scope admin. A
// file that contains only comments has no tokens.
func ParseTokens(p []byte) (list []Token, err error) {
	if len(p) > maxTokenFile {
		return nil, fmt.Errorf("larger than %d bytes", maxTokenFile)
	}
	if token, ok := soleToken(p); ok {
		sole := Token{Name: soleName, Scope: Admin}
		sole.digest, err = digestOf(token)
		return []Token{sole}, err
	}
	seen := map[string]bool{}
	for i, line := range strings.Split(string(p), "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], commentMark) {
			continue
		}
		t, err := parseLine(words)
		if err == nil && seen[t.Name] {
			err = fmt.Errorf("a second token %q", t.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		seen[t.Name] = true
		list = append(list, t)
	}
	return list, nil
}

// soleToken returns the word of a file that consists of a single word. It returns no word that
// begins with commentMark, because a comment is not secret and so cannot be a token.
func soleToken(p []byte) (token string, ok bool) {
	words := strings.Fields(string(p))
	if len(words) != 1 || strings.HasPrefix(words[0], commentMark) {
		return "", false
	}
	return words[0], true
}

// IsSole reports whether a token file consists of a token in plain text. If so, anyone who can read
// the file has the token.
func IsSole(p []byte) bool {
	_, ok := soleToken(p)
	return ok
}

// parseLine parses the words of a line. Its errors never quote the third word, which may be a token
// in plain text.
func parseLine(words []string) (t Token, err error) {
	if len(words) < 3 {
		return t, errors.New("want NAME SCOPE sha256:HASH, as 'forkd token new' writes it")
	}
	t.Name = words[0]
	if err := CheckName(t.Name); err != nil {
		return t, err
	}
	if t.Scope, err = ParseScope(words[1]); err != nil {
		return t, err
	}
	digits, hashed := strings.CutPrefix(words[2], hashPrefix)
	sum, err := hex.DecodeString(digits)
	if !hashed || err != nil || len(sum) != len(t.digest) {
		return t, fmt.Errorf("token %s: want sha256: and 64 hexadecimal digits", t.Name)
	}
	copy(t.digest[:], sum)
	for _, option := range words[3:] {
		switch name, value, _ := strings.Cut(option, "="); name {
		case "max-sandboxes":
			if t.MaxSandboxes, err = strconv.Atoi(value); err != nil || t.MaxSandboxes < 1 {
				return t, fmt.Errorf("token %s: %s: want a number from 1", t.Name, option)
			}
		case "label-prefix":
			if err := t.LimitTo(value); err != nil {
				return t, fmt.Errorf("token %s: %w", t.Name, err)
			}
		default:
			return t, fmt.Errorf("token %s: unknown option %q: want max-sandboxes=N or label-prefix=PREFIX", t.Name, option)
		}
	}
	return t, t.check()
}

// LimitTo limits t to a label prefix; see owner.Prefix.
func (t *Token) LimitTo(prefix string) (err error) {
	if t.Prefix, err = owner.ParsePrefix(prefix); err != nil {
		return fmt.Errorf("label-prefix %w", err)
	}
	return nil
}

// check refuses a label prefix for a token with the scope admin, because the prefix could not
// restrict that scope.
func (t *Token) check() error {
	if t.Prefix != "" && t.Scope == Admin {
		return fmt.Errorf("token %s: label-prefix has no effect with the scope %s: give it the scope %s, %s or %s", t.Name,
			Admin, Run, Read, Pull)
	}
	return nil
}

// line returns the line for t in a token file. parseLine is the reverse.
func (t *Token) line() string {
	line := fmt.Sprintf("%s %s %s%x", t.Name, t.Scope, hashPrefix, t.digest)
	if t.MaxSandboxes > 0 {
		line += fmt.Sprintf(" max-sandboxes=%d", t.MaxSandboxes)
	}
	if t.Prefix != "" {
		line += " label-prefix=" + string(t.Prefix)
	}
	return line
}

// nameForm allows only characters that need no quoting in a log, a label or a shell.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// CheckName checks the name of a token.
func CheckName(name string) error {
	if len(name) > maxName || !nameForm.MatchString(name) {
		return fmt.Errorf("name %q: want at most %d letters, digits, '.', '_' and '-'", name, maxName)
	}
	return nil
}

// digestOf checks a token and returns its SHA-256. Tokens are compared by their digests.
func digestOf(token string) (sum [sha256.Size]byte, err error) {
	switch {
	case len(token) < minToken:
		return sum, fmt.Errorf("token of %d bytes: want at least %d (for example from 'openssl rand -hex 32')", len(token),
			minToken)
	case isPlaceholder(token):
		return sum, errors.New("token is a placeholder: put a random one there")
	}
	return sha256.Sum256([]byte(token)), nil
}

// isPlaceholder reports whether a token is a placeholder copied from an example, or one character
// repeated.
func isPlaceholder(token string) bool {
	plain := strings.NewReplacer("_", "", "-", "", " ", "", "<", "").Replace(strings.ToLower(token))
	return strings.Count(token, token[:1]) == len(token) || slices.ContainsFunc(
		[]string{"replaceme", "changeme", "changethis", "yourtoken", "yoursecret", "placeholder", "example"},
		func(word string) bool { return strings.HasPrefix(plain, word) })
}

// Add makes a token. It returns the token file with a line for the token, and the token itself. The
// token is not stored anywhere. If e2b is true, the token has the form that E2B's clients require.
func Add(file []byte, t Token, e2b bool) (grown []byte, token string, err error) {
	if err := CheckName(t.Name); err != nil {
		return nil, "", err
	}
	if err := t.check(); err != nil {
		return nil, "", err
	}
	if list, err := parseNamed(file); err != nil {
		return nil, "", err
	} else if slices.ContainsFunc(list, func(o Token) bool { return o.Name == t.Name }) {
		return nil, "", fmt.Errorf("there is a token %q: take another name, or remove it first", t.Name)
	}
	if token = "forkd_" + randomHex(32); e2b {
		token = "e2b_" + randomHex(20)
	}
	t.digest = sha256.Sum256([]byte(token))
	if len(file) > 0 && file[len(file)-1] != '\n' {
		file = append(slices.Clone(file), '\n')
	}
	return append(slices.Clone(file), t.line()+"\n"...), token, nil
}

// Remove returns a token file without the token of the given name. It keeps comments.
func Remove(file []byte, name string) ([]byte, error) {
	list, err := parseNamed(file)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(list, func(t Token) bool { return t.Name == name }) {
		return nil, fmt.Errorf("there is no token %q", name)
	}
	lines := slices.DeleteFunc(strings.SplitAfter(string(file), "\n"), func(line string) bool {
		words := strings.Fields(line)
		return len(words) > 0 && words[0] == name
	})
	return []byte(strings.Join(lines, "")), nil
}

// parseNamed is like ParseTokens, but for a file that is to be edited. It refuses a file that
// consists of a single token.
func parseNamed(file []byte) ([]Token, error) {
	if _, ok := soleToken(file); ok {
		return nil, errors.New("the file is one token without a name, and can hold no others: use another file")
	}
	return ParseTokens(file)
}

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
