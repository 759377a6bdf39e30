package outlog

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"
)

func examples() []Entry {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.Local)
	return []Entry{{1, at, []byte("out\n")}, {2, at.Add(1), []byte{0, 255, '\n'}}, {1, at.Add(2), []byte{}}}
}

// The format does not change, because later versions of forkd read the files of earlier versions.
func TestFormat(t *testing.T) {
	p := Encode([]Entry{{2, time.Unix(0, 258), []byte("ab")}})
	if want := "forkd output 1\n\x02\x00\x00\x00\x00\x00\x00\x01\x02\x00\x00\x00\x02ab"; string(p) != want {
		t.Errorf("%q, want %q", p, want)
	}
	list, err := Decode(Encode(examples()))
	if err != nil || !reflect.DeepEqual(list, examples()) {
		t.Errorf("%v, %v", list, err)
	}
}

func TestDamage(t *testing.T) {
	whole := Encode(examples())
	for name, p := range map[string][]byte{
		"empty":              {},
		"another version":    bytes.Replace(whole, []byte("1"), []byte("2"), 1),
		"truncated":          whole[:len(whole)-1],
		"truncated in text":  whole[:len(magic)+head+2],
		"another stream":     []byte(magic + "\x03" + strings.Repeat("\x00", head-1)),
		"more text than has": []byte(magic + "\x01" + strings.Repeat("\xff", head-1)),
	} {
		if list, err := Decode(p); err == nil {
			t.Errorf("%s: %v", name, list)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Encode(examples()))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, p []byte) {
		if list, err := Decode(p); err == nil && !bytes.Equal(Encode(list), p) {
			t.Errorf("%q is another file when it is encoded again", p)
		}
	})
}
