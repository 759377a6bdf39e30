package auth

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const good = "0123456789abcdef"

func TestCheck(t *testing.T) {
	token, err := Parse(good)
	if err != nil {
		t.Fatal(err)
	}
	for header, want := range map[string]string{
		"":                     "missing",
		"Basic x":              "missing",
		"Bearer":               "missing",
		"Bearer ":              "invalid",
		"Bearer " + good[1:]:   "invalid",
		"Bearer " + good + "x": "invalid",
		"Bearer " + good:       "",
		"bearer " + good:       "",
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", header)
		err := token.Check(r)
		if (want == "") != (err == nil) || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %q", header, err, want)
		}
	}
	if err := (Token{}).Check(httptest.NewRequest("GET", "/", nil)); err != nil {
		t.Errorf("no token configured: %v", err)
	}
}

// A token in its own header decides, whatever else there is.
func TestCheckOfTheOwnHeader(t *testing.T) {
	token, err := Parse(good)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		own, authorization string
		ok                 bool
	}{{good, "Basic x", true}, {good, "", true}, {good + "x", "Bearer " + good, false}, {"", "Bearer " + good, true}} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set(TokenHeader, c.own)
		r.Header.Set("Authorization", c.authorization)
		if err := token.Check(r); (err == nil) != c.ok {
			t.Errorf("%q, %q: %v", c.own, c.authorization, err)
		}
	}
}

func TestLoadRefusesWeakTokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	for _, bad := range []string{"", "short", "REPLACE_ME_WITH_A_TOKEN", "CHANGE_ME_0123456789", good + " " + good} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); err == nil {
			t.Errorf("%q: accepted", bad)
		} else if len(bad) > 5 && strings.Contains(err.Error(), bad) {
			t.Errorf("the error shows the token: %v", err)
		}
	}
	if err := os.WriteFile(path, []byte(good+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if token, err := Load(path); err != nil || !token.IsSet() {
		t.Errorf("good token: %v", err)
	}
}

func TestCheckBind(t *testing.T) {
	token, _ := Parse(good)
	for _, c := range []struct {
		addr  string
		token Token
		ok    bool
	}{
		{"127.0.0.1:1", Token{}, true}, {"[::1]:1", Token{}, true}, {"localhost:1", Token{}, true},
		{"0.0.0.0:1", Token{}, false}, {":1", Token{}, false}, {"10.0.0.1:1", Token{}, false}, {"[::]:1", Token{}, false},
		{"0.0.0.0:1", token, true}, {":1", token, true}, {"nonsense", token, false},
	} {
		if err := CheckBind(c.addr, c.token); (err == nil) != c.ok {
			t.Errorf("%s (token %v): %v", c.addr, c.token.IsSet(), err)
		}
	}
}
