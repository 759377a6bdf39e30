package snapshot

import (
	"bytes"
	"testing"
)

// digestOf returns the digest of p. It writes p in pieces, each of the given number of chunks. If
// skip is set, it does not write pieces that are zero.
func digestOf(t *testing.T, p []byte, step int, skip bool) string {
	t.Helper()
	d := NewDigester(uint64(len(p)))
	for at := 0; at < len(p); at += step * DigestChunk {
		piece := p[at:min(len(p), at+step*DigestChunk)]
		if skip && bytes.Count(piece, []byte{0}) == len(piece) {
			continue
		}
		if err := d.Write(uint64(at), piece); err != nil {
			t.Fatal(err)
		}
	}
	if err := checkDigest(d.Sum()); err != nil {
		t.Fatal(err)
	}
	return d.Sum()
}

func TestDigestIsOfTheContentAlone(t *testing.T) {
	p := make([]byte, 9*DigestChunk+5)
	p[0], p[3*DigestChunk+7], p[len(p)-1] = 1, 2, 3
	want := digestOf(t, p, 1, false)
	for _, step := range []int{1, 2, 4, 100} {
		for _, skip := range []bool{false, true} {
			if got := digestOf(t, p, step, skip); got != want {
				t.Errorf("in pieces of %d, holes left out %v: %s, want %s", step, skip, got, want)
			}
		}
	}
}

// The digest algorithm must never change, because snapshots contain digests.
func TestDigestIsFixed(t *testing.T) {
	p := make([]byte, 3*DigestChunk)
	copy(p[2*DigestChunk:], "forkd")
	for want, p := range map[string][]byte{
		"sha256-4k:af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc": nil,
		"sha256-4k:4c5d1626b0638d873d72326600a48eee032a3c4745cc98955eabb24082515146": p,
	} {
		if got := digestOf(t, p, 2, true); got != want {
			t.Errorf("digest of %d bytes is %s, want %s", len(p), got, want)
		}
	}
}

func TestDigestTellsContentsApart(t *testing.T) {
	seen := map[string]string{}
	add := func(name string, p []byte) {
		d := digestOf(t, p, 3, true)
		if other, ok := seen[d]; ok {
			t.Errorf("%s and %s have one digest", name, other)
		}
		seen[d] = name
	}
	add("nothing", nil)
	add("one zero", make([]byte, 1))
	add("a chunk of zeros", make([]byte, DigestChunk))
	add("two chunks of zeros", make([]byte, 2*DigestChunk))
	for _, at := range []int{0, 1, DigestChunk - 1, DigestChunk, 2*DigestChunk - 1} {
		p := make([]byte, 2*DigestChunk)
		p[at] = 1
		add("a one", p)
		p[at] = 2
		add("a two", p)
		add("a two in a longer file", append(p, 0))
	}
}

func TestDigestRefusesDisorder(t *testing.T) {
	d := NewDigester(10 * DigestChunk)
	if err := d.Write(2*DigestChunk, make([]byte, DigestChunk)); err != nil {
		t.Fatal(err)
	}
	for _, at := range []uint64{0, 2 * DigestChunk, 3*DigestChunk + 1} {
		if d.Write(at, []byte{1}) == nil {
			t.Errorf("bytes at %d accepted", at)
		}
	}
}
