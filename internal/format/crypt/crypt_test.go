package crypt

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// piece is data of a file.
type piece struct {
	at uint64
	p  []byte
}

// seal encrypts a file of the given pieces.
func seal(t testing.TB, key *Key, name string, bytesOf uint64, pieces ...piece) []byte {
	t.Helper()
	h := Header{KeyID: strings.Repeat("ab", IDBytes), Name: name, Bytes: bytesOf}
	for _, p := range pieces {
		h.Data += uint64(len(p.p))
	}
	var out bytes.Buffer
	w, err := NewWriter(&out, key, h)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pieces {
		if err := w.Write(p.at, p.p); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// open decrypts a file into memory.
func open(key *Key, p []byte) (*Reader, []byte, error) {
	r, err := NewReader(bytes.NewReader(p))
	if err != nil {
		return nil, nil, err
	}
	if r.Bytes > 1<<26 {
		return r, nil, errors.New("too large for a test")
	}
	out := make([]byte, r.Bytes)
	return r, out, r.Decode(key, func(at uint64, p []byte) error {
		copy(out[at:], p)
		return nil
	})
}

func TestRoundTrip(t *testing.T) {
	key := &Key{1}
	large := bytes.Repeat([]byte("0123456"), maxFrame/3) // more than two frames
	size := uint64(len(large)) + 3<<20
	enc := seal(t, key, "memory.layer x", size, piece{4096, []byte("marker")}, piece{1 << 20, large})
	if bytes.Contains(enc, []byte("marker")) || bytes.Contains(enc, large[:64]) {
		t.Error("the encrypted file has plain data")
	}
	if len(enc) > len(large)+1000 {
		t.Errorf("%d bytes for %d bytes of data: holes take space", len(enc), len(large))
	}
	r, got, err := open(key, enc)
	want := make([]byte, size)
	copy(want[4096:], "marker")
	copy(want[1<<20:], large)
	if err != nil || !bytes.Equal(got, want) || r.Name != "memory.layer x" || r.Data != uint64(len(large))+6 {
		t.Errorf("%+v, equal %v: %v", r.Header, bytes.Equal(got, want), err)
	}
	if _, got, err := open(key, seal(t, key, "empty", 0)); err != nil || len(got) != 0 {
		t.Errorf("empty file: %d bytes, %v", len(got), err)
	}
}

// frames splits an encrypted file into its header and its frames.
func frames(t *testing.T, name string, p []byte) (header []byte, list [][]byte) {
	t.Helper()
	n := fixedBytes + len(name)
	header, p = p[:n], p[n:]
	for len(p) > 0 {
		n := 4 + int(p[0]) + int(p[1])<<8 + int(p[2])<<16
		list, p = append(list, p[:n]), p[n:]
	}
	return header, list
}

func TestChangedFilesAreRefused(t *testing.T) {
	key := &Key{1}
	pieces := []piece{{0, []byte("first")}, {4096, []byte("second")}, {8192, []byte("third")}}
	enc := seal(t, key, "name", 16384, pieces...)
	head, f := frames(t, "name", enc)
	otherHead, other := frames(t, "name", seal(t, key, "name", 16384, pieces...))
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for what, p := range map[string][]byte{
		"last frame missing":       join(head, f[0], f[1], f[2]),
		"a frame missing":          join(head, f[0], f[2], f[3]),
		"first frame missing":      join(head, f[1], f[2], f[3]),
		"frames exchanged":         join(head, f[1], f[0], f[2], f[3]),
		"a frame twice":            join(head, f[0], f[0], f[1], f[2], f[3]),
		"a frame of another file":  join(head, f[0], other[1], f[2], f[3]),
		"header of another file":   join(otherHead, f[0], f[1], f[2], f[3]),
		"more behind the end":      join(enc, []byte{0}),
		"a frame behind the end":   join(enc, f[0]),
		"nothing but the header":   head,
		"empty":                    nil,
		"last frame of other file": join(head, f[0], f[1], f[2], other[3]),
	} {
		if _, _, err := open(key, p); !errors.Is(err, ErrChanged) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, _, err := open(&Key{2}, enc); !errors.Is(err, ErrChanged) {
		t.Errorf("wrong key: %v", err)
	}
	for i := range enc { // every single byte counts
		p := bytes.Clone(enc)
		p[i] ^= 0x40
		if _, _, err := open(key, p); err == nil {
			t.Errorf("byte %d of %d changed: accepted", i, len(enc))
		}
	}
	for n := range enc {
		if _, _, err := open(key, enc[:n]); err == nil {
			t.Errorf("truncated to %d bytes: accepted", n)
		}
	}
}

func TestWriterRefusesWrongData(t *testing.T) {
	h := Header{KeyID: NewID(), Name: "n", Bytes: 100, Data: 10}
	w, err := NewWriter(&bytes.Buffer{}, &Key{}, h)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(95, make([]byte, 6)); err == nil {
		t.Error("data behind the end was accepted")
	}
	if err := w.Write(50, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	if err := w.Write(54, make([]byte, 1)); err == nil {
		t.Error("data before the end of earlier data was accepted")
	}
	if err := w.Close(); err == nil {
		t.Error("a file with too little data was completed")
	}
	for _, h := range []Header{{KeyID: "x", Name: "n"}, {KeyID: NewID()}, {KeyID: NewID(), Name: "n", Data: 1}} {
		if _, err := NewWriter(&bytes.Buffer{}, &Key{}, h); err == nil {
			t.Errorf("%+v was accepted", h)
		}
	}
}

func FuzzReader(f *testing.F) {
	key := &Key{1}
	f.Add(seal(f, key, "name", 16384, piece{0, []byte("first")}))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, p []byte) {
		_, _, _ = open(key, p) // must neither panic nor take much memory
	})
}
