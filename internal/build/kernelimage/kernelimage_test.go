package kernelimage

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"math/rand"
	"os"
	"os/exec"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// image makes a bzImage with a payload. With appendSize, it appends the uncompressed size, like the
// kernel's build.
func image(payload []byte, size int, appendSize bool) []byte {
	if appendSize {
		payload = binary.LittleEndian.AppendUint32(bytes.Clone(payload), uint32(size))
	}
	const sects, gap = 3, 100
	b := make([]byte, (sects+1)*sectorSize+gap)
	b[offSetupSects] = sects
	copy(b[offHeaderMagic:], "HdrS")
	binary.LittleEndian.PutUint16(b[offVersion:], 0x20f)
	binary.LittleEndian.PutUint32(b[offPayloadOffset:], gap)
	binary.LittleEndian.PutUint32(b[offPayloadLength:], uint32(len(payload)))
	return append(append(b, payload...), "trailing code"...)
}

func kernel() []byte {
	b := make([]byte, 300<<10)
	rand.New(rand.NewSource(1)).Read(b[:100<<10])
	copy(b, "\x7fELF")
	return b
}

func TestExtractEveryCompression(t *testing.T) {
	want := kernel()
	compressors := map[string]func(t *testing.T) []byte{
		"gzip": func(t *testing.T) []byte {
			var buf bytes.Buffer
			w := gzip.NewWriter(&buf)
			w.Write(want)
			w.Close()
			return buf.Bytes()
		},
		"zstd": func(t *testing.T) []byte {
			w, err := zstd.NewWriter(nil)
			if err != nil {
				t.Fatal(err)
			}
			return w.EncodeAll(want, nil)
		},
		"lz4": func(t *testing.T) []byte {
			var buf bytes.Buffer
			w := lz4.NewWriter(&buf)
			if err := w.Apply(lz4.LegacyOption(true)); err != nil {
				t.Fatal(err)
			}
			w.Write(want)
			w.Close()
			return buf.Bytes()
		},
		"xz with the x86 filter": func(t *testing.T) []byte {
			path, err := exec.LookPath("xz")
			if err != nil {
				t.Skip("no xz command to make the input with")
			}
			cmd := exec.Command(path, "--check=crc32", "--x86", "--lzma2=dict=1MiB", "-c")
			cmd.Stdin = bytes.NewReader(want)
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			return out
		},
		"none": func(*testing.T) []byte { return want },
	}
	for name, compress := range compressors {
		t.Run(name, func(t *testing.T) {
			got, err := ExtractVMLinux(image(compress(t), len(want), name != "none" && name != "gzip"))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Fatalf("got %d bytes that differ from the %d put in", len(got), len(want))
			}
		})
	}
}

func TestExtractRefuses(t *testing.T) {
	good := image(kernel(), 0, false)
	old := bytes.Clone(good)
	binary.LittleEndian.PutUint16(old[offVersion:], 0x207)
	long := bytes.Clone(good)
	binary.LittleEndian.PutUint32(long[offPayloadLength:], 0xffffffff)
	far := bytes.Clone(good)
	binary.LittleEndian.PutUint32(far[offPayloadOffset:], 0xffffffff)
	for name, in := range map[string][]byte{
		"old protocol": old, "payload too long": long, "payload past the end": far,
		"unknown compression": image([]byte("BZh9 something"), 0, false),
		"empty payload":       image(nil, 0, false),
		"damaged zstd":        image([]byte{0x28, 0xb5, 0x2f, 0xfd, 1, 2, 3}, 7, true),
		"damaged xz":          image([]byte("\xfd7zXZ\x00garbage"), 7, true),
	} {
		if got, err := ExtractVMLinux(in); err == nil {
			t.Errorf("%s: got %d bytes, want an error", name, len(got))
		}
	}
	if _, err := ExtractVMLinux([]byte("#!/bin/sh")); !errors.Is(err, ErrNotBzImage) {
		t.Errorf("script: got %v, want ErrNotBzImage", err)
	}
}

// TestExtractRealKernel needs FORKD_TEST_BZIMAGE, the path of a distribution's bzImage.
func TestExtractRealKernel(t *testing.T) {
	path := os.Getenv("FORKD_TEST_BZIMAGE")
	if path == "" {
		t.Skip("FORKD_TEST_BZIMAGE is not set")
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ExtractVMLinux(b)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes from %d", len(got), len(b))
}
