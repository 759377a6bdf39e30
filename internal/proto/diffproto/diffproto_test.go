package diffproto

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
)

var entry = Entry{Path: "/a\nb\xff", Old: Node{Type: Regular, Mode: 0o4755, UID: 1, GID: 2, Size: 3},
	New: Node{Type: Symlink, Target: "x"}, Content: true, Xattrs: []string{"user.a"}, Omitted: Binary, LinesAdded: 4,
	LinesDeleted: 5, Patch: []byte("@@ -1 +1 @@\n-a\n+b\n")}

func TestConversation(t *testing.T) {
	var b bytes.Buffer
	req := Request{Path: "/srv", Patch: true, MaxEntries: 7, MaxPatch: 8}
	if err := WriteRequest(&b, req); err != nil {
		t.Fatal(err)
	}
	w := NewRangeWriter(&b)
	for i := range uint64(2*maxRanges + 1) {
		if err := w.Add(Range{i, i + 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadRequest(&b); err != nil || got != req {
		t.Errorf("%+v, %v", got, err)
	}
	n := uint64(0)
	err := ReadRanges(&b, func(r Range) error {
		if r != (Range{n, n + 1}) {
			t.Errorf("range %d is %+v", n, r)
		}
		n++
		return nil
	})
	if err != nil || n != 2*maxRanges+1 || b.Len() != 0 {
		t.Errorf("%d ranges, %d bytes are left, %v", n, b.Len(), err)
	}

	done := Done{1, 2, 3, 4, 5, 6}
	err = errors.Join(WriteEntry(&b, &entry), WriteEntry(&b, &Entry{Path: "/", New: Node{Type: Directory}}),
		WriteDone(&b, done),
		WriteRefused(&b, &RefusedError{Field: "path", Reason: "no"}), WriteRefused(&b,
			errors.New("\x1b[2J"+strings.Repeat("x", 5000))))
	if err != nil {
		t.Fatal(err)
	}
	r := NewReader(&b)
	if e, d, err := r.Next(); err != nil || d != nil || !reflect.DeepEqual(*e, entry) {
		t.Errorf("%+v, %v, %v", e, d, err)
	}
	if e, _, err := r.Next(); err != nil || e.Path != "/" {
		t.Errorf("%+v, %v", e, err)
	}
	if _, d, err := r.Next(); err != nil || *d != done {
		t.Errorf("%+v, %v", d, err)
	}
	var refused *RefusedError
	if _, _, err := r.Next(); !errors.As(err, &refused) || *refused != (RefusedError{"path", "no"}) {
		t.Errorf("%v", err)
	}
	if _, _, err := r.Next(); !errors.As(err, &refused) || !strings.HasPrefix(refused.Reason, `\x1b[2Jx`) ||
		len(refused.Reason) > 2*maxReason {
		t.Errorf("%v", err)
	}
	if _, _, err := r.Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
}

// The daemon refuses entries that no comparison has.
func TestBadEntries(t *testing.T) {
	for name, change := range map[string]func(*Entry){
		"relative":         func(e *Entry) { e.Path = "a" },
		"not clean":        func(e *Entry) { e.Path = "/a/../b" },
		"long":             func(e *Entry) { e.Path = "/" + strings.Repeat("x", MaxPath) },
		"zero byte":        func(e *Entry) { e.Path = "/\x00" },
		"no file":          func(e *Entry) { e.Old, e.New = Node{}, Node{} },
		"type":             func(e *Entry) { e.New.Type = types },
		"mode":             func(e *Entry) { e.New.Mode = 0o100644 },
		"target":           func(e *Entry) { e.New.Target = strings.Repeat("x", MaxPath+1) },
		"omission":         func(e *Entry) { e.Omitted = omissions },
		"patch in Latin-1": func(e *Entry) { e.Patch = []byte("+\xff\n") },
		"no patch":         func(e *Entry) { e.Patch = []byte("+a\nforkd: all is well\n") },
		"attributes":       func(e *Entry) { e.Xattrs = make([]string, MaxXattrs+1) },
		"attribute":        func(e *Entry) { e.Xattrs = []string{strings.Repeat("x", maxName+1)} },
	} {
		e := entry
		change(&e)
		var b bytes.Buffer
		if err := WriteEntry(&b, &e); err != nil {
			t.Fatal(err)
		}
		if _, _, err := NewReader(&b).Next(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Any message leads to an entry that passes its checks, or to an error. Its memory is bounded by its
// length.
func FuzzReader(f *testing.F) {
	var b bytes.Buffer
	_ = WriteEntry(&b, &entry)
	_ = WriteDone(&b, Done{})
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, p []byte) {
		r := NewReader(bytes.NewReader(p))
		for {
			e, _, err := r.Next()
			if refused := (*RefusedError)(nil); err != nil && !errors.As(err, &refused) {
				return
			}
			if e != nil && len(e.Path)+len(e.Patch) > len(p) {
				t.Errorf("%d bytes have become %+v", len(p), e)
			}
		}
	})
}
