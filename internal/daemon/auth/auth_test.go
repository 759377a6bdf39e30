package auth

import (
	"errors"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const good = "0123456789abcdef"

// write makes a token file.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, text string) (tokens *Tokens, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "tokens")
	write(t, path, text)
	tokens, err := OpenTokens(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return tokens, path
}

func TestIdentify(t *testing.T) {
	tokens, _ := open(t, good)
	g := &Guard{Tokens: tokens}
	for header, want := range map[string]string{
		"":                     "missing",
		"Basic x":              "missing",
		"Bearer":               "missing",
		"Bearer ":              "missing",
		"Bearer " + good[1:]:   "invalid",
		"Bearer " + good + "x": "invalid",
		"Bearer " + good:       "",
		"bearer " + good:       "",
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", header)
		p, err := g.Identify(r)
		if (want == "") != (err == nil) || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %q", header, err, want)
		}
		if err == nil && (p.Who != "token:default" || p.Scope != Admin) {
			t.Errorf("%q: %+v", header, p)
		}
	}
	if p, err := (*Guard)(nil).Identify(httptest.NewRequest("GET", "/", nil)); err != nil || p.Who != "local" ||
		p.Scope != Admin {
		t.Errorf("no token configured: %+v, %v", p, err)
	}
}

// The token in TokenHeader is used even if Authorization has another token.
func TestIdentifyByTheOwnHeader(t *testing.T) {
	tokens, _ := open(t, good)
	g := &Guard{Tokens: tokens}
	for _, c := range []struct {
		own, authorization string
		ok                 bool
	}{{good, "Basic x", true}, {good, "", true}, {good + "x", "Bearer " + good, false}, {"", "Bearer " + good, true}} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set(TokenHeader, c.own)
		r.Header.Set("Authorization", c.authorization)
		if _, err := g.Identify(r); (err == nil) != c.ok {
			t.Errorf("%q, %q: %v", c.own, c.authorization, err)
		}
	}
	r := httptest.NewRequest("GET", "/", nil)
	if _, err := g.IdentifyBy(r, good); err != nil {
		t.Error(err)
	}
	if _, err := g.IdentifyBy(r, good+"x"); err == nil {
		t.Error("a wrong key is taken")
	}
	if !g.IsToken(good) || g.IsToken("") || g.IsToken(good+"x") || (*Guard)(nil).IsToken(good) {
		t.Error("IsToken knows no token from another text")
	}
}

func TestWeakTokensAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	for _, bad := range []string{"", "# nothing", "#forkd-tokens-of-ci", "short", "REPLACE_ME_WITH_A_TOKEN",
		"CHANGE_ME_0123456789", "change-me-0123456789",
		"your-token-goes-here", "<your-token-here>", strings.Repeat("x", 32), good + " " + good, "ci run " + good,
		"ci root " + hashOf(t, good),
		"ci run " + hashOf(t, good) + " label-prefix=a", "ci run " + hashOf(t, good) + " label-prefix=a.b/",
		"ci admin " + hashOf(t, good) + " label-prefix=a/"} {
		write(t, path, bad)
		if _, err := OpenTokens(path, nil); err == nil {
			t.Errorf("%q: accepted", bad)
		} else if len(bad) > 10 && (strings.Contains(err.Error(), bad) || strings.Contains(err.Error(), good)) {
			t.Errorf("the error shows the token: %v", err)
		}
	}
	write(t, path, good+"\n")
	if _, err := OpenTokens(path, nil); err != nil {
		t.Errorf("good token: %v", err)
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenTokens(path, nil); err == nil || !strings.Contains(err.Error(), "chmod 600 "+path) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
}

// hashOf returns the hash of a token as it is stored in token files.
func hashOf(t *testing.T, token string) string {
	t.Helper()
	sum, err := digestOf(token)
	if err != nil {
		t.Fatal(err)
	}
	line := (&Token{Name: "x", Scope: Read, digest: sum}).line()
	return line[strings.LastIndex(line, " ")+1:]
}

