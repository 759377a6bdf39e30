package diffproto

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func TestPieces(t *testing.T) {
	var wire bytes.Buffer
	want := bytes.Repeat([]byte("archive"), maxPiece/3)
	out := NewPieceWriter(&wire)
	if n, err := out.Write(want); n != len(want) || err != nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	var got []byte
	for in := NewReader(&wire, "/"); ; {
		piece, err := in.NextPiece()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, piece...)
	}
	if !bytes.Equal(got, want) || wire.Len() != 0 {
		t.Errorf("%d bytes, want %d; %d are left", len(got), len(want), wire.Len())
	}
}

// The end of an archive is a message. A stream without this message is not an archive.
func TestWrongPieces(t *testing.T) {
	var refusal, done, piece bytes.Buffer
	for _, err := range []error{WriteRefused(&refusal, &RefusedError{Field: "partial", Reason: "why"}),
		WriteDone(&done, Done{}), NewPieceWriter(&piece).send([]byte("x"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	refused := (*RefusedError)(nil)
	if _, err := NewReader(&refusal, "/").NextPiece(); !errors.As(err, &refused) || refused.Field != "partial" {
		t.Errorf("%v", err)
	}
	long := append([]byte{0x11, 0, 0x10, 0}, make([]byte, maxPiece+17)...)
	for name, stream := range map[string][]byte{"no end": nil, "another message": done.Bytes(),
		"cut off": piece.Bytes()[:piece.Len()-1], "too long": long, "empty": make([]byte, 4)} {
		if p, err := NewReader(bytes.NewReader(stream), "/").NextPiece(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %q, %v", name, p, err)
		}
	}
}
