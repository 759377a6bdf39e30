package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

// archive makes a tar file of headers. A regular file without a size has its name as content.
func archive(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range headers {
		body := make([]byte, h.Size)
		if h.Typeflag == tar.TypeReg && h.Size == 0 && h.Format != tar.FormatGNU {
			body = []byte(h.Name)
			h.Size = int64(len(body))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func filterAll(f *tarFilter, in []byte) ([]*tar.Header, error) {
	var out bytes.Buffer
	f.out = tar.NewWriter(&out)
	if f.maxBytes == 0 {
		f.maxBytes = 1 << 20
	}
	if err := f.copy(bytes.NewReader(in)); err != nil {
		return nil, err
	}
	var headers []*tar.Header
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return headers, nil
		}
		if err != nil {
			return nil, err
		}
		headers = append(headers, h)
	}
}

func reg(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }

// blank is an entry of an empty file. archive recognizes it by its format.
func blank(name string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Format: tar.FormatGNU}
}
func dir(name string) tar.Header { return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755} }
func sym(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
}
func hard(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}
}

func TestTarFilterRefusesHostileArchives(t *testing.T) {
	for name, c := range map[string]struct {
		entries []tar.Header
		want    string
	}{
		"parent":                    {[]tar.Header{reg("../evil")}, "leaves the archive"},
		"parent in the middle":      {[]tar.Header{reg("a/../../evil")}, "leaves the archive"},
		"through absolute symlink":  {[]tar.Header{sym("a", "/tmp"), reg("a/evil")}, "symbolic link \"a\""},
		"through relative symlink":  {[]tar.Header{sym("a", "../.."), reg("a/b/evil")}, "symbolic link \"a\""},
		"symlink over used dir":     {[]tar.Header{reg("a/b/c"), sym("a/b", "/tmp")}, "appears twice"},
		"through a file":            {[]tar.Header{reg("a"), reg("a/b")}, "not a directory"},
		"file twice":                {[]tar.Header{reg("a"), reg("./a")}, "appears twice"},
		"hard link out":             {[]tar.Header{hard("a", "../../etc/shadow")}, "leaves the archive"},
		"hard link to host file":    {[]tar.Header{hard("a", "/etc/shadow")}, "no file of the archive"},
		"hard link through symlink": {[]tar.Header{sym("e", "/etc"), hard("a", "e/shadow")}, "no file of the archive"},
		"hard link to directory":    {[]tar.Header{dir("d"), hard("a", "d")}, "no file of the archive"},
		"symlink as root":           {[]tar.Header{sym("./", "/tmp")}, "root is not a directory"},
		"hard link as root":         {[]tar.Header{reg("a"), hard("/", "a")}, "root is not a directory"},
		"file larger than disk":     {[]tar.Header{{Typeflag: tar.TypeReg, Name: "a", Size: 2 << 20}}, errTooLarge.Error()},
		"sum larger than disk": {[]tar.Header{{Typeflag: tar.TypeReg, Name: "a", Size: 700 << 10},
			{Typeflag: tar.TypeReg, Name: "b", Size: 700 << 10}}, errTooLarge.Error()},
		"unknown type": {[]tar.Header{{Typeflag: 'Q', Name: "a"}}, "unsupported type"},
	} {
		_, err := filterAll(&tarFilter{}, archive(t, c.entries...))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

func TestTarFilterKeepsAndCleans(t *testing.T) {
	in := archive(t, dir("./"), reg("/abs"), reg("./d/file"), dir("d"), hard("late", "target"), reg("target"),
		sym("lib", "usr/lib"), sym("root", "/"),
		tar.Header{Typeflag: tar.TypeChar, Name: "dev/null", Devmajor: 1, Devminor: 3},
		tar.Header{Typeflag: tar.TypeReg, Name: "owned", Uid: 1000, Gid: 42, Mode: 0o4755, PAXRecords: map[string]string{
			"SCHILY.xattr.user.kept": "v", "SCHILY.xattr.security.capability": "c",
			"SCHILY.xattr.trusted.overlay.opaque": "y", "SCHILY.xattr.security.selinux": "l",
		}},
		reg("replaced"), blank("blank"))
	headers, err := filterAll(&tarFilter{devices: true, overlay: []overlayFile{
		{name: "replaced", typ: tar.TypeReg, mode: 0o600, data: []byte("new")},
		{name: "new/dir/file", typ: tar.TypeReg, mode: 0o644},
		{name: "d", typ: tar.TypeDir, mode: 0o700}, {name: "d/link", typ: tar.TypeSymlink, link: "file"},
	}, defaults: []overlayFile{
		{name: "abs", typ: tar.TypeReg, mode: 0o644}, {name: "lacking", typ: tar.TypeReg, mode: 0o640, data: []byte("x")},
		{name: "blank", typ: tar.TypeReg, mode: 0o644, data: []byte("x")}, {name: "lib/behind-a-link", typ: tar.TypeReg},
		{name: "d", typ: tar.TypeDir},
	}}, in)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	byName := make(map[string]*tar.Header)
	for _, h := range headers {
		names = append(names, h.Name)
		byName[h.Name] = h
	}
	want := []string{"./", "abs", "d/file", "d/", "target", "lib", "root", "dev/null", "owned", "blank", "late",
		"replaced", "new/", "new/dir/", "new/dir/file", "d/link", "lacking", "blank"}
	if !slices.Equal(names, want) {
		t.Fatalf("names\n got %q\nwant %q", names, want)
	}
	if o := byName["owned"]; o.Uid != 1000 || o.Gid != 42 || o.Mode != 0o4755 {
		t.Errorf("owned: %+v", o)
	}
	if x := byName["owned"].PAXRecords; x["SCHILY.xattr.user.kept"] != "v" ||
		x["SCHILY.xattr.security.capability"] != "c" || len(x) != 2 {
		t.Errorf("extended attributes %v", x)
	}
	if n := byName["dev/null"]; n.Devmajor != 1 || n.Devminor != 3 {
		t.Errorf("device %+v", n)
	}
	if n := byName["new/dir/"]; n.Mode != 0o755 {
		t.Errorf("directory that the overlay needs: mode %o", n.Mode)
	}
	if b := byName["blank"]; b.Size != 1 {
		t.Errorf("the empty file kept its %d bytes", b.Size)
	}
	if r := byName["replaced"]; r.Size != 3 || r.Mode != 0o600 {
		t.Errorf("replaced: %+v", r)
	}
	if headers, err = filterAll(&tarFilter{}, archive(t, tar.Header{Typeflag: tar.TypeBlock, Name: "sda"})); err != nil ||
		len(headers) != 0 {
		t.Errorf("device without the right to make one: %v, %v", headers, err)
	}
}

func TestTarFilterOverlayConflicts(t *testing.T) {
	for name, c := range map[string]struct {
		entry tar.Header
		want  string
	}{
		"directory":          {dir("etc/motd"), "the base has a directory"},
		"symlinked parent":   {sym("etc", "usr/etc"), "use the real path"},
		"file as directory":  {reg("etc"), "not a directory"},
		"file for directory": {reg("srv"), "where the recipe has a directory"},
		"link for directory": {sym("srv", "data"), "where the recipe has a directory"},
	} {
		_, err := filterAll(&tarFilter{overlay: []overlayFile{{name: "etc/motd", typ: tar.TypeReg},
			{name: "srv", typ: tar.TypeDir}}}, archive(t, c.entry))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

// The archive comes from a registry. For any input the filter returns an error or writes only names
// that stay inside the root.
func FuzzTarFilter(f *testing.F) {
	f.Add([]byte("x"))
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "/"})
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "a/../b"})
	_ = w.Close()
	f.Add(buf.Bytes())
	f.Fuzz(func(t *testing.T, in []byte) {
		headers, err := filterAll(&tarFilter{devices: true}, in)
		if err != nil {
			return
		}
		for _, h := range headers {
			if strings.HasPrefix(h.Name, "/") || slices.Contains(strings.Split(h.Name, "/"), "..") {
				t.Errorf("name %q came through", h.Name)
			}
		}
	})
}
