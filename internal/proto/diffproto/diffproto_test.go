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
	LinesDeleted: 5, Patch: []byte("@@ -1 +1 @@\n-a\n+b\n"), Base: Regular, Conflict: true, Kept: true}

func TestConversation(t *testing.T) {
	var b bytes.Buffer
	req := Request{Path: "/srv", Patch: true, MaxEntries: 7, MaxPatch: 8,
		Merge: &Merge{Paths: []string{"/srv", "/a"}, Prefer: PreferOnto}}
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
	if got, err := ReadRequest(&b); err != nil || !reflect.DeepEqual(got, req) {
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

	done := Done{1, 2, 3, 4, 5, 6, 7}
	err = errors.Join(WriteEntry(&b, &Entry{Path: "/", Old: Node{Type: Directory}, New: Node{Type: Directory}}),
		WriteEntry(&b, &entry),
		WriteDone(&b, done),
		WriteRefused(&b, &RefusedError{Field: "path", Reason: "no"}), WriteRefused(&b,
			errors.New("\x1b[2J"+strings.Repeat("x", 5000))))
	if err != nil {
		t.Fatal(err)
	}
	r := NewReader(&b, "/")
	if e, d, err := r.Next(); err != nil || d != nil || e.Path != "/" {
		t.Errorf("%+v, %v, %v", e, d, err)
	}
	if e, _, err := r.Next(); err != nil || !reflect.DeepEqual(*e, entry) {
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

// The daemon refuses entries that cannot be the result of a comparison.
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
		"a hunk's header":  func(e *Entry) { e.Patch = []byte("@@ -1 +x @@\n-a\n+b\n") },
		"another file": func(e *Entry) {
			e.Patch = []byte("@@ -1 +1 @@\n-a\n+b\n--- a/x\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n")
		},
		"another link":     func(e *Entry) { e.Patch = []byte("@@ -1 +1 @@\n-a\n+b\n\\ x\n") },
		"a line more":      func(e *Entry) { e.Patch = []byte("@@ -1 +1 @@\n-a\n+b\n+c\n") },
		"a line less":      func(e *Entry) { e.Patch = []byte("@@ -1 +1,2 @@\n-a\n+b\n") },
		"a part of a line": func(e *Entry) { e.Patch = []byte("@@ -1 +1 @@\n-a\n+b") },
		"attributes":       func(e *Entry) { e.Xattrs = make([]string, MaxXattrs+1) },
		"attribute":        func(e *Entry) { e.Xattrs = []string{strings.Repeat("x", maxName+1)} },
	} {
		e := entry
		change(&e)
		var b bytes.Buffer
		if err := WriteEntry(&b, &e); err != nil {
			t.Fatal(err)
		}
		if _, _, err := NewReader(&b, "/").Next(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Reader turns any message into an entry that passes its checks, or into an error. It allocates
// memory in proportion to the length of the message.
func FuzzReader(f *testing.F) {
	var b bytes.Buffer
	_ = WriteEntry(&b, &entry)
	_ = WriteDone(&b, Done{})
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, p []byte) {
		r := NewReader(bytes.NewReader(p), "/")
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

// An answer contains the entries of one walk, which begins at the path of the request.
func TestOrderOfEntries(t *testing.T) {
	file, dir, link := Node{Type: Regular}, Node{Type: Directory}, Node{Type: Symlink}
	made := func(path string) Entry { return Entry{Path: path, New: file} }
	for name, c := range map[string]struct {
		path string
		list []Entry
		ok   bool
	}{
		"a walk": {"/", []Entry{{Path: "/", Old: dir, New: dir}, {Path: "/a", New: dir}, made("/a/b"), made("/a/c"),
			made("/a.b"), made("/aa")}, true},
		"the path itself": {"/a", []Entry{made("/a")}, true},
		"a file has become a directory": {"/a", []Entry{{Path: "/a", Old: file, New: dir}, made("/a/b"),
			{Path: "/a/c", New: dir}, made("/a/c/d")}, true},
		"another path":    {"/a", []Entry{made("/ab")}, false},
		"above the path":  {"/a/b", []Entry{{Path: "/a", Old: dir, New: dir}}, false},
		"twice":           {"/", []Entry{made("/a"), made("/a")}, false},
		"back":            {"/", []Entry{made("/a.b"), made("/a/c")}, false},
		"below a link":    {"/", []Entry{{Path: "/a", New: link}, made("/a/b")}, false},
		"below a file":    {"/", []Entry{{Path: "/a", Old: file, New: dir}, {Path: "/a/b", Old: file}}, false},
		"deep under link": {"/", []Entry{{Path: "/a", Old: dir, New: link}, {Path: "/a/b", Old: file}, made("/a/c")}, false},
	} {
		var b bytes.Buffer
		for _, e := range c.list {
			if err := WriteEntry(&b, &e); err != nil {
				t.Fatal(err)
			}
		}
		r := NewReader(&b, c.path)
		var err error
		for range c.list {
			if err == nil {
				_, _, err = r.Next()
			}
		}
		if c.ok != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHunks(t *testing.T) {
	for _, patch := range []string{
		"", "@@ -1,2 +1 @@\n a\n-b\n@@ -9 +8,2 @@\n+c\n--- a/x\n+++ b/y\n", "@@ -0,0 +1 @@\n+a\n\\ No newline at end of file\n",
		"@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n@@ -5 +4,0 @@\n-c\n",
	} {
		if err := checkHunks(patch); err != nil {
			t.Errorf("%q: %v", patch, err)
		}
	}
	for _, patch := range []string{
		"\\ No newline at end of file\n", "@@ -0,0 +0,0 @@\n", "@@ -1 +1 @@\n\\ No newline at end of file\n-a\n+b\n",
		"@@ -1 +1 @@ x\n-a\n+b\n", "@@ -,1 +1 @@\n-a\n+b\n", "@@ -1 1 @@\n-a\n+b\n", "@@ -1 +1 @@\n a\n+b\n",
	} {
		if checkHunks(patch) == nil {
			t.Errorf("%q: no error", patch)
		}
	}
}
