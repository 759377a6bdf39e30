package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"strings"
)

// DigestChunk is the unit of digests, in bytes. It is the size of a page of memory layers and of a
// cluster of disk layers.
const DigestChunk = 4096

// digestPrefix names the algorithm at the beginning of every digest, so that a later version can
// use another algorithm.
const digestPrefix = "sha256-4k:"

// zeroChunk is a chunk of zeros. Digests omit chunks that equal it.
var zeroChunk [DigestChunk]byte

// Digester computes the digest of a file's content: SHA-256 over
//
//	length   u64, little-endian
//	chunks   for every chunk that is not all zeros, in ascending order: its number u64, then its SHA-256
//
// in hex after the algorithm's name. A chunk has DigestChunk bytes. The last chunk of a file may be
// shorter. Zeros and holes are the same content and take no time, so a sparse file of a terabyte
// takes as long as the data in it.
type Digester struct {
	all  hash.Hash
	next uint64 // number of the chunk after the latest added chunk
	buf  []byte // number and SHA-256 of one chunk
}

// NewDigester returns a Digester for a file of the given length in bytes. Bytes that are not given
// to Write count as zero.
func NewDigester(length uint64) *Digester {
	d := &Digester{all: sha256.New(), buf: make([]byte, 8, 8+sha256.Size)}
	binary.LittleEndian.PutUint64(d.buf, length)
	d.all.Write(d.buf)
	return d
}

// Write adds the bytes p, which begin at the given offset of the file's content. Offsets must
// ascend. Offsets and lengths must be multiples of DigestChunk, except for the length of the file's
// last part.
func (d *Digester) Write(offset uint64, p []byte) error {
	n := offset / DigestChunk
	if offset%DigestChunk != 0 || n < d.next {
		return fmt.Errorf("digest of bytes at %d: want a multiple of %d, at least %d", offset, DigestChunk,
			d.next*DigestChunk)
	}
	for ; len(p) > 0; n++ {
		chunk := p[:min(len(p), DigestChunk)]
		p = p[len(chunk):]
		if bytes.Equal(chunk, zeroChunk[:len(chunk)]) {
			continue
		}
		sum := sha256.Sum256(chunk)
		binary.LittleEndian.PutUint64(d.buf[:8], n)
		d.all.Write(append(d.buf[:8], sum[:]...))
	}
	d.next = n
	return nil
}

// Sum returns the digest.
func (d *Digester) Sum() string { return digestPrefix + hex.EncodeToString(d.all.Sum(nil)) }

// checkDigest accepts any digest that Sum can return. It also accepts an empty text, because a
// digest may not be computed yet.
func checkDigest(s string) error {
	if s == "" {
		return nil
	}
	sum, ok := strings.CutPrefix(s, digestPrefix)
	p, err := hex.DecodeString(sum)
	if !ok || err != nil || len(p) != sha256.Size || hex.EncodeToString(p) != sum {
		return fmt.Errorf("digest %q: want %q and %d lower-case hex digits", s, digestPrefix, 2*sha256.Size)
	}
	return nil
}
