package vault

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/crypt"
)

// secretFile writes a key file.
func secretFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// script writes a program for --kms-command.
func script(t *testing.T, text string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kms")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return []string{path, "extra"}
}

func open(t *testing.T, cfg Config) *Vault {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = filepath.Join(t.TempDir(), "keys")
	}
	v, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	v.keep = 0
	return v
}

// fresh forgets the unwrapped keys, as a restart does.
func (v *Vault) fresh() {
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(v.known)
}

var ctx = context.Background()

const secretText = "0123456789abcdef0123456789abcdef"

// working is a program that works: it marks wrapped keys, and refuses an ID that it has not seen.
const working = `case $2 in
wrap) touch "$0.$3"; printf W; cat;;
unwrap) test -e "$0.$3" || { echo "no such key" >&2; exit 1; }; tail -c +2;;
esac`

func TestKeys(t *testing.T) {
	for name, cfg := range map[string]Config{"file": {KeyFile: secretFile(t, secretText)},
		"command": {Command: script(t, working)}} {
		t.Run(name, func(t *testing.T) {
			v := open(t, cfg)
			id, key, err := v.New(ctx)
			if err != nil {
				t.Fatal(err)
			}
			p, err := os.ReadFile(v.path(id))
			if err != nil || name == "file" && bytes.Contains(p, key[:]) {
				t.Errorf("the record has the key: %v", err)
			}
			cfg.Dir = v.cfg.Dir
			v = open(t, cfg)
			if got, err := v.Key(ctx, id); err != nil || got != key {
				t.Errorf("another key: %v", err)
			}
			if err := v.Destroy(id); err != nil {
				t.Fatal(err)
			}
			var no *KeyError
			if _, err := v.Key(ctx, id); !errors.As(err, &no) || !errors.Is(err, ErrDestroyed) {
				t.Errorf("a destroyed key: %v", err)
			}
			if err := v.Destroy(id); err != nil {
				t.Errorf("destroyed again: %v", err)
			}
			if left, err := os.ReadDir(v.cfg.Dir); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

func TestKeysThatCannotBeUnwrapped(t *testing.T) {
	good := secretFile(t, secretText)
	v := open(t, Config{KeyFile: good})
	id, _, err := v.New(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"another secret": {Config{KeyFile: secretFile(t, "another secret of more than 32 bytes")}, "another one"},
		"no secret":      {Config{}, "--key-file"},
		"a program":      {Config{Command: script(t, working)}, "--key-file"},
	} {
		c.cfg.Dir = v.cfg.Dir
		if _, err := open(t, c.cfg).Key(ctx, id); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	rec, err := os.ReadFile(v.path(id))
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := v.New(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string][]byte{
		"truncated":      rec[:len(rec)/2],
		"empty":          {},
		"other id":       bytes.ReplaceAll(rec, []byte(id), []byte(crypt.NewID())),
		"another's key":  otherKey(t, v, id, other, rec),
		"unknown wrap":   bytes.Replace(rec, []byte(`"file"`), []byte(`"none"`), 1),
		"no base64":      bytes.Replace(rec, []byte(`"wrapped":"`), []byte(`"wrapped":"!`), 1),
		"another check":  bytes.Replace(rec, []byte(`"check":"`), []byte(`"check":"A`), 1),
		"random garbage": bytes.Repeat([]byte{0xf3}, 100),
	} {
		if err := os.WriteFile(v.path(id), p, 0o600); err != nil {
			t.Fatal(err)
		}
		v.fresh()
		if _, err := v.Key(ctx, id); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := v.Key(ctx, "../"+id); err == nil {
		t.Error("a path was accepted as the ID of a key")
	}
}

// otherKey returns the record of one key with the wrapped key of another key.
func otherKey(t *testing.T, v *Vault, id, other string, rec []byte) []byte {
	t.Helper()
	p, err := os.ReadFile(v.path(other))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.ReplaceAll(p, []byte(other), []byte(id))
}

func TestBadPrograms(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"hangs":              {"sleep 1000 & wait", "no answer"},
		"fails":              {"echo 'access denied' >&2; exit 3", "access denied"},
		"is silent":          {"cat >/dev/null", "no key"},
		"never stops":        {"cat /dev/zero", "no key"},
		"lies":               {`case $2 in wrap) cat;; unwrap) echo 0123456789abcdef0123456789abcde;; esac`, "another key"},
		"returns too little": {`case $2 in wrap) cat;; unwrap) head -c 31;; esac`, "31 bytes"},
		"unwrap fails":       {`case $2 in wrap) cat;; unwrap) exit 1;; esac`, "exit status 1"},
	} {
		t.Run(name, func(t *testing.T) {
			v := open(t, Config{Command: script(t, c.script)})
			if v.time = 10 * time.Second; name == "hangs" {
				v.time = 200 * time.Millisecond
			}
			_, _, err := v.New(ctx)
			var no *KeyError
			if !errors.As(err, &no) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if left, _ := os.ReadDir(v.cfg.Dir); len(left) > 0 {
				t.Errorf("a key that cannot be unwrapped was kept: %v", left)
			}
		})
	}
	if _, _, err := open(t, Config{}).New(ctx); err == nil || !strings.Contains(err.Error(), "--key-file") {
		t.Errorf("without a secret: %v", err)
	}
}

// The program gets only a few variables of the daemon's environment, and the variables that the
// configuration names.
func TestEnvironmentOfTheProgram(t *testing.T) {
	for name, value := range map[string]string{"AWS_REGION": "eu-1", "HTTPS_PROXY": "http://u:p@proxy", "HOME": "/h"} {
		t.Setenv(name, value)
	}
	seen := filepath.Join(t.TempDir(), "env")
	v := open(t, Config{Env: []string{"AWS_REGION", "UNSET"}, Command: script(t, "env >"+seen+"; cat")})
	if _, _, err := v.New(ctx); err != nil {
		t.Fatal(err)
	}
	p, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for line := range strings.Lines(string(p)) {
		has[strings.TrimSuffix(line, "\n")] = true
	}
	if !has["AWS_REGION=eu-1"] || !has["HOME=/h"] || !has["PATH="+os.Getenv("PATH")] ||
		strings.Contains(string(p), "PROXY") || strings.Contains(string(p), "UNSET") {
		t.Errorf("environment of the program:\n%s", p)
	}
	if _, err := Open(Config{Dir: t.TempDir(), Env: []string{"AWS_REGION"}}); err == nil {
		t.Error("accepted variables without a program")
	}
}

// silence sets when the program last gave no answer, and returns the earlier value.
func (v *Vault) silence(at time.Time) (before time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	before, v.silent = v.silent, at
	return before
}

// If a program hangs, the forks that need it wait for the time limit only once, and not once for
// each fork.
func TestSilentProgramsAreNotRunAgain(t *testing.T) {
	runs := filepath.Join(t.TempDir(), "runs")
	v := open(t, Config{Command: script(t, "echo run >>"+runs+"; sleep 1000 & wait")})
	v.time = 200 * time.Millisecond
	var no *KeyError
	for range 5 {
		if _, _, err := v.New(ctx); !errors.As(err, &no) || !strings.Contains(err.Error(), "no answer") {
			t.Errorf("%v", err)
		}
	}
	if p, err := os.ReadFile(runs); err != nil || string(p) != "run\n" {
		t.Errorf("the program ran: %q, %v", p, err)
	}
	v.silence(time.Now().Add(-silentTime))
	if _, _, err := v.New(ctx); !errors.As(err, &no) {
		t.Errorf("%v", err)
	}
	if p, _ := os.ReadFile(runs); string(p) != "run\nrun\n" {
		t.Errorf("it is not run again: %q", p)
	}
	left, cancel := context.WithCancel(ctx)
	cancel()
	v.silence(time.Time{})
	if _, _, err := v.New(left); err == nil || !v.silence(time.Time{}).IsZero() {
		t.Errorf("a client that leaves counts as a silent program: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	state := t.TempDir()
	inside := filepath.Join(state, "secret")
	shared := secretFile(t, secretText)
	if err := errors.Join(os.WriteFile(inside, []byte(secretText), 0o600), os.Chmod(shared, 0o640)); err != nil {
		t.Fatal(err)
	}
	for want, cfg := range map[string]Config{
		"state directory": {KeyFile: inside},
		"mode":            {KeyFile: shared},
		"want at least":   {KeyFile: secretFile(t, "short")},
		"exclude":         {KeyFile: secretFile(t, secretText), Command: []string{"/bin/cat"}},
		"no such file":    {KeyFile: filepath.Join(t.TempDir(), "none")},
	} {
		cfg.Dir = filepath.Join(state, "keys")
		if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
	for text, ok := range map[string]bool{"": true, "/bin/cat": true, "/bin/cat a  b": true, "cat": false, " ": false} {
		if _, err := ParseCommand(text); (err == nil) != ok {
			t.Errorf("ParseCommand(%q): %v", text, err)
		}
	}
}

func TestDecrypt(t *testing.T) {
	ram, err := os.MkdirTemp("/dev/shm", "forkd-vault-")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { os.RemoveAll(ram) })
	v := open(t, Config{RAM: ram, KeyFile: secretFile(t, secretText)})
	id, key, err := v.New(ctx)
	if err != nil {
		t.Fatal(err)
	}
	enc, err := os.Create(filepath.Join(t.TempDir(), "x"+crypt.Suffix))
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	w, err := crypt.NewWriter(enc, &key, crypt.Header{KeyID: id, Name: "vmstate a", Bytes: 1 << 30, Data: 6})
	if err == nil {
		err = errors.Join(w.Write(1<<20, []byte("marker")), w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	room := func(n uint64) bool { return n == 6 }
	f, err := v.Decrypt(ctx, enc, "vmstate a", room)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := make([]byte, 6)
	if _, err := f.ReadAt(p, 1<<20); err != nil || string(p) != "marker" {
		t.Errorf("%q, %v", p, err)
	}
	if _, err := f.WriteAt(p, 0); err == nil {
		t.Error("the decrypted file can be written")
	}
	if st, err := f.Stat(); err != nil || st.Size() != 1<<30 {
		t.Errorf("%v, %v", st, err)
	}
	if left, err := os.ReadDir(ram); err != nil || len(left) > 0 {
		t.Errorf("the decrypted file has a name: %v, %v", left, err)
	}
	var small *RoomError
	if _, err := v.Decrypt(ctx, enc, "vmstate a", func(uint64) bool { return false }); !errors.As(err, &small) {
		t.Errorf("no room: %v", err)
	}
	if _, err := v.Decrypt(ctx, enc, "vmstate b", room); !errors.Is(err, crypt.ErrChanged) {
		t.Errorf("another file: %v", err)
	}
	v.cfg.RAM = t.TempDir()
	if _, err := v.Decrypt(ctx, enc, "vmstate a", room); err == nil || !strings.Contains(err.Error(), "tmpfs") {
		t.Errorf("decrypted onto a disk: %v", err)
	}
}

// Files that Seal encrypts are first written to the RAM directory, so Seal fails if this directory
// is on a disk.
func TestSealNeedsRAM(t *testing.T) {
	v := open(t, Config{RAM: "/proc", KeyFile: secretFile(t, secretText)})
	if _, err := v.Seal(ctx); err == nil || !strings.Contains(err.Error(), "not on tmpfs") {
		t.Errorf("--ram-dir on another file system: %v", err)
	}
	if keys, err := os.ReadDir(v.cfg.Dir); err != nil || len(keys) > 0 {
		t.Errorf("keys %v, %v", keys, err)
	}
}
