package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

// text is a regular file with content.
type text struct {
	tar.Header
	content string
}

// filtered returns the entries of an archive after the account was added, by name.
func filtered(t *testing.T, entries ...text) map[string]text {
	t.Helper()
	var in, out bytes.Buffer
	w := tar.NewWriter(&in)
	for _, e := range entries {
		e.Size = int64(len(e.content))
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f := &tarFilter{out: tar.NewWriter(&out), maxBytes: 1 << 20, defaults: defaultFiles(),
		account: &account{files: map[string]overlayFile{}}}
	if err := f.copy(&in); err != nil {
		t.Fatal(err)
	}
	got := map[string]text{}
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := got[h.Name]; twice && h.Typeflag != tar.TypeDir {
			t.Errorf("%s comes twice", h.Name)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got[h.Name] = text{*h, string(content)}
	}
}

func TestAccountIsAdded(t *testing.T) {
	got := filtered(t,
		text{tar.Header{Typeflag: tar.TypeReg, Name: "etc/group", Mode: 0o644}, "root:x:0:\nstaff:x:1000:"},
		text{tar.Header{Typeflag: tar.TypeReg, Name: "./etc/passwd", Mode: 0o644}, "root:x:0:0:root:/root:/bin/bash\n"},
		text{tar.Header{Typeflag: tar.TypeReg, Name: "etc/shadow", Mode: 0o640, Gid: 42}, "root:*:1:0:9:7:::\n"},
		text{tar.Header{Typeflag: tar.TypeReg, Name: "etc/skel/.profile", Mode: 0o644}, "umask 022\n"},
		text{dir("etc/sudoers.d/"), ""}, text{reg("usr/bin/bash"), ""})
	for name, want := range map[string]string{
		"etc/passwd":         "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1001::/home/user:/bin/bash\n",
		"etc/group":          "root:x:0:\nstaff:x:1000:\nuser:x:1001:\n",
		"etc/shadow":         "root:*:1:0:9:7:::\nuser:*::0:99999:7:::\n",
		"etc/skel/.profile":  "umask 022\n",
		"home/user/.profile": "umask 022\n",
		"etc/sudoers.d/user": "user ALL=(ALL:ALL) NOPASSWD: ALL\n",
	} {
		if got[name].content != want {
			t.Errorf("%s is %q, want %q", name, got[name].content, want)
		}
	}
	if h := got["home/user/"].Header; h.Uid != 1000 || h.Gid != 1001 || h.Mode != 0o755 {
		t.Errorf("the home: %+v", h)
	}
	if h := got["home/user/.profile"].Header; h.Uid != 1000 || h.Gid != 1001 {
		t.Errorf("a file of the home: %+v", h)
	}
	if h := got["etc/shadow"].Header; h.Gid != 42 || h.Mode != 0o640 {
		t.Errorf("shadow: %+v", h)
	}
	if h := got["etc/sudoers.d/user"].Header; h.Mode != 0o440 || h.Uid != 0 { // sudo requires it
		t.Errorf("the rule of sudo: %+v", h)
	}
}

func TestAccountThatIsThereStays(t *testing.T) {
	own := "root:x:0:0::/root:/bin/sh\nuser:x:7:8::/srv:/bin/sh\n"
	got := filtered(t, text{tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644}, own})
	if got["etc/passwd"].content != own {
		t.Errorf("passwd: %q", got["etc/passwd"].content)
	}
	if _, ok := got["home/user/"]; ok {
		t.Error("it got a second home")
	}
}

func TestAccountInAnEmptyImage(t *testing.T) {
	got := filtered(t)
	if p := got["etc/passwd"].content; !strings.HasPrefix(p, "root:") ||
		!strings.HasSuffix(p, "user:x:1000:1000::/home/user:/bin/sh\n") {
		t.Errorf("passwd: %q", p)
	}
	if g := got["etc/group"].content; !strings.HasSuffix(g, "\nuser:x:1000:\n") {
		t.Errorf("group: %q", g)
	}
	if _, ok := got["etc/sudoers.d/user"]; ok {
		t.Error("there is a rule for a sudo that is not there")
	}
}

// A hard link to an account file has the new account too. The link comes after the file, since tar
// can link only to existing files.
func TestAccountBehindHardLinks(t *testing.T) {
	f := &tarFilter{account: &account{files: map[string]overlayFile{}}}
	out, err := filterAll(f, archive(t, dir("etc"), hard("usr/passwd", "etc/other"), reg("etc/passwd"),
		reg("etc/group"), hard("etc/other", "etc/passwd")))
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, h := range out {
		order = append(order, h.Name)
	}
	at := func(name string) int { return slices.Index(order, name) }
	if at("etc/passwd") < 0 || at("etc/other") < at("etc/passwd") || at("usr/passwd") < at("etc/other") {
		t.Errorf("written in the order %v", order)
	}
	links := []tar.Header{dir("etc"), reg("etc/passwd")}
	for i := range maxAccountLinks + 1 {
		links = append(links, hard(fmt.Sprintf("l%d", i), "etc/passwd"))
	}
	f = &tarFilter{account: &account{files: map[string]overlayFile{}}}
	if _, err := filterAll(f, archive(t, links...)); err == nil || !strings.Contains(err.Error(), "hard links") {
		t.Errorf("%d hard links: %v", maxAccountLinks+1, err)
	}
}

func TestAccountWantsRegularFiles(t *testing.T) {
	f := &tarFilter{account: &account{files: map[string]overlayFile{}}}
	if _, err := filterAll(f, archive(t, sym("etc/passwd", "/usr/lib/passwd"))); err == nil {
		t.Error("an account was added to a symbolic link")
	}
	f = &tarFilter{defaults: defaultFiles(), account: &account{files: map[string]overlayFile{}}}
	if _, err := filterAll(f, archive(t, sym("etc", "srv"))); err == nil ||
		!strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("an account was added below a symbolic link: %v", err)
	}
	r := Recipe{Name: "x", Base: "debian:bookworm", User: true, Files: []File{{Source: "p", Target: "/etc/passwd"}}}
	r.setDefaults()
	if err := r.validate(); err == nil || !strings.Contains(err.Error(), "/etc/passwd") {
		t.Errorf("user beside a passwd of the recipe's own: %v", err)
	}
}
