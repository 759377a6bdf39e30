// Package sigstore makes and checks signatures in the formats of the Sigstore project, so that cosign
// reads them too.
//
// It works offline: a signature is checked with a public key that the caller trusts. The package uses neither
// certificates nor transparency logs, and takes no key from the signature that it checks. All of its input is
// hostile and has a bound. It neither fetches nor stores signatures, and does not decide which keys are
// trusted.
package sigstore

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// BundleType is the media type of a bundle.
const BundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"

// MaxBundle is the largest bundle, in bytes.
const MaxBundle = 64 << 10

// PredicateType is the type of the statements that this package makes and accepts. Such a statement
// says that a signer vouches for a digest. The command "cosign sign" makes the same statements.
// Other types, such as the report of a scanner, vouch for nothing.
const PredicateType = "https://sigstore.dev/cosign/sign/v1"

const (
	oldBundleType = "application/vnd.dev.sigstore.bundle+json;version=0.3" // earlier name of the same format
	payloadType   = "application/vnd.in-toto+json"
	statementType = "https://in-toto.io/Statement/v1"
)

// InvalidError reports that a bundle is damaged, or that it does not vouch for the digest.
type InvalidError struct{ Err error }

func (e *InvalidError) Error() string { return e.Err.Error() }

func (e *InvalidError) Unwrap() error { return e.Err }

func invalid(format string, args ...any) error { return &InvalidError{fmt.Errorf(format, args...)} }

// UnknownKeyError reports that none of the given keys has signed the bundle. Hint is the name that
// the bundle has for its key. It may be any text, or empty.
type UnknownKeyError struct{ Hint string }

// named returns the hint if it has the form of a hint. Other text is not shown, because the bundle
// may be the answer of a server that only this host can reach.
func (e *UnknownKeyError) named() string {
	if e.Hint == "" {
		return "a certificate, or no key"
	}
	p, err := base64.StdEncoding.DecodeString(e.Hint)
	if err != nil || len(p) != sha256.Size || base64.StdEncoding.EncodeToString(p) != e.Hint {
		return "its name is not the digest of a key"
	}
	return e.Hint
}

func (e *UnknownKeyError) Error() string {
	return "it is signed with another key: " + e.named()
}

// bundle is the message dev.sigstore.bundle.v1.Bundle in JSON. Fields that this package does not need are
// absent.
type bundle struct {
	MediaType string    `json:"mediaType"`
	Material  material  `json:"verificationMaterial"`
	Envelope  *envelope `json:"dsseEnvelope"`
}

type material struct {
	PublicKey *hint `json:"publicKey,omitempty"`
}

// hint names a key, and does not contain the key.
type hint struct {
	Hint string `json:"hint"`
}

// envelope is a DSSE envelope (https://github.com/secure-systems-lab/dsse).
type envelope struct {
	Payload     []byte      `json:"payload"`
	PayloadType string      `json:"payloadType"`
	Signatures  []signature `json:"signatures"`
}

type signature struct {
	Sig   []byte `json:"sig"`
	KeyID string `json:"keyid,omitempty"`
}

// statement is an in-toto statement.
type statement struct {
	Type          string         `json:"_type"`
	Subject       []subject      `json:"subject"`
	PredicateType string         `json:"predicateType"`
	Predicate     map[string]any `json:"predicate"`
}

type subject struct {
	Digest map[string]string `json:"digest"`
}

// signed returns the bytes that the signature of an envelope covers (DSSE, "pre-authentication
// encoding").
func (e *envelope) signed() []byte {
	p := fmt.Appendf(nil, "DSSEv1 %d %s %d ", len(e.PayloadType), e.PayloadType, len(e.Payload))
	return append(p, e.Payload...)
}

