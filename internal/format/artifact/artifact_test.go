package artifact

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// digestOf returns the digest that a manifest has for a file.
func digestOf(t testing.TB, p []byte) string {
	t.Helper()
	d := snapshot.NewDigester(uint64(len(p)))
	if err := d.Write(0, p); err != nil {
		t.Fatal(err)
	}
	return d.Sum()
}

// whole returns a function for the parameter data of Encode. The function says that all bytes of a
// file may be nonzero.
func whole(size int) func(uint64) (uint64, uint64, error) {
	return func(at uint64) (uint64, uint64, error) {
		if at >= uint64(size) {
			return 0, 0, io.EOF
		}
		return at, uint64(size), nil
	}
}

// encode returns the blob of a file.
func encode(t testing.TB, name string, content []byte) (Blob, []byte) {
	t.Helper()
	e, err := NewEncoder()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	p := Part{Name: name, Bytes: uint64(len(content)), Digest: digestOf(t, content)}
	b, err := e.Encode(t.Context(), &out, p, bytes.NewReader(content), whole(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	return b, out.Bytes()
}

// decode returns the content of a blob.
func decode(ctx context.Context, b Blob, coded []byte) ([]byte, error) {
	r, err := Open(bytes.NewReader(coded), b)
	if err != nil {
		return nil, err
	}
	out := make([]byte, b.Part.Bytes)
	return out, r.Decode(ctx, func(at uint64, p []byte) error {
		copy(out[at:], p)
		return nil
	})
}

// content returns a file of n bytes. Of each four pages, one has random bytes, one repeats a byte,
// and two are zero.
func content(n int, seed uint64) []byte {
	p, r := make([]byte, n), rand.New(rand.NewPCG(seed, 1))
	for at := 0; at < n; at += pageBytes {
		page := p[at:min(n, at+pageBytes)]
		switch r.IntN(4) {
		case 0:
			for i := range page {
				page[i] = byte(r.Uint32())
			}
		case 1:
			for i := range page {
				page[i] = 7
			}
		}
	}
	return p
}

func TestBlobRoundTrip(t *testing.T) {
	for _, n := range []int{1, pageBytes - 1, pageBytes, pageBytes + 1, FrameBytes, 5*FrameBytes + 100} {
		p := content(n, uint64(n))
		p[n-1] = 1 // the last page has data
		b, coded := encode(t, "x", p)
		if int64(len(coded)) != b.Size || digest.FromBytes(coded) != b.Digest {
			t.Fatalf("%d bytes: the blob is not the described one: %+v", n, b)
		}
		got, err := decode(t.Context(), b, coded)
		if err != nil || !bytes.Equal(got, p) {
			t.Fatalf("%d bytes: content differs, %v", n, err)
		}
	}
}

// Zeros take no space in a blob, and the same content gives the same blob, with or without holes.
func TestZerosAreAbsent(t *testing.T) {
	p := make([]byte, 64<<20)
	p[33<<20] = 1
	b, _ := encode(t, "x", p)
	if b.Size > 256 {
		t.Errorf("a page in 64 MiB of zeros takes %d bytes", b.Size)
	}
	e, err := NewEncoder()
	if err != nil {
		t.Fatal(err)
	}
	holes := func(at uint64) (uint64, uint64, error) {
		if at > 33<<20 {
			return 0, 0, io.EOF
		}
		return 33<<20 - 512, 33<<20 + 512, nil // ranges need not begin at a page boundary
	}
	sparse, err := e.Encode(t.Context(), io.Discard, b.Part, bytes.NewReader(p), holes)
	if err != nil || sparse != b {
		t.Errorf("%+v, %v; want %+v", sparse, err, b)
	}
	empty, coded := encode(t, "x", make([]byte, 10*pageBytes))
	if got, err := decode(t.Context(), empty, coded); err != nil || len(got) != 10*pageBytes {
		t.Error(err)
	}
}

// A blob is a zstd stream, so other programs can decompress it.
func TestBlobIsZstd(t *testing.T) {
	p := bytes.Repeat([]byte("forkd"), 3*FrameBytes/5)
	_, coded := encode(t, "x", p)
	z, err := zstd.NewReader(bytes.NewReader(coded))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	if got, err := io.ReadAll(z); err != nil || !bytes.Equal(got, p) {
		t.Errorf("%d bytes of %d, %v", len(got), len(p), err)
	}
}

// A file that differs from its digest is not packed.
func TestDamagedFileIsNotPacked(t *testing.T) {
	p := content(FrameBytes, 1)
	e, err := NewEncoder()
	if err != nil {
		t.Fatal(err)
	}
	part := Part{Name: "vmstate", Bytes: uint64(len(p)), Digest: digestOf(t, p)}
	p[100]++
	_, err = e.Encode(t.Context(), io.Discard, part, bytes.NewReader(p), whole(len(p)))
	if err == nil || !strings.Contains(err.Error(), "vmstate: its digest is") {
		t.Error(err)
	}
}

// reindex replaces the index of a blob, and describes the new blob with correct digests.
func reindex(b Blob, coded []byte, change func(payload []byte) []byte) (Blob, []byte) {
	cut := b.Size - b.IndexBytes
	payload := change(bytes.Clone(coded[cut+skippableHead:]))
	index := binary.LittleEndian.AppendUint32(nil, skippableMagic)
	index = append(binary.LittleEndian.AppendUint32(index, uint32(len(payload))), payload...)
	out := append(bytes.Clone(coded[:cut]), index...)
	b.Size, b.Digest = int64(len(out)), digest.FromBytes(out)
	b.IndexBytes, b.IndexDigest = int64(len(index)), digest.FromBytes(index)
	return b, out
}

// put32 returns a function that replaces the 32-bit number at an offset of an index's payload.
func put32(at int, v uint32) func([]byte) []byte {
	return func(p []byte) []byte { binary.LittleEndian.PutUint32(p[at:], v); return p }
}

func put64(at int, v uint64) func([]byte) []byte {
	return func(p []byte) []byte { binary.LittleEndian.PutUint64(p[at:], v); return p }
}

// A hostile blob is refused before its bytes are used.
func TestHostileBlobs(t *testing.T) {
	p := content(3*FrameBytes, 2)
	for i := range p { // three full frames of one run each
		p[i] |= 1
	}
	good, coded := encode(t, BasePart, p)
	const first = indexHead // the first frame in the payload
	const runAt = first + frameHead
	bomb, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	huge := bomb.EncodeAll(make([]byte, 64<<20), nil)
	swap := func(p []byte) []byte { // exchange the first two frames' sizes and digests
		const entry = frameHead + runBytes
		a, b := bytes.Clone(p[first:first+36]), bytes.Clone(p[first+entry:first+entry+36])
		copy(p[first:], b)
		copy(p[first+entry:], a)
		return p
	}
	for name, c := range map[string]struct {
		make func() (Blob, []byte)
		want string
	}{
		"truncated": {func() (Blob, []byte) { return good, coded[:len(coded)-1] }, "read the index"},
		"cut in the frames": {func() (Blob, []byte) {
			return good, append(bytes.Clone(coded[100:]), make([]byte, 100)...)
		}, "the index differs from its digest"},
		"a flipped bit in a frame": {func() (Blob, []byte) {
			c := bytes.Clone(coded)
			c[1000] ^= 1
			return good, c
		}, "frame 0 differs from its digest"},
		"a flipped bit in the index": {func() (Blob, []byte) {
			c := bytes.Clone(coded)
			c[len(c)-1] ^= 1
			return good, c
		}, "the index differs from its digest"},
		"swapped frames": {func() (Blob, []byte) { return reindex(good, coded, swap) }, "differs from its digest"},
		"a lying length": {func() (Blob, []byte) { return reindex(good, coded, put64(16, 1<<60)) },
			"a file of 1152921504606846976 bytes"},
		"another version": {func() (Blob, []byte) { return reindex(good, coded, put32(8, 9)) }, "index version 9"},
		"huge frames": {func() (Blob, []byte) { return reindex(good, coded, put32(12, 1<<30)) },
			"frames of 1073741824 bytes"},
		"many frames": {func() (Blob, []byte) { return reindex(good, coded, put32(24, 1<<31)) }, "index:"},
		"many runs":   {func() (Blob, []byte) { return reindex(good, coded, put32(first+36, 1<<31)) }, "index:"},
		"a run outside of the file": {func() (Blob, []byte) {
			return reindex(good, coded, put64(runAt, 1<<52))
		}, "outside of the file"},
		"a run of no page": {func() (Blob, []byte) { return reindex(good, coded, put32(runAt+8, 0)) }, "run of 0 pages"},
		"a run of too many": {func() (Blob, []byte) { return reindex(good, coded, put32(runAt+8, 1<<31)) },
			"run of 2147483648"},
		"runs that overlap": {func() (Blob, []byte) { return reindex(good, coded, put32(runAt+8, 65)) },
			"a frame of more than"},
		"less data than run": {func() (Blob, []byte) { return reindex(good, coded, put32(runAt+8, 63)) },
			"more data than the index says"},
		"a frame that is too long": {func() (Blob, []byte) {
			return reindex(good, coded, put32(first, 1<<30))
		}, "a frame of 1073741824 bytes"},
		"a frame of no byte": {func() (Blob, []byte) { return reindex(good, coded, put32(first, 0)) },
			"a frame of 0 bytes"},
		"bytes behind the frames": {func() (Blob, []byte) {
			c := append(bytes.Clone(coded[:good.Size-good.IndexBytes]), 1, 2, 3)
			c = append(c, coded[good.Size-good.IndexBytes:]...)
			b := good
			b.Size += 3
			return b, c
		}, "in a blob that has"},
		"bytes behind the index": {func() (Blob, []byte) {
			return reindex(good, coded, func(p []byte) []byte { return append(p, 0) })
		}, "index:"},
		"the content of another file": {func() (Blob, []byte) {
			b := good
			b.Part.Digest = digestOf(t, []byte("other"))
			return b, coded
		}, "its content has the digest"},
		"a bomb": {func() (Blob, []byte) {
			b, c := encode(t, "x", bytes.Repeat([]byte{1}, FrameBytes))
			old := int(b.Size - b.IndexBytes)
			index := bytes.Clone(c[old:])
			binary.LittleEndian.PutUint32(index[skippableHead+first:], uint32(len(huge)))
			sum := digest.FromBytes(huge)
			raw := make([]byte, 0, 32)
			for i := 0; i < 64; i += 2 {
				var v byte
				for _, ch := range []byte(sum.Encoded()[i : i+2]) {
					v = v<<4 | byte(strings.IndexByte("0123456789abcdef", ch))
				}
				raw = append(raw, v)
			}
			copy(index[skippableHead+first+4:], raw)
			c = append(bytes.Clone(huge), index...)
			b.Size, b.IndexDigest, b.Digest = int64(len(c)), digest.FromBytes(index), digest.FromBytes(c)
			return b, c
		}, "frame 0:"},
	} {
		b, coded := c.make()
		_, err := decode(t.Context(), b, coded)
		var format *Error
		if !errors.As(err, &format) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := decode(t.Context(), good, coded); err != nil {
		t.Errorf("the good blob: %v", err)
	}
}

// FuzzParse finds no bytes that crash the decoder, or that decode to more than their declared size.
func FuzzParse(f *testing.F) {
	a, blobs := sample(f)
	for _, b := range a.Blobs {
		f.Add(a.Manifest, a.Config, blobs[b.Digest])
	}
	f.Fuzz(func(t *testing.T, manifest, config, coded []byte) {
		a, err := Parse(manifest, config)
		if err != nil {
			return
		}
		for _, b := range a.Blobs {
			// Describe the bytes correctly, so that the fuzzer reaches the index and the frames.
			if b.Size = int64(len(coded)); b.IndexBytes > b.Size {
				continue
			}
			b.IndexDigest = digest.FromBytes(coded[b.Size-b.IndexBytes:])
			r, err := Open(bytes.NewReader(coded), b)
			if err != nil {
				continue
			}
			sum := uint64(0)
			_ = r.Decode(t.Context(), func(at uint64, p []byte) error {
				if sum += uint64(len(p)); at+uint64(len(p)) > b.Part.Bytes || sum > r.Data() {
					t.Fatalf("%d bytes at %d of a file of %d", len(p), at, b.Part.Bytes)
				}
				return nil
			})
		}
	})
}
