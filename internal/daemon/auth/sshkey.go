package auth

import (
	"bytes"
	"crypto/rsa"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/crypto/ssh"
)

// SSHKey is one line of a file of SSH keys: a public key, and the principal of its holder.
type SSHKey struct {
	Who     string // Principal.Who: "token:NAME" or "uid:N"
	Token   string // beginning of the token's hash, tokenMark hexadecimal digits; empty for a user
	Key     ssh.PublicKey
	Comment string
}

// Bounds of a file of SSH keys. maxKeyFile is the maximum size of the file, in bytes. minRSA and
// maxRSA bound the size of RSA keys, in bits.
const (
	maxKeyFile    = 1 << 20
	maxKeysOf     = 64  // keys of one principal
	maxKeyComment = 256 // bytes of the comment of a key
	minRSA        = 2048
	maxRSA        = 8192

	tokenMark = 16
)

// uidWho is the prefix of Principal.Who for users of the unix socket.
const uidWho = "uid:"

// CheckSSHKey refuses public keys that are weak because of their type or size, or that take long to
// verify at each login. (CheckSSHKey does not bound the work for logins with unknown keys: package
// ssh verifies the signature first. For an unknown key, the bound of package ssh applies: 16384
// bits.)
func CheckSSHKey(key ssh.PublicKey) error {
	switch key.Type() {
	case ssh.KeyAlgoED25519, ssh.KeyAlgoSKED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
		ssh.KeyAlgoSKECDSA256:
		return nil
	case ssh.KeyAlgoRSA:
		if crypto, ok := key.(ssh.CryptoPublicKey); ok {
			if k, ok := crypto.CryptoPublicKey().(*rsa.PublicKey); ok && k.N.BitLen() >= minRSA && k.N.BitLen() <= maxRSA {
				return nil
			}
		}
		return fmt.Errorf("RSA key: want %d to %d bits", minRSA, maxRSA)
	}
	return fmt.Errorf("key of the type %.40q: want ed25519, ecdsa or rsa", key.Type())
}

// ParseSSHKeys reads a file of SSH keys. Each line has a principal, and a key as in OpenSSH's
// authorized_keys, without options:
//
//	# alice's laptop
//	uid:1000 ssh-ed25519 AAAAC3N… alice@laptop
//	token:ci@9f86d081884c7d65 ssh-ed25519 AAAAC3N…
//
// The digits after a token's name are the first digits of the token's hash. So a key is void if its
// token has been replaced by another token with the same name.
func ParseSSHKeys(p []byte) (list []SSHKey, err error) {
	if len(p) > maxKeyFile {
		return nil, fmt.Errorf("larger than %d bytes", maxKeyFile)
	}
	count, seen := map[string]int{}, map[string]bool{}
	for i, line := range strings.Split(string(p), "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, commentMark) {
			continue
		}
		k, err := parseKeyLine(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		entry := k.Who + " " + string(k.Key.Marshal())
		if count[k.Who]++; seen[entry] || count[k.Who] > maxKeysOf {
			return nil, fmt.Errorf("line %d: %s has this key twice, or more than %d keys", i+1, k.Who, maxKeysOf)
		}
		seen[entry] = true
		list = append(list, k)
	}
	return list, nil
}

func (k SSHKey) same(o SSHKey) bool {
	return k.Who == o.Who && bytes.Equal(k.Key.Marshal(), o.Key.Marshal())
}

func parseKeyLine(line string) (k SSHKey, err error) {
	who, rest, _ := strings.Cut(line, " ")
	name, mark, marked := strings.Cut(who, "@")
	k.Who = name
	switch token, isToken := strings.CutPrefix(name, tokenWho); {
	case isToken:
		if err := CheckName(token); err != nil {
			return k, err
		}
		if _, err := hex.DecodeString(mark); err != nil || len(mark) != tokenMark {
			return k, fmt.Errorf("%s: want @ and %d hexadecimal digits of the token's hash, as 'forkd ssh-key add' writes them",
				name, tokenMark)
		}
		k.Token = mark
	case marked:
		return k, fmt.Errorf("principal %.80q: only tokens have a part after @", who)
	default:
		if _, ok := uidOf(name); !ok {
			return k, fmt.Errorf("principal %.80q: want token:NAME@HASH or uid:NUMBER", who)
		}
	}
	k.Key, k.Comment, err = ParseSSHKey(rest)
	return k, err
}

