package sigstore

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const (
	digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	other  = "sha256:ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"
)

func newKey(t testing.TB) *PrivateKey {
	t.Helper()
	k, err := NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// signed returns a bundle with a payload that the key has signed.
func signed(t testing.TB, k *PrivateKey, payload string) *bundle {
	t.Helper()
	e := &envelope{Payload: []byte(payload), PayloadType: payloadType}
	sig, err := k.sign(e.signed())
	if err != nil {
		t.Fatal(err)
	}
	e.Signatures = []signature{{Sig: sig}}
	return &bundle{BundleType, material{&hint{k.Public().hint()}}, e}
}

func text(t testing.TB, b *bundle) []byte {
	t.Helper()
	p, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const good = `{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":` +
	`"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}}],` +
	`"predicateType":"https://sigstore.dev/cosign/sign/v1","predicate":{}}`

func TestSignAndVerify(t *testing.T) {
	mine, theirs := newKey(t), newKey(t)
	b, err := Sign(mine, digest)
	if err != nil {
		t.Fatal(err)
	}
	k, err := Verify(b, digest, []*PublicKey{theirs.Public(), mine.Public()})
	if err != nil || k.ID() != mine.Public().ID() {
		t.Error(k, err)
	}
	if err := CheckSubject(b, digest); err != nil {
		t.Error(err)
	}
	if err := CheckSubject(b, other); err == nil {
		t.Error("the bundle is for another digest too")
	}
	if _, err := Sign(mine, "sha512:00"); err == nil {
		t.Error("signed a digest that is no SHA-256")
	}
}

// Verify refuses bundles that do not vouch for the digest, and the error says why.
func TestBundlesThatVouchForNothing(t *testing.T) {
	mine, theirs := newKey(t), newKey(t)
	change := func(f func(b *bundle)) []byte {
		b := signed(t, mine, good)
		f(b)
		return text(t, b)
	}
	inside := text(t, signed(t, theirs, good))
	inside = bytes.Replace(inside, []byte(`"publicKey":{`), []byte(`"publicKey":{"rawBytes":"`+
		base64.StdEncoding.EncodeToString(theirs.Public().der)+`",`), 1)
	for name, c := range map[string]struct {
		text    []byte
		want    string
		unknown bool
	}{
		"another key":               {text(t, signed(t, theirs, good)), "another key", true},
		"another key in the bundle": {inside, "another key", true},
		"a certificate": {change(func(b *bundle) { b.Material.PublicKey = nil; b.Envelope.Payload[9]++ }),
			"a certificate", true},
		"another digest": {text(t, signed(t, mine, strings.Replace(good, "0123", "ffff", 1))),
			"another digest", false},
		"a changed payload": {change(func(b *bundle) {
			b.Envelope.Payload = bytes.Replace(b.Envelope.Payload,
				[]byte("0123"), []byte("ffff"), 1)
		}), "its signature is wrong", false},
		"a changed payload type": {change(func(b *bundle) { b.Envelope.PayloadType = "text/plain" }),
			"no statement", false},
		"a changed signature": {change(func(b *bundle) { b.Envelope.Signatures[0].Sig[20] ^= 1 }),
			"its signature is wrong", false},
		"an empty signature": {change(func(b *bundle) { b.Envelope.Signatures[0].Sig = nil }),
			"its signature is wrong", false},
		"no signature": {change(func(b *bundle) { b.Envelope.Signatures = nil }), "has 0 signatures", false},
		"two signatures": {change(func(b *bundle) {
			b.Envelope.Signatures = append(b.Envelope.Signatures, b.Envelope.Signatures[0])
		}), "has 2 signatures", false},
		"no envelope":  {change(func(b *bundle) { b.Envelope = nil }), "no DSSE envelope", false},
		"another type": {change(func(b *bundle) { b.MediaType = "application/json" }), "its type is not", false},
		"a report": {text(t, signed(t, mine, strings.Replace(good, "cosign/sign", "cosign/vuln", 1))),
			"vouches for nothing", false},
		"an old statement": {text(t, signed(t, mine, strings.Replace(good, "Statement/v1", "Statement/v0.1", 1))),
			"vouches for nothing", false},
		"no subject": {text(t, signed(t, mine, strings.Replace(good, `{"digest"`, `{"name"`, 1))),
			"another digest", false},
		"two subjects": {text(t, signed(t, mine, strings.Replace(good, `"subject":[`, `"subject":[{"digest":{}},`, 1))),
			"for 2 digests", false},
		"a signed text": {text(t, signed(t, mine, "hello")), "cannot be read", false},
		"no JSON":       {[]byte("hello"), "no sigstore bundle", false},
		"nothing":       {nil, "no sigstore bundle", false},
		"a huge bundle": {append(text(t, signed(t, mine, good)), bytes.Repeat([]byte(" "), MaxBundle)...),
			"more than", false},
	} {
		_, err := Verify(c.text, digest, []*PublicKey{mine.Public()})
		var bad *InvalidError
		var unknown *UnknownKeyError
		if c.unknown && !errors.As(err, &unknown) || !c.unknown && !errors.As(err, &bad) ||
			!strings.Contains(err.Error(), c.want) || len(err.Error()) > 400 {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	var unknown *UnknownKeyError
	if _, err := Verify(text(t, signed(t, mine, good)), digest, nil); !errors.As(err, &unknown) {
		t.Error("without a key:", err)
	}
}

// A bundle may be the answer of a server that is not a registry. An error quotes a bundle only if a
// trusted key has signed the bundle.
func TestErrorsQuoteNoBundle(t *testing.T) {
	mine := newKey(t)
	const secretText, secretNumber = "correct-horse", "4242424242424242"
	change := func(f func(b *bundle)) string {
		b := signed(t, newKey(t), good)
		f(b)
		return string(text(t, b))
	}
	for name, bundle := range map[string]string{
		"type":          change(func(b *bundle) { b.MediaType = secretText }),
		"payload type":  change(func(b *bundle) { b.Envelope.PayloadType = secretText }),
		"payload":       change(func(b *bundle) { b.Envelope.Payload = []byte(secretText) }),
		"name of a key": change(func(b *bundle) { b.Material.PublicKey.Hint = secretText }),
		"a number":      `{"mediaType":` + secretNumber + `}`,
	} {
		_, err := Verify([]byte(bundle), digest, []*PublicKey{mine.Public()})
		if err == nil || strings.Contains(err.Error(), secretText) || strings.Contains(err.Error(), secretNumber) {
			t.Errorf("%s: %v", name, err)
		}
	}
	named := (&UnknownKeyError{mine.Public().hint()}).Error()
	if !strings.Contains(named, mine.Public().hint()) {
		t.Errorf("the name of a key is not shown: %s", named)
	}
}

func TestPrivateKeysAreEncrypted(t *testing.T) {
	k := newKey(t)
	file, err := k.Seal([]byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := OpenPrivateKey(file, []byte("secret"))
	if err != nil || got.Public().ID() != k.Public().ID() {
		t.Fatal(got, err)
	}
	if _, err := OpenPrivateKey(file, []byte("Secret")); !errors.Is(err, ErrPassword) {
		t.Error(err)
	}
	if again, err := k.Seal([]byte("secret")); err != nil || bytes.Equal(again, file) {
		t.Error("the salt is the same again", err)
	}
	block, _ := pem.Decode(file)
	change := func(from, to string) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: block.Type,
			Bytes: bytes.Replace(block.Bytes, []byte(from), []byte(to), 1)})
	}
	for name, text := range map[string][]byte{
		"a costly derivation": change(`"N":65536`, `"N":1073741824`), "another derivation": change("scrypt", "pbkdf2"),
		"another cipher": change("nacl/secretbox", "aes"), "no nonce": change(`"nonce":"`, `"nonce":"","x":"`),
		"no JSON": change("{", "["), "a public key": k.Public().PEM(), "no PEM": []byte("hello"),
		"two keys": append(bytes.Clone(file), file...), "a huge file": append(bytes.Clone(file), make([]byte, MaxKey)...),
	} {
		if _, err := OpenPrivateKey(text, []byte("secret")); err == nil || errors.Is(err, ErrPassword) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPublicKeys(t *testing.T) {
	k := newKey(t).Public()
	got, err := ParsePublicKey(k.PEM())
	if err != nil || got.ID() != k.ID() || len(k.ID()) != len(digest) {
		t.Error(got, err)
	}
	block := func(typ string, key any) []byte {
		der, err := x509.MarshalPKIXPublicKey(key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: der})
	}
	large, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ed, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"another curve": block("PUBLIC KEY", &large.PublicKey), "another algorithm": block("PUBLIC KEY", ed),
		"another block": block("CERTIFICATE", &large.PublicKey), "no PEM": []byte("x"),
		"no key":   pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")}),
		"two keys": append(k.PEM(), k.PEM()...),
	} {
		if _, err := ParsePublicKey(text); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// ReadKeys accepts only a directory that no other user can change. It refuses a directory in which
// a file NAME.pub is not a key.
func TestReadKeys(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil { // whatever the umask is
		t.Fatal(err)
	}
	put := func(name string, text []byte, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, text, mode), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if keys, err := ReadKeys(filepath.Join(dir, "none")); err != nil || keys != nil {
		t.Error(keys, err)
	}
	if keys, err := ReadKeys(""); err != nil || keys != nil {
		t.Error(keys, err)
	}
	k := newKey(t).Public()
	put("ann.pub", k.PEM(), 0o644)
	put("README", []byte("hello"), 0o644)
	put(".pub", []byte("a key without a name"), 0o644)
	if err := os.Symlink("ann.pub", filepath.Join(dir, "bob.pub")); err != nil {
		t.Fatal(err)
	}
	keys, err := ReadKeys(dir)
	if err != nil || len(keys) != 2 || keys[0].Name != "ann" || keys[1].ID() != k.ID() {
		t.Fatal(keys, err)
	}
	bad := func(name, want string, undo func() error) {
		t.Helper()
		if keys, err := ReadKeys(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", name, keys, err)
		}
		if err := undo(); err != nil {
			t.Fatal(err)
		}
	}
	path := put("x.pub", []byte("hello"), 0o644)
	bad("no key", "x.pub", func() error { return os.Remove(path) })
	path = put("x.pub", k.PEM(), 0o666)
	bad("a file of all users", "another user", func() error { return os.Remove(path) })
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	bad("a FIFO", "regular", func() error { return os.Remove(path) })
	if err := os.Symlink("/etc/hostname", path); err != nil {
		t.Fatal(err)
	}
	bad("a link that leads out", "x.pub", func() error { return os.Remove(path) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	bad("a directory of all users", "another user", func() error { return os.Chmod(dir, 0o700) })
	for i := range maxKeys {
		put("k"+strings.Repeat("x", i)+".pub", k.PEM(), 0o644)
	}
	bad("too many keys", "more than", func() error { return nil })
}

func FuzzVerify(f *testing.F) {
	k := newKey(f)
	f.Add(text(f, signed(f, k, good)))
	f.Add(text(f, signed(f, newKey(f), good)))
	f.Fuzz(func(t *testing.T, p []byte) {
		if _, err := Verify(p, other, []*PublicKey{k.Public()}); err == nil {
			t.Error("a bundle vouches for a digest that nobody has signed")
		}
	})
}

func TestHasKeyTwice(t *testing.T) {
	for text, want := range map[string]bool{
		`{"a":1,"b":[{"a":1},{"a":{"a":2}}],"c":{}}`: false,
		`{"a":1,"b":2,"a":3}`:                        true,
		`{"subject":1,"Subject":2}`:                  true,
		"{\"subject\":1,\"\u017fubject\":2}":         true, // for encoding/json, this is the letter s
		"{\"key\":1,\"\u212aey\":2}":                 true,
		`{"x":[{"y":{"a":1,"a":2}}]}`:                true,
		`{"x":{"a":"b"},"a":"x","b":["x","x"]}`:      false,
		`{"x":"{","y":"}","z":["]"]}`:                false,
		`[]`:                                         false,
	} {
		if got := HasKeyTwice([]byte(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}
