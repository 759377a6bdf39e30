package imageproto

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestStreamRoundTrip(t *testing.T) {
	layers := []string{"", "a", strings.Repeat("b", maxChunk), strings.Repeat("c", 2*maxChunk+1)}
	want := Header{User: true}
	for range layers {
		want.Layers = append(want.Layers, Layer{DiffID: "sha256:" + strings.Repeat("0a", 32)})
	}
	var stream bytes.Buffer
	if err := WriteHeader(&stream, want); err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		if err := WriteLayer(&stream, iotest.HalfReader(strings.NewReader(l))); err != nil {
			t.Fatal(err)
		}
	}
	whole := stream.Bytes()
	r := NewReader(&stream)
	got, err := r.Header()
	if err != nil || got.User != want.User || !slices.Equal(got.Layers, want.Layers) {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, l := range layers {
		if p, err := io.ReadAll(r.Layer()); err != nil || string(p) != l {
			t.Fatalf("a layer of %d bytes has %d, %v", len(l), len(p), err)
		}
	}
	for cut := range 600 { // at every byte within the header and the first layers
		r := NewReader(bytes.NewReader(whole[:cut]))
		_, err := r.Header()
		for i := 0; err == nil && i < len(layers); i++ {
			_, err = io.Copy(io.Discard, r.Layer())
		}
		if err == nil || errors.Is(err, io.EOF) {
			t.Fatalf("the first %d bytes pass: %v", cut, err)
		}
	}
}

// If the source of a layer is cut off, even with io.ErrUnexpectedEOF, the stream does not contain
// the end of the layer.
func TestBrokenSourcesEndNoLayer(t *testing.T) {
	boom := errors.New("boom")
	for _, broken := range []error{io.ErrUnexpectedEOF, boom, fmt.Errorf("layer: %w", io.EOF)} {
		var stream bytes.Buffer
		err := WriteLayer(&stream, io.MultiReader(strings.NewReader("begin"), iotest.ErrReader(broken)))
		if !errors.Is(err, broken) {
			t.Errorf("a source that ends with %q: %v", broken, err)
		}
		if _, err := io.ReadAll(NewReader(&stream).Layer()); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a source that ends with %q: the stream has a whole layer, %v", broken, err)
		}
	}
}

func TestStreamIsBounded(t *testing.T) {
	for _, head := range []string{"\xff\xff\xff\xff", "\x02\x00\x00\x00[]", "\x02\x00\x00\x00{"} {
		if _, err := NewReader(strings.NewReader(head)).Header(); err == nil {
			t.Errorf("the header %q passes", head)
		}
	}
	if _, err := io.ReadAll(NewReader(strings.NewReader("\x01\x00\x10\x00")).Layer()); err == nil ||
		errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a chunk above the limit: %v", err)
	}
	for _, h := range []Header{{Layers: make([]Layer, MaxLayers+1)}, {Layers: []Layer{{DiffID: "sha256:0"}}},
		{Layers: []Layer{{DiffID: "md5:" + strings.Repeat("0", 67)}}}} {
		if h.Check() == nil {
			t.Errorf("a header of %d layers passes", len(h.Layers))
		}
	}
}
