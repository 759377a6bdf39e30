package sshd

import (
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/crypto/ssh"

	"github.com/forkd/forkd/internal/atomicfile"
)

// OpenHostKey reads the host key in a file. If the file is missing, it is created with a new key, in
// OpenSSH's form.
func OpenHostKey(path string) (ssh.AlgorithmSigner, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		text, err = newHostKey(path)
	}
	if err != nil {
		return nil, fmt.Errorf("host key of SSH: %w", err)
	}
	key, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return nil, fmt.Errorf("host key of SSH: %s: %w: remove the file, and clients must accept a new key", path, err)
	}
	signer, ok := key.(ssh.AlgorithmSigner)
	if !ok {
		return nil, fmt.Errorf("host key of SSH: %s: a key of the type %s cannot sign", path, key.PublicKey().Type())
	}
	return signer, nil
}

func newHostKey(path string) ([]byte, error) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(key, "forkd")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(block)
	return text, atomicfile.WriteDurable(path, text, 0o600) // durable, because clients will remember the key
}