// uidOf returns the user id in a Principal.Who that names a user of the host.
func uidOf(who string) (uid uint32, ok bool) {
	digits, ok := strings.CutPrefix(who, uidWho)
	n, err := strconv.ParseUint(digits, 10, 32)
	return uint32(n), ok && err == nil && digits == strconv.FormatUint(n, 10) && uint32(n) != nobody
}

// ParseSSHKey reads a public key in the form of a line of OpenSSH's authorized_keys, or of a file
// such as id_ed25519.pub.
func ParseSSHKey(text string) (key ssh.PublicKey, comment string, err error) {
	text = strings.TrimSpace(text)
	if strings.ContainsAny(text, "\r\n") {
		return nil, "", errors.New("public key: want one line, such as id_ed25519.pub has")
	}
	key, comment, options, _, err := ssh.ParseAuthorizedKey([]byte(text))
	switch {
	case err != nil:
		return nil, "", errors.New("public key: want a line such as 'ssh-ed25519 AAAA… comment', as id_ed25519.pub has")
	case len(options) > 0:
		return nil, "", errors.New("public key: options before the key are not supported")
	case len(comment) > maxKeyComment || strings.ContainsFunc(comment, func(r rune) bool { return !unicode.IsPrint(r) }):
		return nil, "", fmt.Errorf("public key: its comment has unprintable characters, or more than %d bytes", maxKeyComment)
	}
	return key, comment, CheckSSHKey(key)
}

// line returns the line for k in a file of SSH keys. parseKeyLine is the reverse.
func (k SSHKey) line() string {
	who := k.Who
	if k.Token != "" {
		who += "@" + k.Token
	}
	line := who + " " + strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k.Key)))
	if k.Comment != "" {
		line += " " + k.Comment
	}
	return line
}

// SSHKeyOfToken sets the principal of a key to a token of a token file.
func SSHKeyOfToken(k *SSHKey, tokenFile []byte, name string) error {
	list, err := ParseTokens(tokenFile)
	if err != nil {
		return err
	}
	for _, t := range list {
		if t.Name == name {
			k.Who, k.Token = tokenWho+name, t.mark()
			return nil
		}
	}
	return fmt.Errorf("there is no token %q", name)
}

// SSHKeyOfUser sets the principal of a key to a user of the host.
func SSHKeyOfUser(k *SSHKey, uid uint32) { k.Who, k.Token = peerWho(uid), "" }

// mark returns the digits that tie an SSH key to the token.
func (t *Token) mark() string { return hex.EncodeToString(t.digest[:])[:tokenMark] }

// AddSSHKey returns a file of SSH keys with a line for k. If the principal already has the same
// key, the new line replaces the old one.
func AddSSHKey(file []byte, k SSHKey) ([]byte, error) {
	file, _, err := RemoveSSHKeys(file, k.same)
	if err != nil {
		return nil, err
	}
	if len(file) > 0 && file[len(file)-1] != '\n' {
		file = append(file, '\n')
	}
	file = append(file, k.line()+"\n"...)
	_, err = ParseSSHKeys(file)
	return file, err
}

// RemoveSSHKeys removes keys from a file of SSH keys: each key for which gone(key) is true. It
// returns the new content of the file, and the number of removed keys. It keeps comments.
func RemoveSSHKeys(file []byte, gone func(SSHKey) bool) (rest []byte, n int, err error) {
	if _, err := ParseSSHKeys(file); err != nil {
		return nil, 0, err
	}
	for line := range bytes.Lines(file) {
		text := strings.TrimSpace(string(line))
		if text != "" && !strings.HasPrefix(text, commentMark) {
			if k, err := parseKeyLine(text); err == nil && gone(k) {
				n++
				continue
			}
		}
		rest = append(rest, line...)
	}
	return rest, n, nil
}
