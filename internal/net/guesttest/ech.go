package guesttest

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/binary"
	"slices"
	"testing"
)

// ECHConfigs returns the configuration, with one key, that a client needs to encrypt its
// ClientHello (RFC 9849 §4). Such a ClientHello also has an unencrypted server name: the parameter
// outer.
func ECHConfigs(t testing.TB, outer string) []byte {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	counted := func(p []byte) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(p))), p...) }
	contents := slices.Concat(
		[]byte{7, 0, 0x20}, // the key's id, X25519
		counted(key.PublicKey().Bytes()),
		counted([]byte{0, 1, 0, 1}), // HKDF-SHA256, AES-128-GCM
		[]byte{0, byte(len(outer))}, []byte(outer),
		[]byte{0, 0}, // no extensions
	)
	return counted(append([]byte{0xfe, 0x0d}, counted(contents)...))
}
