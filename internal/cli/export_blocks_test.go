package cli

import (
	"archive/tar"
	"bytes"
	"strings"
	"testing"
	"testing/iotest"
)

// extended returns an extended header with records.
func extended(t *testing.T, records string) string {
	t.Helper()
	pad := strings.Repeat("\x00", -len(records)&(tarBlock-1))
	return string(plainBlock(t, 'x', len(records))) + records + pad
}

// withNumber returns a header block whose size field contains the given text.
func withNumber(t *testing.T, text string) string {
	t.Helper()
	b := plainBlock(t, '0', 0)
	copy(b[124:136], text)
	return string(summed(b))
}

// An archive is refused if it has a form about which programs disagree.
func TestFormOfExports(t *testing.T) {
	out := pax("path", "../out")
	file, zeros := string(plainBlock(t, '0', 0)), strings.Repeat("\x00", 2*tarBlock)
	named := pax("GNU.sparse.name", "x")
	holes := pax("GNU.sparse.major", "1") + pax("GNU.sparse.minor", "0") + pax("GNU.sparse.realsize", "9")
	padded := []byte(extended(t, pax("path", "x")))
	copy(padded[len(padded)-40:], out)
	gnu := []byte(file)
	copy(gnu[257:], "ustar  \x00")
	for name, c := range map[string]struct{ archive, want string }{
		"name of a file with holes": {extended(t, pax("GNU.sparse.name", "../out")) + file, "not complete"},
		"name without version":      {extended(t, named+pax("GNU.sparse.realsize", "9")) + file, "not complete"},
		"two names":                 {extended(t, holes+named+out) + file, "not complete"},
		"old map of holes":          {extended(t, pax("GNU.sparse.map", "0,1")) + file, `"GNU.sparse.map"`},
		"old size of holes":         {extended(t, pax("GNU.sparse.size", "1")) + file, `"GNU.sparse.size"`},
		"holes in a directory":      {extended(t, holes+named) + string(plainBlock(t, '5', 0)), "holes"},
		"encoding":                  {extended(t, pax("hdrcharset", "BINARY")) + file, `"hdrcharset"`},
		"unknown key":               {extended(t, pax("comment", "x")) + file, `"comment"`},
		"key twice":                 {extended(t, out+pax("path", "x")) + file, "well formed"},
		"empty name":                {extended(t, pax("path", "")) + file, "well formed"},
		"length with a sign":        {extended(t, "+10 path=x\n") + file, "well formed"},
		"length too large":          {extended(t, "99 path=x\n") + file, "well formed"},
		"length too small":          {extended(t, "2 path=x\n") + file, "well formed"},
		"no length":                 {extended(t, "path=x\n") + file, "well formed"},
		"no value":                  {extended(t, "7 path\n") + file, "well formed"},
		"records in the padding":    {string(padded) + file, "well formed"},
		"small size":                {extended(t, pax("size", "512")) + file, "size"},
		"size with a sign":          {extended(t, pax("size", "+8589934592")) + file, "size"},
		"too large a size":          {extended(t, pax("size", "9223372036854775807")) + file, "size"},
		"size of a link":            {extended(t, pax("size", "8589934592")) + string(plainBlock(t, '2', 0)), "size"},
		"content of a directory":    {string(plainBlock(t, '5', 512)) + file, "content"},
		"two extended headers":      {extended(t, out) + extended(t, pax("path", "x")) + file, "two extended"},
		"no entry":                  {extended(t, pax("path", "x")), "without an entry"},
		"too large a header":        {string(plainBlock(t, 'x', tarTexts+1)), "bytes"},
		"global header":             {string(plainBlock(t, 'g', 0)), "type"},
		"long name of GNU":          {string(plainBlock(t, 'L', 0)), "type"},
		"old holes of GNU":          {string(plainBlock(t, 'S', 0)), "type"},
		"old type of files":         {string(plainBlock(t, 0, 0)), "type"},
		"format of GNU":             {string(summed(gnu)), "format"},
		"binary size":               {withNumber(t, "\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00"), "format"},
		"size after zeros":          {withNumber(t, "\x00\x00\x00\x00\x00\x00\x000001\x00"), "format"},
		"size with spaces":          {withNumber(t, "       0001 "), "format"},
	} {
		_, err := new(tarForm).Write([]byte(c.archive + zeros))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if readExport(strings.NewReader(c.archive+zeros), 1<<40, anyEntry) == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	slash := []byte(file)
	slash[1] = '/'
	if err := readExport(strings.NewReader(string(summed(slash))+zeros), 1<<40, anyEntry); err == nil ||
		!strings.Contains(err.Error(), `"x/"`) {
		t.Errorf("a file whose name ends with a slash: %v", err)
	}
}

// Archives that forkd-diff writes are accepted, whatever the size of the pieces in which they
// arrive.
func TestFormOfGoodExports(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeDir, Name: "ü/", Uid: 1 << 30},
		{Typeflag: tar.TypeReg, Name: "ü/" + strings.Repeat("n", 200), Size: 1000, Gid: 1 << 30,
			PAXRecords: map[string]string{"SCHILY.xattr.user.a": "1\n2 path=x\n\x00", "SCHILY.xattr.user.empty": ""}},
		{Typeflag: tar.TypeSymlink, Name: "l", Linkname: strings.Repeat("n", 200)},
		{Typeflag: tar.TypeChar, Name: "c", Devmajor: 1, Devminor: 3},
		{Typeflag: tar.TypeReg, Name: ".wh.w"},
	} {
		h.Format = tar.FormatPAX
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(bytes.Repeat([]byte("x"), int(h.Size))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for name, zeros := range map[string]int{"as written": 0, "padded": 10 << 10} {
		archive, entries := append(b.Bytes(), make([]byte, zeros)...), 0
		err := readExport(iotest.OneByteReader(bytes.NewReader(archive)), int64(len(archive)), func(exportEntry) error {
			entries++
			return nil
		})
		if err != nil || entries != 5 {
			t.Errorf("%s: %d entries, %v", name, entries, err)
		}
		if err := readExport(bytes.NewReader(archive), int64(len(archive))-1, anyEntry); err == nil {
			t.Errorf("%s: an archive of more than the bound was read", name)
		}
	}
}

// An entry of more than 8 GiB has its size in an extended header. The check of the form uses this
// size.
func TestFormOfLargeExports(t *testing.T) {
	var form tarForm
	for _, part := range []string{extended(t, pax("size", "8589934593")), string(plainBlock(t, '0', 0))} {
		if _, err := form.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if form.content != 8589934592+tarBlock {
		t.Errorf("%d bytes of content", form.content)
	}
}

// Whatever bytes a guest sends, the worst result is an error.
func FuzzReadExport(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "ü", Format: tar.FormatPAX})
	_ = w.Close()
	f.Add(b.Bytes())
	f.Fuzz(func(_ *testing.T, archive []byte) {
		_ = readExport(bytes.NewReader(archive), 1<<20, anyEntry)
	})
}
