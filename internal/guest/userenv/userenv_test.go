package userenv

import (
	"os/user"
	"slices"
	"strings"
	"testing"
)

func TestEnvironOrder(t *testing.T) {
	e := New()
	u := &User{Name: "ann", Home: "/home/ann"}
	e.Merge(map[string]string{"A": "sandbox", "B": "sandbox", "HOME": "/elsewhere"})
	env := e.Environ(u, map[string]string{"B": "call"})
	for _, want := range []string{"A=sandbox", "B=call", "HOME=/elsewhere", "USER=ann", "LOGNAME=ann",
		"PATH=" + DefaultPath} {
		if !slices.Contains(env, want) {
			t.Errorf("%v lacks %s", env, want)
		}
	}
	if len(env) != 6 {
		t.Errorf("env has %d entries, want 6: %v", len(env), env)
	}
}

func TestPath(t *testing.T) {
	u := &User{Home: "/home/ann"}
	for in, want := range map[string]string{
		"": "/home/ann", "~": "/home/ann", "~/x": "/home/ann/x", "x/../y": "/home/ann/y", "/a//b/": "/a/b",
		"~x": "/home/ann/~x",
	} {
		if got := Path(u, in); got != want {
			t.Errorf("Path(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestUnknownUserIsNamed(t *testing.T) {
	if _, err := New().User("nobody-here"); err == nil || err.Error() != `user "nobody-here" does not exist in the guest` {
		t.Fatalf("err = %v", err)
	}
}

func TestDirRefusesMissingAndFiles(t *testing.T) {
	e, u := New(), &User{Home: "/"}
	if _, err := e.Dir(u, "/no/such"); err == nil {
		t.Error("missing directory accepted")
	}
	if _, err := e.Dir(u, "/etc/passwd"); err == nil {
		t.Error("file accepted")
	}
	if d, err := e.Dir(u, ""); err != nil || d != "/" {
		t.Errorf("Dir(\"\") = %q, %v", d, err)
	}
}

func TestRootNeedsNoPasswd(t *testing.T) {
	none := func(name string) (*user.User, error) { return nil, user.UnknownUserError(name) }
	u, err := account("root", none)
	if err != nil || u.UID != 0 || u.GID != 0 || u.Name != "root" || !strings.HasPrefix(u.Home, "/") {
		t.Errorf("%+v, %v", u, err)
	}
	if u, err := account("ann", none); err == nil {
		t.Errorf("an unknown account is %+v", u)
	}
}

func TestAMissingHomeIsNoObstacle(t *testing.T) {
	e := New()
	u := &User{Name: "nobody", Home: "/nonexistent"}
	if dir, err := e.Dir(u, ""); err != nil || dir != "/" {
		t.Errorf("%q, %v", dir, err)
	}
	if dir, err := e.Dir(u, "/nonexistent"); err == nil {
		t.Errorf("a directory that was asked for and is missing became %q", dir)
	}
}

func TestCheckVars(t *testing.T) {
	for name, value := range map[string]string{"": "v", "A=B": "v", "A\x00": "v", "A": "v\x00"} {
		if err := CheckVars(map[string]string{name: value}); err == nil || !strings.HasPrefix(err.Error(), "environment: ") {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := CheckVars(map[string]string{"A": "", "b_1": "x=y"}); err != nil {
		t.Error(err)
	}
}

// An interface may have its own default user. If a request names no user, it is executed as that
// user, provided that no other default is set and the guest has the account.
func TestDefaultUserOfAnInterface(t *testing.T) {
	e := New()
	for _, c := range []struct{ name, preferred, want string }{
		{"", "", "root"}, {"", "nobody", "nobody"}, {"", "nobody-here", "root"}, {"root", "nobody", "root"},
	} {
		if u, err := e.UserOr(c.name, c.preferred); err != nil || u.Name != c.want {
			t.Errorf("%+v: %+v, %v", c, u, err)
		}
	}
	e.SetDefaults("root", "")
	if u, err := e.UserOr("", "nobody"); err != nil || u.Name != "root" {
		t.Errorf("with another default: %+v, %v", u, err)
	}
	if _, err := e.UserOr("nobody-here", "nobody"); err == nil {
		t.Error("an account that was named and is missing was replaced")
	}
}
