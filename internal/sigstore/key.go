package sigstore

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"

	"golang.org/x/crypto/nacl/secretbox"
	"golang.org/x/crypto/scrypt"
)

// MaxKey is the largest file with a key, in bytes.
const MaxKey = 16 << 10

// Types of PEM blocks.
const (
	publicBlock  = "PUBLIC KEY"
	privateBlock = "ENCRYPTED SIGSTORE PRIVATE KEY"
	oldPrivate   = "ENCRYPTED COSIGN PRIVATE KEY" // written by cosign before version 2
)

// ErrPassword reports that a password does not decrypt a private key.
var ErrPassword = errors.New("the password is wrong, or the file is damaged")

// PublicKey is an ECDSA key on the curve P-256.
type PublicKey struct {
	key *ecdsa.PublicKey
	der []byte // PKIX
}

// ParsePublicKey reads the PEM file of a public key.
func ParsePublicKey(text []byte) (*PublicKey, error) {
	block, err := blockOf(text)
	if err != nil {
		return nil, err
	}
	if block.Type != publicBlock {
		return nil, fmt.Errorf("it has a %.100q, not a %s", block.Type, publicBlock)
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	own, ok := key.(*ecdsa.PublicKey)
	if !ok || own.Curve != elliptic.P256() {
		return nil, fmt.Errorf("it has a key of another kind (%T): want ECDSA on the curve P-256", key)
	}
	return newPublicKey(own)
}

func newPublicKey(key *ecdsa.PublicKey) (*PublicKey, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	return &PublicKey{key, der}, err
}

// blockOf returns the only PEM block of a file.
func blockOf(text []byte) (*pem.Block, error) {
	if len(text) > MaxKey {
		return nil, fmt.Errorf("it has more than %d bytes", MaxKey)
	}
	block, rest := pem.Decode(text)
	if block == nil {
		return nil, errors.New("it is no PEM file")
	}
	if another, _ := pem.Decode(rest); another != nil {
		return nil, errors.New("it has more than one key")
	}
	return block, nil
}

// PEM returns the content of the key's file.
func (k *PublicKey) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: publicBlock, Bytes: k.der})
}

// ID returns the fingerprint of the key: the SHA-256 of its PKIX form.
func (k *PublicKey) ID() string {
	sum := sha256.Sum256(k.der)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (k *PublicKey) verify(signed, sig []byte) bool {
	sum := sha256.Sum256(signed)
	return ecdsa.VerifyASN1(k.key, sum[:], sig)
}

// PrivateKey makes signatures.
type PrivateKey struct {
	key    *ecdsa.PrivateKey
	public *PublicKey
}

// String and GoString keep the key out of messages.
func (*PrivateKey) String() string   { return "private key" }
func (*PrivateKey) GoString() string { return "private key" } //nolint:revive // see String

// NewPrivateKey returns a new key.
func NewPrivateKey() (*PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return withPublic(key)
}

func withPublic(key *ecdsa.PrivateKey) (*PrivateKey, error) {
	public, err := newPublicKey(&key.PublicKey)
	return &PrivateKey{key, public}, err
}

// Public returns the public key.
func (k *PrivateKey) Public() *PublicKey { return k.public }

func (k *PrivateKey) sign(p []byte) ([]byte, error) {
	sum := sha256.Sum256(p)
	return ecdsa.SignASN1(rand.Reader, k.key, sum[:])
}

// sealed is the content of an encrypted private key, as cosign writes and reads it.
type sealed struct {
	KDF struct {
		Name   string `json:"name"`
		Params params `json:"params"`
		Salt   []byte `json:"salt"`
	} `json:"kdf"`
	Cipher struct {
		Name  string `json:"name"`
		Nonce []byte `json:"nonce"`
	} `json:"cipher"`
	Ciphertext []byte `json:"ciphertext"`
}

// params are the parameters of scrypt.
type params struct {
	N int `json:"N"`
	R int `json:"r"`
	P int `json:"p"`
}

// Names and parameters that cosign uses. The parameters in a key's file determine how much memory
// and time it takes to open the file. The file may be hostile, so no other parameters are accepted.
const (
	kdfName    = "scrypt"
	cipherName = "nacl/secretbox"
	saltBytes  = 32
	nonceBytes = 24
)

var (
	standard = params{1 << 16, 8, 1} // 64 MiB of memory
	legacy   = params{1 << 15, 8, 1}
	owasp    = params{1 << 17, 8, 1}
)

// Seal returns the content of the key's file, encrypted with a password.
func (k *PrivateKey) Seal(password []byte) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k.key)
	if err != nil {
		return nil, err
	}
	var s sealed
	s.KDF.Name, s.KDF.Params, s.Cipher.Name = kdfName, standard, cipherName
	s.KDF.Salt, s.Cipher.Nonce = make([]byte, saltBytes), make([]byte, nonceBytes)
	rand.Read(s.KDF.Salt) // neither call returns an error: see package rand
	rand.Read(s.Cipher.Nonce)
	key, err := s.key(password)
	if err != nil {
		return nil, err
	}
	s.Ciphertext = secretbox.Seal(nil, der, (*[nonceBytes]byte)(s.Cipher.Nonce), key)
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: privateBlock, Bytes: text}), nil
}

// OpenPrivateKey decrypts the file of a private key of forkd or cosign. If the password is wrong, the error is
// ErrPassword.
func OpenPrivateKey(text, password []byte) (*PrivateKey, error) {
	block, err := blockOf(text)
	if err != nil {
		return nil, err
	}
	if block.Type != privateBlock && block.Type != oldPrivate {
		return nil, fmt.Errorf("it has a %.100q, not an %s: 'forkd key generate' makes one", block.Type, privateBlock)
	}
	var s sealed
	if err := json.Unmarshal(block.Bytes, &s); err != nil {
		return nil, fmt.Errorf("the encrypted key cannot be read: %w", short(err))
	}
	if s.KDF.Name != kdfName || s.Cipher.Name != cipherName || len(s.Cipher.Nonce) != nonceBytes ||
		s.KDF.Params != standard && s.KDF.Params != legacy && s.KDF.Params != owasp {
		return nil, errors.New("it is encrypted in another way than cosign's keys")
	}
	key, err := s.key(password)
	if err != nil {
		return nil, err
	}
	der, ok := secretbox.Open(nil, s.Ciphertext, (*[nonceBytes]byte)(s.Cipher.Nonce), key)
	if !ok {
		return nil, ErrPassword
	}
	private, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	own, ok := private.(*ecdsa.PrivateKey)
	if !ok || own.Curve != elliptic.P256() {
		return nil, fmt.Errorf("it has a key of another kind (%T): want ECDSA on the curve P-256", private)
	}
	return withPublic(own)
}

// key derives the key of the cipher from a password.
func (s *sealed) key(password []byte) (*[32]byte, error) {
	key, err := scrypt.Key(password, s.KDF.Salt, s.KDF.Params.N, s.KDF.Params.R, s.KDF.Params.P, 32)
	if err != nil {
		return nil, err
	}
	return (*[32]byte)(key), nil
}
