package auth

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

// sshKey returns a public key that depends on n.
func sshKey(t testing.TB, n byte) ssh.PublicKey {
	t.Helper()
	seed := sha256.Sum256([]byte{n})
	key, err := ssh.NewPublicKey(ed25519.NewKeyFromSeed(seed[:]).Public())
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func lineOf(t testing.TB, n byte) string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(sshKey(t, n))))
}

func TestSSHKeyFile(t *testing.T) {
	var file []byte
	var err error
	for n, who := range []string{"uid:0", "uid:1000", "token:ci"} {
		k := SSHKey{Who: who, Key: sshKey(t, byte(n)), Comment: "laptop of " + who}
		if who == "token:ci" {
			k.Token = "0123456789abcdef"
		}
		file = append(file, "# a comment\n"...)
		if file, err = AddSSHKey(file, k); err != nil {
			t.Fatal(err)
		}
		if again, err := AddSSHKey(file, k); err != nil || !bytes.Equal(again, file) {
			t.Errorf("a key that is there: %q, %v", again, err)
		}
	}
	list, err := ParseSSHKeys(file)
	if err != nil || len(list) != 3 || list[2].Token != "0123456789abcdef" || list[1].Comment != "laptop of uid:1000" {
		t.Fatalf("%+v, %v", list, err)
	}
	rest, n, err := RemoveSSHKeys(file, func(k SSHKey) bool { return k.Who == "uid:1000" })
	comments := strings.Count(string(rest), "# a comment\n")
	if err != nil || n != 1 || strings.Contains(string(rest), "1000") || comments != 3 {
		t.Errorf("%q, %d, %v", rest, n, err)
	}
	key := lineOf(t, 0)
	for text, words := range map[string]string{
		"uid:x " + key:                                  "principal",
		"uid:-1 " + key:                                 "principal",
		"uid:01 " + key:                                 "principal",
		"uid:4294967295 " + key:                         "principal",
		"uid:1@aa " + key:                               "only tokens",
		"local " + key:                                  "want token:NAME@HASH or uid:NUMBER",
		"token:ci " + key:                               "hexadecimal digits",
		"token:ci@zz23456789abcdef " + key:              "hexadecimal digits",
		"token:a/b@0123456789abcdef " + key:             "name",
		"uid:1":                                         "public key",
		"uid:1 ssh-ed25519":                             "public key",
		"uid:1 ssh-ed25519 AAAA":                        "public key",
		"uid:1 from=\"10.0.0.1\" " + key:                "options",
		"uid:1 " + key + " a\x01b":                      "unprintable",
		"uid:1 " + key + strings.Repeat("x", 300):       "public key",
		"uid:1 " + key + " " + strings.Repeat("x", 300): "more than 256 bytes",
		"uid:1 " + key + "\nuid:1 " + key:               "twice",
		strings.Repeat("#", maxKeyFile+1):               "larger",
	} {
		if list, err := ParseSSHKeys([]byte(text)); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%.100q: %v, %v", text, list, err)
		}
	}
	var many strings.Builder
	for n := range maxKeysOf + 1 {
		fmt.Fprintf(&many, "uid:1 %s\n", lineOf(t, byte(n)))
	}
	if _, err := ParseSSHKeys([]byte(many.String())); err == nil {
		t.Error("too many keys were accepted")
	}
}

// A key has the rights that its principal has now.
func TestOfSSHKey(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "tokens")
	file, _, err := Add(nil, Token{Name: "ci", Scope: Run, MaxSandboxes: 3}, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := OpenTokens(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	g := &Guard{Tokens: tokens, Peers: []PeerRule{{ID: 4_000_000, Scope: Read}}}
	ci := SSHKey{Key: sshKey(t, 1)}
	if err := SSHKeyOfToken(&ci, file, "ci"); err != nil {
		t.Fatal(err)
	}
	if err := SSHKeyOfToken(&SSHKey{}, file, "other"); err == nil {
		t.Error("a key of a missing token")
	}
	if p, ok := g.OfSSHKey(ci); !ok || p.Who != "token:ci" || p.Scope != Run || p.MaxSandboxes != 3 {
		t.Errorf("%+v, %v", p, ok)
	}
	for uid, want := range map[uint32]Scope{0: Admin, uint32(os.Getuid()): Admin, 4_000_000: Read, 4_000_001: 0} {
		var k SSHKey
		SSHKeyOfUser(&k, uid)
		if p, ok := g.OfSSHKey(k); !ok || p.Scope != want || p.Who != fmt.Sprintf("uid:%d", uid) {
			t.Errorf("uid %d: %+v, %v", uid, p, ok)
		}
	}
	for _, k := range []SSHKey{{}, {Who: "local"}, {Who: "token:ci", Token: "0123456789abcdef"},
		{Who: "token:x", Token: ci.Token}} {
		if p, ok := g.OfSSHKey(k); ok {
			t.Errorf("%+v: %+v", k, p)
		}
	}
	if p, ok := (&Guard{}).OfSSHKey(ci); ok { // the daemon has been started without tokens
		t.Errorf("%+v", p)
	}
}

func TestSSHKeysReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	keys, err := OpenSSHKeys(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	has := func(want int) {
		t.Helper()
		if found := keys.Find(sshKey(t, 1).Marshal()); len(found) != want {
			t.Errorf("%+v, want %d", found, want)
		}
	}
	write := func(text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	has(0)
	line := lineOf(t, 1) + "\n"
	write("uid:1 "+line, 0o644)
	has(1)
	write("uid:1 "+line+"uid:2 "+line, 0o600)
	has(2)
	write("uid:1 "+line, 0o622)
	has(0)
	write("uid:1 "+line+"nonsense\n", 0o600)
	has(0)
	write("uid:1 "+line, 0o600)
	has(1)
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 1, -1); err != nil {
			t.Fatal(err)
		}
		has(0)
		if err := os.Chown(path, 0, -1); err != nil {
			t.Fatal(err)
		}
		has(1)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	has(0)
	write("nonsense\n", 0o600)
	if _, err := OpenSSHKeys(path, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a daemon would start with a broken file")
	}
	if _, err := OpenSSHKeys(t.TempDir(), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a directory was opened")
	}
}

// If a line is a valid key, then writing the key and reading it again gives the same key.
func FuzzParseSSHKeys(f *testing.F) {
	f.Add([]byte("uid:0 " + lineOf(f, 1) + " comment\n# x\ntoken:ci@0123456789abcdef " + lineOf(f, 2)))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := ParseSSHKeys(text)
		if err != nil {
			return
		}
		for _, k := range list {
			if again, err := parseKeyLine(k.line()); err != nil || !again.same(k) || again.Comment != k.Comment ||
				again.Token != k.Token {
				t.Fatalf("%+v becomes %+v, %v", k, again, err)
			}
		}
	})
}
