package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Links signs permissions to reach one port of one sandbox until a given time. A permission
// consists of linkSize lower-case letters and digits, so that it fits into a host name. A
// permission cannot be revoked, except by deleting the key.
type Links struct{ key [32]byte }

// Sizes of the two parts of a permission, in base32 characters. The first part is the expiry in
// seconds (35 bits, enough until the year 3058). The second part is the first 100 bits of an
// HMAC-SHA256. A permission is a part of a host name's label. A label has at most 63 characters,
// and the longest PORT-ID-PERMISSION has exactly 63.
const (
	expirySize = 7
	macSize    = 20
	linkSize   = expirySize + macSize
)

// linkAlphabet is the alphabet of sandbox ids.
var linkAlphabet = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// OpenLinks reads the key in a file. If the file is missing, it is created with a random key.
func OpenLinks(path string) (*Links, error) {
	key, err := openKey(path, "the key of signed URLs", "all URLs signed with it are void")
	return &Links{key}, err
}

// Errors of Check.
var (
	ErrLinkForged  = errors.New("the signature of this URL is wrong")
	ErrLinkExpired = errors.New("this URL has expired")
)

// Sign returns a permission for a port of a sandbox. The expiry is truncated to whole seconds.
func (l *Links) Sign(id string, port uint16, expires time.Time) string {
	end := expiryText(expires.Unix())
	return end + l.mac(id, port, end)
}

// Check returns nil if a permission is valid for this port of this sandbox and has not expired at
// the given time.
func (l *Links) Check(permission, id string, port uint16, now time.Time) error {
	if len(permission) != linkSize {
		return ErrLinkForged
	}
	end, mac := permission[:expirySize], permission[expirySize:]
	if !hmac.Equal([]byte(mac), []byte(l.mac(id, port, end))) {
		return ErrLinkForged
	}
	if now.Unix() >= expiryOf(end) {
		return ErrLinkExpired
	}
	return nil
}

// mac signs the expiry, the id and the port. A zero byte separates the id from the rest, because
// ids contain no zero byte.
func (l *Links) mac(id string, port uint16, end string) string {
	h := hmac.New(sha256.New, l.key[:])
	fmt.Fprintf(h, "forkd port url\x00%s\x00%d\x00%s", id, port, end)
	return linkAlphabet.EncodeToString(h.Sum(nil))[:macSize]
}

// expiryText encodes the low 35 bits of a time in seconds.
func expiryText(seconds int64) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(seconds)<<(64-35)) // puts the 35 bits first
	return linkAlphabet.EncodeToString(b[:5])[:expirySize]
}

// expiryOf is the reverse of expiryText. For a text that Sign did not make, expiryOf returns 0, a
// time long past.
func expiryOf(text string) int64 {
	b, err := linkAlphabet.DecodeString(text + "a")
	if err != nil || len(b) != 5 {
		return 0
	}
	var p [8]byte
	copy(p[:], b)
	return int64(binary.BigEndian.Uint64(p[:]) >> (64 - 35))
}
