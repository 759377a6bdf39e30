package sshd

import (
	"strings"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh"
)

func TestParseLogin(t *testing.T) {
	for name, want := range map[string][2]string{
		"sb-abc": {"", "sb-abc"}, "root+sb-abc": {"root", "sb-abc"}, "www-data+sb-1": {"www-data", "sb-1"},
	} {
		if account, id, err := parseLogin(name); err != nil || account != want[0] || id != want[1] {
			t.Errorf("%q: %q, %q, %v", name, account, id, err)
		}
	}
	for _, name := range []string{"", "+", "a+", "+sb-a", "a+b+c", "sb-a/..", "SB", "-a", "a b+sb-a",
		strings.Repeat("a", 65), strings.Repeat("a", 33) + "+sb-a", "sb-\x00", "root:x+sb-a"} {
		if account, id, err := parseLogin(name); err == nil {
			t.Errorf("%q: %q, %q", name, account, id)
		}
	}
}

func TestSignalNames(t *testing.T) {
	for _, s := range signals {
		if got, ok := parseSignal(ssh.Marshal(struct{ Name string }{signalName(s)})); !ok || got != s {
			t.Errorf("%v: %v", s, got)
		}
	}
	if name := signalName(syscall.SIGWINCH); name != "OTHER@forkd" {
		t.Error(name)
	}
}

// FuzzRequests passes hostile payloads to every parser.
func FuzzRequests(f *testing.F) {
	f.Add(ssh.Marshal(struct{ Text string }{"sftp"}))
	f.Add(ssh.Marshal(struct{ Name, Value string }{"LANG", "C"}))
	f.Add(ssh.Marshal(struct {
		Term       string
		A, B, C, D uint32
		Modes      string
	}{"xterm", 80, 24, 0, 0, ""}))
	f.Add(ssh.Marshal(struct {
		Host       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}{"localhost", 80, "::1", 1}))
	f.Add([]byte("root+sb-abc"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		account, id, err := parseLogin(string(payload))
		if err == nil && (!idForm.MatchString(id) || (account != "") != strings.Contains(string(payload), "+")) {
			t.Errorf("%q: %q, %q", payload, account, id)
		}
		if port, err := parseForward(payload); err == nil && port == 0 {
			t.Error("port 0")
		}
		for _, kind := range []string{"exec", "subsystem"} {
			if st, ok := parseStart(kind, payload); ok && (st.kind == "" || st.kind != "sftp" && strings.ContainsRune(
				strings.Join(st.args, ""), 0)) {
				t.Errorf("%+v", st)
			}
		}
		if term, _, ok := parsePTY(payload); ok && !termForm.MatchString(term) {
			t.Errorf("%q", term)
		}
		parseWindow(payload)
		parseSignal(payload)
		var e environment
		for range maxEnv + 1 {
			e.set(payload)
		}
		for name, value := range e.vars {
			if strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) || len(name)+len(value) > maxEnvBytes {
				t.Errorf("%q=%q", name, value)
			}
		}
	})
}
