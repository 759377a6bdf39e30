package auth

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const linkID = "sb-askayjdqa5urabarmv2ude3h6q"

func TestLinks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	l, err := OpenLinks(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := OpenLinks(path) // like a restarted daemon
	if err != nil {
		t.Fatal(err)
	}
	other, err := OpenLinks(path + "2")
	if err != nil {
		t.Fatal(err)
	}
	end := time.Unix(1<<34+12345, 0) // beyond 32 bits
	p := l.Sign(linkID, 65535, end)
	if label := "65535-" + linkID + "-" + p; len(label) != 63 {
		t.Errorf("%s has %d characters; the label of a host name has at most 63", label, len(label))
	}
	for _, c := range []struct {
		name, permission, id string
		links                *Links
		port                 uint16
		now                  time.Time
		want                 error
	}{
		{"right", p, linkID, again, 65535, end.Add(-time.Second), nil},
		{"expired", p, linkID, l, 65535, end, ErrLinkExpired},
		{"other port", p, linkID, l, 6553, end.Add(-time.Hour), ErrLinkForged},
		{"other sandbox", p, strings.Replace(linkID, "q", "r", 1), l, 65535, end.Add(-time.Hour), ErrLinkForged},
		{"other key", p, linkID, other, 65535, end.Add(-time.Hour), ErrLinkForged},
		{"later end", expiryText(end.Unix()+1) + p[expirySize:], linkID, l, 65535, end, ErrLinkForged},
		{"cut", p[:linkSize-1], linkID, l, 65535, end.Add(-time.Hour), ErrLinkForged},
		{"longer", p + "a", linkID, l, 65535, end.Add(-time.Hour), ErrLinkForged},
		{"empty", "", linkID, l, 65535, end.Add(-time.Hour), ErrLinkForged},
	} {
		if err := c.links.Check(c.permission, c.id, c.port, c.now); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	for i := range p { // change each character
		forged := p[:i] + string("ab"[b2i(p[i] == 'a')]) + p[i+1:]
		if err := l.Check(forged, linkID, 65535, end.Add(-time.Hour)); !errors.Is(err, ErrLinkForged) {
			t.Errorf("character %d changed: %v", i, err)
		}
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the key's mode: %v, %v", fi.Mode(), err)
	}
	os.WriteFile(path, []byte("short"), 0o600)
	if _, err := OpenLinks(path); err == nil {
		t.Error("a short key is used")
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