func TestNamedTokens(t *testing.T) {
	file := []byte("# who\n\n")
	file, ci, err := Add(file, Token{Name: "ci", Scope: Run, MaxSandboxes: 3, Prefix: "ci/"}, false)
	if err != nil {
		t.Fatal(err)
	}
	file, e2b, err := Add(file, Token{Name: "e2b", Scope: Admin}, true)
	if err != nil || !strings.HasPrefix(e2b, "e2b_") || len(e2b) != len("e2b_")+40 {
		t.Fatalf("%q, %v", e2b, err)
	}
	if strings.Contains(string(file), ci) || strings.Contains(string(file), e2b) {
		t.Error("the file has a token, and not only its hash")
	}
	if _, _, err := Add(file, Token{Name: "ci", Scope: Read}, false); err == nil {
		t.Error("a second token of the same name")
	}
	for _, bad := range []string{"", "-x", "a b", "a\nb", strings.Repeat("x", 65)} {
		if _, _, err := Add(nil, Token{Name: bad, Scope: Read}, false); err == nil {
			t.Errorf("name %q", bad)
		}
	}
	tokens, path := open(t, string(file))
	for token, want := range map[string]Principal{
		ci:  {Who: "token:ci", Scope: Run, MaxSandboxes: 3, Prefix: "ci/"},
		e2b: {Who: "token:e2b", Scope: Admin},
	} {
		if p, ok := tokens.Resolve(token); !ok || p != want {
			t.Errorf("%+v, want %+v", p, want)
		}
	}
	if _, ok := tokens.Resolve(good); ok {
		t.Error("an unknown token is taken")
	}

	// A token that was removed from the file is invalid from the next request on, even if the file
	// had no other token.
	less, err := Remove(file, "e2b")
	if err != nil || !strings.HasPrefix(string(less), "# who\n") {
		t.Fatalf("%q, %v", less, err)
	}
	write(t, path, string(less))
	if _, ok := tokens.Resolve(e2b); ok {
		t.Error("a removed token is taken")
	}
	if _, ok := tokens.Resolve(ci); !ok {
		t.Error("the other one is gone too")
	}
	write(t, path, "ci run nonsense")
	if _, ok := tokens.Resolve(ci); !ok {
		t.Error("a broken file has locked everybody out")
	}
	none, err := Remove(less, "ci")
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, string(none))
	if _, ok := tokens.Resolve(ci); ok {
		t.Error("the last token is taken after its removal")
	}
	if _, err := Remove(none, "ci"); err == nil {
		t.Error("a token was removed twice")
	}
	if _, _, err := Add([]byte(good), Token{Name: "x", Scope: Run}, false); err == nil {
		t.Error("a file that is one token has become something else")
	}
}

// A comment that is a single word is not a token, whether it is alone in a new file, or remains
// after the tokens were removed.
func TestCommentIsNoToken(t *testing.T) {
	const comment = "#forkd-tokens-of-ci"
	file, ci, err := Add([]byte(comment+"\n"), Token{Name: "ci", Scope: Run}, false)
	if err != nil {
		t.Fatal(err)
	}
	tokens, path := open(t, string(file))
	if _, ok := tokens.Resolve(ci); !ok {
		t.Error("the token beside the comment is not taken")
	}
	left, err := Remove(file, "ci")
	if err != nil || string(left) != comment+"\n" {
		t.Fatalf("%q, %v", left, err)
	}
	write(t, path, string(left))
	if p, ok := tokens.Resolve(comment); ok {
		t.Errorf("the comment is the token of %+v", p)
	}
	if _, ok := tokens.Resolve(ci); ok {
		t.Error("the removed token is taken")
	}
}

// A token file that has changed is read again, even if its old content has been in use for a long
// time.
func TestOldTokenFileIsReadAgainWhenItChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	write(t, path, good)
	long := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, long, long); err != nil {
		t.Fatal(err)
	}
	tokens, err := OpenTokens(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if !tokens.seen.Holds(path) {
		t.Error("it is read again for every request")
	}
	write(t, path, good+"0")
	if _, ok := tokens.Resolve(good); ok {
		t.Error("the old token is taken")
	}
	if _, ok := tokens.Resolve(good + "0"); !ok {
		t.Error("the new token is not taken")
	}
}

func TestScopes(t *testing.T) {
	for _, s := range []Scope{Read, Run, Admin} {
		if got, err := ParseScope(s.String()); err != nil || got != s {
			t.Errorf("%v: %v, %v", s, got, err)
		}
		p := Principal{Who: "token:x", Scope: s}
		for _, want := range []Scope{Read, Run, Admin} {
			err := p.Need(want)
			var refused *ScopeError
			if (err == nil) != (want <= s) || err != nil && !errors.As(err, &refused) {
				t.Errorf("%v for %v: %v", s, want, err)
			}
		}
	}
	if (Principal{}).Need(Read) == nil {
		t.Error("nobody may read")
	}
	for _, bad := range []string{"", "root", "Read", "none"} {
		if _, err := ParseScope(bad); err == nil {
			t.Errorf("%q is a scope", bad)
		}
	}
}

func TestCheckBind(t *testing.T) {
	for _, c := range []struct {
		addr   string
		proven bool
		ok     bool
	}{
		{"127.0.0.1:1", false, true}, {"[::1]:1", false, true}, {"localhost:1", false, true},
		{"0.0.0.0:1", false, false}, {":1", false, false}, {"10.0.0.1:1", false, false}, {"[::]:1", false, false},
		{"0.0.0.0:1", true, true}, {":1", true, true}, {"nonsense", true, false},
	} {
		if err := CheckBind(c.addr, c.proven); (err == nil) != c.ok {
			t.Errorf("%s (%v): %v", c.addr, c.proven, err)
		}
	}
}
