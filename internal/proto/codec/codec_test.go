package codec

import (
	"bytes"
	"testing"
)

func TestRoundTrip(t *testing.T) {
	var w Writer
	w.U8(7)
	w.Bool(true)
	w.U16(0x1234)
	w.U32(0x12345678)
	w.U64(0x123456789abcdef0)
	w.Blob([]byte("blob"))
	w.String("string")
	r := NewReader(w.Bytes())
	if r.U8() != 7 || !r.Bool() || r.U16() != 0x1234 || r.U32() != 0x12345678 || r.U64() != 0x123456789abcdef0 {
		t.Fatal("integers differ")
	}
	if !bytes.Equal(r.Blob(), []byte("blob")) || r.String() != "string" {
		t.Fatal("strings differ")
	}
	if err := r.Done(); err != nil {
		t.Fatal(err)
	}
}

func TestEveryTruncationFails(t *testing.T) {
	var w Writer
	w.U32(3)
	w.Blob([]byte("abc"))
	w.U64(9)
	full := w.Bytes()
	for n := range full {
		r := NewReader(full[:n])
		r.U32()
		r.Blob()
		r.U64()
		if r.Done() == nil {
			t.Fatalf("%d of %d bytes were accepted", n, len(full))
		}
	}
}

func TestCountRefusesMoreThanTheInputHolds(t *testing.T) {
	var w Writer
	w.U32(1 << 31)
	r := NewReader(w.Bytes())
	if n := r.Count(16); n != 0 || r.Err() == nil {
		t.Fatalf("count = %d, err = %v", n, r.Err())
	}
}
