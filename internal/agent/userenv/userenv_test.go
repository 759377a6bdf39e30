package userenv

import (
	"slices"
	"testing"
)

func TestEnvironOrder(t *testing.T) {
	e := New()
	u := &User{Name: "ann", Home: "/home/ann"}
	e.Merge(map[string]string{"A": "sandbox", "B": "sandbox", "HOME": "/elsewhere"})
	env := e.Environ(u, map[string]string{"B": "call"})
	for _, want := range []string{"A=sandbox", "B=call", "HOME=/elsewhere", "USER=ann", "LOGNAME=ann", "PATH=" + DefaultPath} {
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
		"": "/home/ann", "~": "/home/ann", "~/x": "/home/ann/x", "x/../y": "/home/ann/y", "/a//b/": "/a/b", "~x": "/home/ann/~x",
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
