package webhook

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestConfigErrors(t *testing.T) {
	hook := func(fields string) string {
		return `{"webhooks": [{"name": "n", "url": "https://h/", "secret_file": "/s"` + fields + `}]}`
	}
	for text, want := range map[string]string{
		``:                                  "EOF",
		`null`:                              "webhooks: 0 of them",
		`{}`:                                "webhooks: 0 of them",
		`{"webhook": []}`:                   `unknown field "webhook"`,
		hook("") + "x":                      "text after",
		hook(`, "secret": "x"`):             `unknown field "secret"`,
		hook(`, "name": ""`):                "webhooks[0].name",
		hook(`, "name": "a b"`):             "webhooks[0].name",
		hook(`, "url": ""`):                 "webhooks[0].url: want https://",
		hook(`, "url": "h"`):                "want https://",
		hook(`, "url": "https:"`):           "want https://",
		hook(`, "url": "ftp://h"`):          "want https://",
		hook(`, "url": "https://:443"`):     "want https://",
		hook(`, "url": "http://h"`):         "loopback",
		hook(`, "url": "http://192.0.2.1"`): "loopback",
		hook(`, "url": "http://127.0.0.1.example"`):           "loopback",
		hook(`, "url": "https://u:hidden@h"`):                 "user or password",
		hook(`, "url": "https://h/#x"`):                       "fragment",
		hook(`, "secret_file": "s"`):                          "secret_file",
		hook(`, "ca_file": "c"`):                              "ca_file",
		hook(`, "types": ["sandbox.vanished"]`):               "webhooks[0].types",
		hook(`, "types": ["missed"]`):                         "always sent",
		hook(`, "labels": ["=x"]`):                            "labels",
		strings.Replace(hook(""), "}]", `}, {}]`, 1):          "webhooks[1].name",
		`{"webhooks": [` + strings.Repeat("{},", 16) + `{}]}`: "17 of them",
	} {
		list, err := parse([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v, %v; want %q", text, list, err, want)
		}
	}
	one := `{"name": "n", "url": "https://h/", "secret_file": "/s"}`
	if _, err := parse([]byte(`{"webhooks": [` + one + "," + one + `]}`)); err == nil ||
		!strings.Contains(err.Error(), "another webhook") {
		t.Errorf("two of one name: %v", err)
	}
	for _, good := range []string{"https://h", "https://192.168.1.1:8443/a?b=c", "http://localhost:1/", "http://127.0.0.9",
		"http://[::1]:1"} {
		if _, err := parse([]byte(hook(`, "url": "` + good + `"`))); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
}

// Open refuses files that other users can change, and secrets that other users can read. Its errors
// name the field and the fix, and do not show a secret.
func TestOpenErrors(t *testing.T) {
	open := func(path string) error {
		_, err := Open(path, "", slog.New(slog.DiscardHandler))
		return err
	}
	secret, pipe := write(t, secretOf(key)), filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	config := func(secret, authority string) string {
		return write(t, `{"webhooks": [{"name": "n", "url": "https://h/", "secret_file": "`+secret+
			`", "ca_file": "`+authority+`"}]}`)
	}
	if err := open(config(secret, "")); err != nil {
		t.Fatal(err)
	}
	const hidden = "whsec_aGlkZGVu"
	for path, want := range map[string]string{
		"/nonexistent": "--webhooks /nonexistent",
		pipe:           "not a regular file",
		write(t, strings.Repeat(" ", maxConfig+1)):                  "more than",
		config("/nonexistent", ""):                                  `webhook "n": secret_file`,
		config(pipe, ""):                                            "not a regular file",
		config(write(t, "#\n"+hidden), ""):                          "line 2: want whsec_",
		config(write(t, "#"), ""):                                   "no secret",
		config(write(t, secretOf(key)[6:]), ""):                     "line 1",
		config(write(t, strings.Repeat(secretOf(key)+"\n", 5)), ""): "more than 4",
		config(write(t, strings.Repeat("#", maxSecretFile+1)), ""):  "more than",
		config(secret, "/nonexistent"):                              `webhook "n": ca_file`,
		config(secret, write(t, "nothing")):                         "no certificate",
	} {
		err := open(path)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), hidden) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	path := config(secret, "")
	for _, c := range []struct {
		path string
		mode os.FileMode
		ok   bool
	}{{path, 0o644, true}, {path, 0o664, false}, {path, 0o646, false}, {path, 0o600, true}, {secret, 0o640, false},
		{secret, 0o604, false}, {secret, 0o400, true}} {
		if err := os.Chmod(c.path, c.mode); err != nil {
			t.Fatal(err)
		}
		if err := open(path); (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "chmod 600 "+c.path) {
			t.Errorf("%#o: %v", c.mode, err)
		}
	}
	if set, err := Open("", "", nil); set != nil || err != nil {
		t.Errorf("no file: %v, %v", set, err)
	}
	(*Set)(nil).Run(t.Context(), nil, nil)
}

func TestOnlyLoopback(t *testing.T) {
	for address, ok := range map[string]bool{"127.0.0.1:80": true, "[::1]:80": true, "[::ffff:127.0.0.1]:80": true,
		"192.0.2.1:80": false, "10.0.0.1:80": false, "[::ffff:192.0.2.1]:80": false, "": false} {
		if err := onlyLoopback("tcp", address, nil); (err == nil) != ok {
			t.Errorf("%q: %v", address, err)
		}
	}
}
