package vault

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/forkd/forkd/internal/format/crypt"
	"github.com/forkd/forkd/internal/host/excerpt"
	"github.com/forkd/forkd/internal/private"
)

// Bounds, in bytes.
const (
	minSecret  = 32
	maxSecret  = 4096
	maxWrapped = 32 << 10 // for the output of the --kms-command program
	saltBytes  = 32
)

// checkKeyFile makes the path of the key file absolute. It refuses a key file in the state
// directory: someone who stole the wrapped keys from there would also have the key file.
func checkKeyFile(cfg *Config) (err error) {
	if cfg.KeyFile == "" {
		return nil
	}
	if cfg.KeyFile, err = filepath.Abs(cfg.KeyFile); err != nil {
		return err
	}
	state, file := filepath.Dir(filepath.Clean(cfg.Dir)), cfg.KeyFile
	for _, p := range []*string{&state, &file} {
		if real, err := filepath.EvalSymlinks(*p); err == nil {
			*p = real
		}
	}
	if strings.HasPrefix(file, state+"/") {
		return fmt.Errorf("--key-file %s: is in the state directory, so the files that it protects are stolen with it",
			cfg.KeyFile)
	}
	_, err = secret(cfg.KeyFile)
	return err
}

// secret reads the secret in a key file.
func secret(path string) ([]byte, error) {
	p, _, err := private.ReadFile(path, 0o077, maxSecret)
	if err == nil && len(p) < minSecret {
		err = fmt.Errorf("%s has %d bytes: want at least %d random ones, as of 'head -c 32 /dev/urandom'", path, len(p),
			minSecret)
	}
	if err != nil {
		return nil, fmt.Errorf("--key-file: %w", err)
	}
	return p, nil
}

// wrapper returns the cipher that wraps one key with the secret in the key file. The salt is random
// and used only once, so the nonce can be constant.
func (v *Vault) wrapper(id string, salt []byte) (cipher.AEAD, error) {
	p, err := secret(v.cfg.KeyFile)
	if err != nil {
		return nil, err
	}
	own, err := hkdf.Key(sha256.New, p, salt, "forkd wrapped key "+id, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(own)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

func (v *Vault) wrapByFile(id string, key *crypt.Key) ([]byte, error) {
	salt := make([]byte, saltBytes)
	_, _ = rand.Read(salt) // never fails
	w, err := v.wrapper(id, salt)
	if err != nil {
		return nil, err
	}
	return w.Seal(salt, make([]byte, w.NonceSize()), key[:], nil), nil
}

func (v *Vault) unwrapByFile(id string, wrapped []byte) ([]byte, error) {
	if len(wrapped) < saltBytes {
		return nil, errors.New("its record is damaged")
	}
	w, err := v.wrapper(id, wrapped[:saltBytes])
	if err != nil {
		return nil, err
	}
	p, err := w.Open(nil, make([]byte, w.NonceSize()), wrapped[saltBytes:], nil)
	if err != nil {
		return nil, errors.New("the secret in --key-file is another one, or the record of the key is damaged")
	}
	return p, nil
}

// run runs the program of --kms-command with the arguments "wrap" or "unwrap" and the ID of the
// key. The program reads the given bytes from its standard input. The program writes the result to
// standard output. If the program gave no answer a moment ago, run returns an error immediately.
// Otherwise each fork that waits for the same snapshot, and each sandbox that a starting daemon
// takes over, would wait for the whole limit, one after the other.
func (v *Vault) run(ctx context.Context, verb, id string, in []byte) ([]byte, error) {
	v.mu.Lock()
	silent := time.Since(v.silent) < silentTime
	v.mu.Unlock()
	if silent {
		return nil, fmt.Errorf("%s gave no answer a moment ago: try again in %v", v.cfg.Command[0], silentTime)
	}
	client := ctx
	ctx, cancel := context.WithTimeout(ctx, v.time)
	defer cancel()
	args := append(append([]string{}, v.cfg.Command[1:]...), verb, id)
	cmd := exec.CommandContext(ctx, v.cfg.Command[0], args...)
	cmd.Env = v.cfg.environment()
	cmd.Stdin = bytes.NewReader(in)
	out, said := &bounded{most: maxWrapped, stop: true}, &bounded{most: 4096}
	cmd.Stdout, cmd.Stderr = out, said
	// The program may have started other programs, which must not outlive the limit.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		if client.Err() == nil {
			v.mu.Lock()
			v.silent = time.Now()
			v.mu.Unlock()
		}
		err = fmt.Errorf("gave no answer within %v", v.time)
	case out.over, err == nil && len(out.kept) == 0:
		err = fmt.Errorf("wrote no key, or more than %d bytes", maxWrapped)
	case err == nil:
		return out.kept, nil
	}
	if text := excerpt.Lines(said.kept, 2); text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return nil, fmt.Errorf("%s %s: %w", v.cfg.Command[0], verb, err)
}

// environment returns the environment of the program. It has only a few of the daemon's variables,
// because other variables may be secrets, such as the password of a proxy, or may change what the
// program does.
func (cfg *Config) environment() []string {
	env := []string{} // exec would replace nil by the daemon's environment
	for _, name := range append([]string{"PATH", "HOME", "LANG"}, cfg.Env...) {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// bounded keeps the first bytes that are written to it. It embeds no bytes.Buffer, because io.Copy
// would use the buffer's ReadFrom, which has no bound.
type bounded struct {
	kept []byte
	most int
	over bool // more was written than is kept
	stop bool // refuse more, which ends the program
}

func (b *bounded) Write(p []byte) (int, error) {
	room := b.most - len(b.kept)
	b.over = b.over || len(p) > room
	b.kept = append(b.kept, p[:min(len(p), room)]...)
	if b.over && b.stop {
		return 0, errors.New("too much output")
	}
	return len(p), nil
}
