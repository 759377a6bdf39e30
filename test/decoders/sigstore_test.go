package decoders

import (
	"bytes"
	"encoding/base64"
	"encoding/pem"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/sigstore"
)

const signedDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// bundleOf returns a bundle with a statement, without a real signature.
func bundleOf(statement string) []byte {
	return []byte(`{"mediaType":"` + sigstore.BundleType + `","dsseEnvelope":{"payloadType":"application/vnd.in-toto+json",` +
		`"payload":"` + base64.StdEncoding.EncodeToString([]byte(statement)) + `","signatures":[{"sig":"AAAA"}]}}`)
}

// signatureRows are the decoders of signatures and keys. Longer bundles and keys are refused before they are decoded.
func signatureRows() []row {
	key, err := sigstore.NewPrivateKey()
	if err != nil {
		panic(err) // the error would be a mistake in this test
	}
	keys := []*sigstore.PublicKey{key.Public()}
	verify := func(_ *testing.T, p []byte) { _, _ = sigstore.Verify(p, signedDigest, keys) }
	subject := func(_ *testing.T, p []byte) { _ = sigstore.CheckSubject(p, signedDigest) }
	open := func(_ *testing.T, p []byte) { _, _ = sigstore.OpenPrivateKey(p, nil) }
	const bundle, file = sigstore.MaxBundle / 8, sigstore.MaxKey / 8 // inputs are up to four times as long, and in base64
	return []row{
		{name: "bundle/signatures", decode: verify, most: bundle, input: repeated(`{"mediaType":"`+sigstore.BundleType+
			`","dsseEnvelope":{"signatures":[`, `{}`, `]}}`), fixed: 4 << 20},
		{name: "bundle/nested", decode: verify, most: bundle, input: deep(`{"x":[`, `1`, `]}`)},
		{name: "bundle/payload", decode: verify, most: bundle, input: func(n int) []byte {
			return bundleOf(strings.Repeat("a", n))
		}},
		{name: "statement/subjects", decode: subject, most: bundle, factor: 256, input: func(n int) []byte {
			return bundleOf(`{"subject":[` + strings.Repeat(`{},`, n/3) + `{}]}`)
		}},
		{name: "statement/nested", decode: subject, most: bundle, factor: 256, input: func(n int) []byte {
			return bundleOf(`{"predicate":{"x":` + strings.Repeat("[", n/2) + strings.Repeat("]", n/2) + `}}`)
		}},
		{name: "private key/salt", decode: open, most: file, input: func(n int) []byte {
			return pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED SIGSTORE PRIVATE KEY",
				Bytes: []byte(`{"kdf":{"name":"scrypt","salt":"` + strings.Repeat("A", n/4*4) + `"}}`)})
		}},
		{name: "public key/blocks", most: file, input: func(n int) []byte {
			return bytes.Repeat([]byte("-----BEGIN PUBLIC KEY-----\n"), n/27)
		}, decode: func(_ *testing.T, p []byte) { _, _ = sigstore.ParsePublicKey(p) }},
	}
}