// Sign returns a bundle in which the holder of the key vouches for a digest, such as sha256:….
func Sign(key *PrivateKey, digest string) ([]byte, error) {
	digits, err := hexOf(digest)
	if err != nil {
		return nil, err
	}
	payload, err := json.Marshal(statement{Type: statementType, PredicateType: PredicateType,
		Subject: []subject{{map[string]string{"sha256": digits}}}, Predicate: map[string]any{}})
	if err != nil {
		return nil, err
	}
	e := &envelope{Payload: payload, PayloadType: payloadType}
	sig, err := key.sign(e.signed())
	if err != nil {
		return nil, err
	}
	e.Signatures = []signature{{Sig: sig}}
	return json.Marshal(bundle{BundleType, material{&hint{key.Public().hint()}}, e})
}

// Verify returns the key that has signed a bundle for a digest. If there is no such key, the error is an
// *InvalidError or an *UnknownKeyError. The statement is decoded only after its signature has been verified.
func Verify(text []byte, digest string, keys []*PublicKey) (*PublicKey, error) {
	b, err := parse(text)
	if err != nil {
		return nil, err
	}
	signed, sig := b.Envelope.signed(), b.Envelope.Signatures[0].Sig
	for _, k := range keys {
		if k.verify(signed, sig) {
			if err := b.Envelope.check(digest); err != nil {
				return nil, err
			}
			return k, nil
		}
	}
	named := ""
	if k := b.Material.PublicKey; k != nil {
		named = k.Hint
	}
	for _, k := range keys {
		if named == k.hint() {
			return nil, invalid("it names the key %s, and its signature is wrong", k.ID())
		}
	}
	return nil, &UnknownKeyError{named}
}

// CheckSubject returns an error unless a bundle says that it is for a digest. The function does not verify the
// signature.
func CheckSubject(text []byte, digest string) error {
	b, err := parse(text)
	if err != nil {
		return err
	}
	return b.Envelope.check(digest)
}

func parse(text []byte) (*bundle, error) {
	if len(text) > MaxBundle {
		return nil, invalid("it has more than %d bytes", MaxBundle)
	}
	var b bundle
	if err := json.Unmarshal(text, &b); err != nil {
		return nil, invalid("it is no sigstore bundle")
	}
	switch e := b.Envelope; {
	case b.MediaType != BundleType && b.MediaType != oldBundleType:
		return nil, invalid("its type is not %s", BundleType)
	case e == nil:
		return nil, invalid("it has no DSSE envelope")
	case e.PayloadType != payloadType:
		return nil, invalid("it signs no statement of in-toto")
	case len(e.Signatures) != 1:
		return nil, invalid("it has %d signatures, not one", len(e.Signatures))
	}
	return &b, nil
}

// check returns an error unless the statement in an envelope vouches for a digest. The error may
// quote the statement: a trusted key has signed it, or the caller has made it.
func (e *envelope) check(digest string) error {
	digits, err := hexOf(digest)
	if err != nil {
		return err
	}
	var s statement
	if err := json.Unmarshal(e.Payload, &s); err != nil {
		return invalid("its statement cannot be read: %w", short(err))
	}
	if s.Type != statementType || s.PredicateType != PredicateType {
		return invalid("it is a statement of the type %.100q, %.100q, which vouches for nothing", s.Type, s.PredicateType)
	}
	if len(s.Subject) != 1 {
		return invalid("it is for %d digests, not for one", len(s.Subject))
	}
	if got := s.Subject[0].Digest["sha256"]; got != digits {
		return invalid("it is for another digest, %+.80q", "sha256:"+got)
	}
	return nil
}

// hexOf returns the hexadecimal digits of a SHA-256 digest.
func hexOf(digest string) (string, error) {
	digits, ok := strings.CutPrefix(digest, "sha256:")
	if p, err := hex.DecodeString(digits); !ok || err != nil || len(p) != sha256.Size {
		return "", fmt.Errorf("digest %.100q: want sha256 and 64 hexadecimal digits", digest)
	}
	return digits, nil
}

// short returns an error whose text quotes little of the input.
func short(err error) error {
	if text := err.Error(); len(text) > 200 {
		return errors.New(strings.ToValidUTF8(text[:200], "?") + "…")
	}
	return err
}

// hint returns the name that bundles of forkd and of cosign have for the key.
func (k *PublicKey) hint() string {
	sum := sha256.Sum256(k.der)
	return base64.StdEncoding.EncodeToString(sum[:])
}
