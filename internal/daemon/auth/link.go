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

// Links signs permissions to reach one port of one sandbox until a point in time. A permission is
// text that fits into a host name: lower-case letters and digits, linkSize of them. It cannot be
// withdrawn but by removing the key.
type Links struct{ key [32]byte }

// Sizes of a permission, in characters of base32: the second at which it ends (35 bits, which lasts
// until the year 3058), and the first 100 bits of an HMAC-SHA256. The label of a host name has at
// most 63 characters, and with the longest port and the id of a sandbox this fills it.
const (
	expirySize = 7
	macSize    = 20
	linkSize   = expirySize + macSize
)

// linkAlphabet is that of the ids of sandboxes.
var linkAlphabet = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// OpenLinks reads the key in a file, which is made with a random one if it is not there.
func OpenLinks(path string) (*Links, error) {
	key, err := openKey(path, "the key of signed URLs", "all URLs signed with it are void")
	return &Links{key}, err
}

// Errors of Check.
var (
	ErrLinkForged  = errors.New("the signature of this URL is wrong")
	ErrLinkExpired = errors.New("this URL has expired")
)

// Sign returns a permission for a port of a sandbox. Its end is cut to whole seconds.
func (l *Links) Sign(id string, port uint16, expires time.Time) string {
	end := expiryText(expires.Unix())
	return end + l.mac(id, port, end)
}

// Check returns nil if a permission is for this port of this sandbox, and has not ended by now.
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

// mac signs the text of an expiry with what it is for. The zero byte ends the id, which has none.
func (l *Links) mac(id string, port uint16, end string) string {
	h := hmac.New(sha256.New, l.key[:])
	fmt.Fprintf(h, "forkd port url\x00%s\x00%d\x00%s", id, port, end)
	return linkAlphabet.EncodeToString(h.Sum(nil))[:macSize]
}

// expiryText has the low 35 bits of a time in seconds.
func expiryText(seconds int64) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(seconds)<<(64-35)) // so that the bits are the first
	return linkAlphabet.EncodeToString(b[:5])[:expirySize]
}

// expiryOf is the reverse; text that Sign has not made is no time at all.
func expiryOf(text string) int64 {
	b, err := linkAlphabet.DecodeString(text + "a")
	if err != nil || len(b) != 5 {
		return 0
	}
	var p [8]byte
	copy(p[:], b)
	return int64(binary.BigEndian.Uint64(p[:]) >> (64 - 35))
}
