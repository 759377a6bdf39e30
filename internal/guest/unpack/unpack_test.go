package unpack

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/forkd/forkd/internal/proto/imageproto"
)

const testSize = 64 << 20

// file is an entry of a layer. If the name ends with a slash, the entry is a directory. For a
// symbolic link, its target is in link. For a hard link, its target is in hard.
type file struct {
	name, text string
	link, hard string
	head       tar.Header // other fields of the entry's header
}

func archive(t *testing.T, files ...file) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := f.head
		h.Name, h.Size = f.name, int64(len(f.text))
		switch {
		case h.Typeflag != 0:
		case f.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
		case f.hard != "":
			h.Typeflag, h.Linkname = tar.TypeLink, f.hard
		case strings.HasSuffix(f.name, "/"):
			h.Typeflag = tar.TypeDir
		default:
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func diffID(p []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(p)) }

func zipped(p []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(p)
	_ = w.Close()
	return out.Bytes()
}

type layer struct {
	imageproto.Layer
	data []byte
}

// unpacked applies layers to a new directory and returns it.
func unpacked(t *testing.T, user bool, layers ...layer) (dir string, err error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, as in a VM: files get owners")
	}
	defer unix.Umask(unix.Umask(0))
	dir = filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	h := imageproto.Header{User: user}
	for _, l := range layers {
		h.Layers = append(h.Layers, l.Layer)
	}
	if err := imageproto.WriteHeader(&stream, h); err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		if err := imageproto.WriteLayer(&stream, bytes.NewReader(l.data)); err != nil {
			t.Fatal(err)
		}
	}
	return dir, fill(dir, testSize, false, &stream)
}

func plain(t *testing.T, files ...file) layer {
	p := archive(t, files...)
	return layer{imageproto.Layer{DiffID: diffID(p)}, p}
}

// text returns the content of a file, or the error if the file cannot be read.
func text(dir, name string) string {
	p, err := os.ReadFile(filepath.Join(dir, name))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "none"
	case err != nil:
		return err.Error()
	}
	return string(p)
}

// Even if a stream names the same layer many times, the decompressed size of all layers together is
// bounded.
func TestLayersAreBoundedTogether(t *testing.T) {
	zeros := layer{data: zipped(make([]byte, 150<<20))} // an archive that consists only of padding
	if _, err := unpacked(t, false, zeros, zeros); err != nil {
		t.Errorf("two layers: %v", err)
	}
	if _, err := unpacked(t, false, zeros, zeros, zeros); err == nil ||
		!strings.Contains(err.Error(), "layer 3: read archive: the image decompresses to much more than") {
		t.Errorf("three layers: %v", err)
	}
}

func TestLayers(t *testing.T) {
	below := archive(t, file{name: "./"}, file{name: "etc/"}, file{name: "etc/passwd", text: "root:x:0:0::/:/bin/sh\n"},
		file{name: "a/keep", text: "1"}, file{name: "a/gone", text: "1"}, file{name: "a/dir/x", text: "1"},
		file{name: "opaque/old", text: "1"}, file{name: "opaque/sub/old", text: "1"},
		file{name: "becomes-file/x", text: "1"}, file{name: "becomes-dir", text: "1"}, file{name: "bin",
			link: "usr/bin"},
		file{name: "late", hard: "target"}, file{name: "target", text: "t"})
	above := archive(t, file{name: "a/.wh.gone"}, file{name: "a/.wh.dir"}, file{name: "a/.wh.never"},
		file{name: "none/.wh.x"},
		file{name: "a/keep", text: "2"}, file{name: "opaque/sub/new", text: "2"}, file{name: "opaque/new", text: "2"},
		file{name: "opaque/.wh..wh..opq"}, file{name: ".wh..wh.plnk"}, file{name: "opaque/later", text: "2"},
		file{name: "becomes-file", text: "2"}, file{name: "becomes-dir/x", text: "2", head: tar.Header{}},
		file{name: "linked", hard: "target"}, file{name: "long", text: strings.Repeat("\x00", 200<<10) + "end"},
		file{name: "tool", text: "x", head: tar.Header{Mode: 0o4751, Uid: 1234, Gid: 5, PAXRecords: map[string]string{
			"SCHILY.xattr.user.kept": "v", "SCHILY.xattr.trusted.overlay.opaque": "y"}}},
		file{name: "null", head: tar.Header{Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3, Mode: 0o666}},
		file{name: "pipe", head: tar.Header{Typeflag: tar.TypeFifo}}, file{name: "broken", link: "/nowhere"})
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	// In the lower layer, becomes-dir is a file. This layer replaces it with a directory, and a
	// later layer has files in that directory.
	between := archive(t, file{name: "becomes-dir/"})
	dir, err := unpacked(t, false, layer{imageproto.Layer{DiffID: diffID(below)}, zipped(below)},
		layer{imageproto.Layer{DiffID: diffID(between)}, between},
		layer{imageproto.Layer{DiffID: diffID(above)}, enc.EncodeAll(above, nil)})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"a/keep": "2", "a/gone": "none", "a/dir/x": "none", "opaque/old": "none", "opaque/sub/old": "none",
		"opaque/sub/new": "2", "opaque/new": "2", "opaque/later": "2", "becomes-file": "2", "becomes-dir/x": "2",
		"late": "t", "linked": "t", "long": strings.Repeat("\x00", 200<<10) + "end", ".wh..wh.plnk": "none",
		"etc/passwd": "root:x:0:0::/:/bin/sh\n", "etc/group": "root:x:0:\nnogroup:x:65534:\n", "etc/machine-id": "",
	} {
		if got := text(dir, name); got != want {
			t.Errorf("%s: %.80q, want %.80q", name, got, want)
		}
	}
	var st unix.Stat_t
	status := func(name string) unix.Stat_t {
		t.Helper()
		if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return st
	}
	if s := status("long"); s.Blocks > 200 {
		t.Errorf("a file of zeros takes %d sectors", s.Blocks)
	}
	if s := status("tool"); s.Uid != 1234 || s.Gid != 5 || s.Mode != unix.S_IFREG|0o4751 || s.Mtim.Sec != 0 {
		t.Errorf("tool: %+v", s)
	}
	if s := status("null"); s.Rdev != unix.Mkdev(1, 3) || s.Mode != unix.S_IFCHR|0o666 {
		t.Errorf("null: %+v", s)
	}
	if s := status("pipe"); s.Mode&unix.S_IFMT != unix.S_IFIFO {
		t.Errorf("pipe: %+v", s)
	}
	if s := status("target"); s.Nlink != 3 {
		t.Errorf("target has %d names", s.Nlink)
	}
	if s := status("etc"); s.Mtim.Sec != 0 {
		t.Errorf("the time of a directory is %d", s.Mtim.Sec)
	}
	if to, err := os.Readlink(filepath.Join(dir, "broken")); to != "/nowhere" || err != nil {
		t.Errorf("broken: %q, %v", to, err)
	}
	var list [256]byte
	n, err := unix.Listxattr(filepath.Join(dir, "tool"), list[:])
	if err != nil || string(list[:n]) != "user.kept\x00" {
		t.Errorf("extended attributes %q, %v", list[:max(n, 0)], err)
	}
}

func TestHostileLayers(t *testing.T) {
	big := tar.Header{Typeflag: tar.TypeReg, Name: "big", Size: testSize + 1, Mode: 0o644}
	var lying bytes.Buffer
	if err := tar.NewWriter(&lying).WriteHeader(&big); err != nil {
		t.Fatal(err)
	}
	big.Size = 1 << 20
	var short bytes.Buffer
	if err := tar.NewWriter(&short).WriteHeader(&big); err != nil {
		t.Fatal(err)
	}
	zeros := zipped(make([]byte, 1<<20))
	bomb := bytes.Repeat(zeros, 200) // gzip decompresses concatenated members one after another
	for name, c := range map[string]struct {
		layer layer
		want  string
	}{
		"parent":               {plain(t, file{name: "../evil"}), `"../evil": the name leaves the image`},
		"parent in the middle": {plain(t, file{name: "a/../../evil"}), "leaves the image"},
		"long part":            {plain(t, file{name: strings.Repeat("n", 256)}), "has 256 bytes"},
		"through a link": {plain(t, file{name: "a", link: "/tmp"}, file{name: "a/evil"}),
			"passes through a symbolic link"},
		"through a link up": {plain(t, file{name: "a", link: "../.."}, file{name: "a/b/evil"}),
			"passes through a symbolic link"},
		"directory by a link": {plain(t, file{name: "a", link: "/tmp"}, file{name: "a/b/"}),
			"passes through a symbolic link"},
		"link over its files":  {plain(t, file{name: "a/b/c"}, file{name: "a/b", link: "/tmp"}), "appears twice"},
		"through a file":       {plain(t, file{name: "a"}, file{name: "a/b"}), "passes through a file"},
		"hard link out":        {plain(t, file{name: "a", hard: "../../etc/shadow"}), "leaves the image"},
		"hard link to nothing": {plain(t, file{name: "a", hard: "/etc/shadow"}), "no file of the image"},
		"hard link by a link": {plain(t, file{name: "e", link: "/etc"}, file{name: "a", hard: "e/shadow"}),
			"passes through a symbolic link"},
		"hard link to a dir": {plain(t, file{name: "d/"}, file{name: "a", hard: "d"}), "no file of the image"},
		"link as root":       {plain(t, file{name: "./", link: "/tmp"}), "root is not a directory"},
		"whiteout of parent": {plain(t, file{name: "a/x"}, file{name: "a/.wh..."}), "without the name of a file"},
		"whiteout of itself": {plain(t, file{name: "a/x"}, file{name: "a/.wh.."}), "without the name of a file"},
		"whiteout by a link": {plain(t, file{name: "a", link: "/"}, file{name: "a/.wh.tmp"}),
			"passes through a symbolic link"},
		"opaque by a link": {plain(t, file{name: "a", link: "/tmp"}, file{name: "a/.wh..wh..opq"}),
			"passes through a symbolic link"},
		"device number": {plain(t, file{name: "d", head: tar.Header{Typeflag: tar.TypeBlock, Devmajor: 1 << 12}}),
			"device 4096:0"},
		"owner":             {plain(t, file{name: "a", head: tar.Header{Uid: 1 << 32}}), "owner 4294967296:0"},
		"unknown type":      {plain(t, file{name: "a", head: tar.Header{Typeflag: 'Q'}}), "unsupported type"},
		"larger than disk":  {layer{data: lying.Bytes()}, "raise disk_mib"},
		"content is short":  {layer{data: short.Bytes()}, "unexpected EOF"},
		"bomb after an end": {layer{data: bomb}, "decompresses to much more than the disk holds"},
		"other content": {layer{imageproto.Layer{DiffID: diffID(nil)}, archive(t, file{name: "a"})},
			"the container image is damaged: content has digest sha256:"},
		"window":  {layer{data: []byte("\x28\xb5\x2f\xfd\x00\xf8\x01\x00\x00")}, "window size exceeded"},
		"no gzip": {layer{data: []byte("\x1f\x8bxxxxxxxxxxxxxxx")}, "gzip"},
	} {
		dir, err := unpacked(t, false, c.layer)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "layer 1: ") {
			t.Errorf("%s: %v, want an error with %q", name, err, c.want)
		}
		if _, err := os.Lstat(filepath.Join(filepath.Dir(dir), "evil")); err == nil {
			t.Errorf("%s: a file is outside of the tree", name)
		}
	}
	if _, err := os.Lstat("/tmp"); err != nil {
		t.Fatal(err)
	}
}

func TestManyHeadersAreRefused(t *testing.T) {
	one := archive(t, file{name: "a", link: "x", head: tar.Header{PAXRecords: map[string]string{
		"SCHILY.xattr.user.x": strings.Repeat("x", 1000<<10)}}})
	one = one[:len(one)-3*512] // remove the hard link itself and the end of the archive
	if _, err := unpacked(t, false, layer{data: bytes.Repeat(one, 10)}); err == nil ||
		!strings.Contains(err.Error(), "MiB of headers") {
		t.Errorf("extended headers without an entry: %v", err)
	}
}

func TestRecipeFiles(t *testing.T) {
	base := plain(t, file{name: "srv/", head: tar.Header{Mode: 0o711}}, file{name: "srv/old", text: "1"},
		file{name: "lib", link: "usr/lib"}, file{name: "etc/motd/"})
	files := func(list ...file) layer {
		return layer{imageproto.Layer{Files: true}, archive(t, list...)}
	}
	dir, err := unpacked(t, false, base, files(file{name: "srv/"}, file{name: "srv/old", text: "2"},
		file{name: "srv/.wh.x", text: "3"}, file{name: "new/a", text: "4"}))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"srv/old": "2", "srv/.wh.x": "3", "new/a": "4"} {
		if got := text(dir, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "srv")); err != nil || st.Mode().Perm() != 0o711 {
		t.Errorf("an existing directory has changed: %v, %v", st.Mode(), err)
	}
	for want, f := range map[string]file{
		"the base has a directory":              {name: "etc/motd"},
		"the base has a file or a symbolic lin": {name: "lib/"},
		"passes through a symbolic link":        {name: "lib/x"},
	} {
		if _, err := unpacked(t, false, base, files(f)); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.HasPrefix(err.Error(), "files of the recipe: ") {
			t.Errorf("%s: %v, want %q", f.name, err, want)
		}
	}
}

func TestAccount(t *testing.T) {
	debian := plain(t, file{name: "etc/passwd", text: "root:x:0:0:root:/root:/bin/bash\nubuntu:x:1000:1000::/:/bin/sh"},
		file{name: "etc/group", text: "root:x:0:\n"}, file{name: "etc/shadow", text: "root:*:1::::::\n",
			head: tar.Header{Mode: 0o640, Gid: 42}},
		file{name: "etc/shadow-linked", hard: "etc/shadow"}, file{name: "etc/skel/.profile", text: "p"},
		file{name: "etc/skel/sub/x", text: "q"},
		file{name: "etc/sudoers.d/"}, file{name: "usr/bin/bash"})
	dir, err := unpacked(t, true, debian)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"etc/passwd":         "root:x:0:0:root:/root:/bin/bash\nubuntu:x:1000:1000::/:/bin/sh\nuser:x:1001:1000::/home/user:/bin/bash\n",
		"etc/group":          "root:x:0:\nuser:x:1000:\n",
		"etc/shadow":         "root:*:1::::::\nuser:*::0:99999:7:::\n",
		"etc/shadow-linked":  "root:*:1::::::\nuser:*::0:99999:7:::\n",
		"home/user/.profile": "p", "home/user/sub/x": "q", "etc/sudoers.d/user": sudoersLine,
	} {
		if got := text(dir, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "home/user/sub/x"), &st); err != nil || st.Uid != 1001 || st.Gid != 1000 {
		t.Errorf("a file of the home directory: %+v, %v", st, err)
	}
	if err := unix.Stat(filepath.Join(dir, "etc/shadow"), &st); err != nil || st.Mode != unix.S_IFREG|0o640 ||
		st.Gid != 42 {
		t.Errorf("shadow: %+v, %v", st, err)
	}
	if dir, err = unpacked(t, true); err != nil || !strings.Contains(text(dir, "etc/passwd"),
		"user:x:1000:1000::/home/user:/bin/sh\n") {
		t.Errorf("an empty image: %q, %v", text(dir, "etc/passwd"), err)
	}
	has := plain(t, file{name: "etc/passwd", text: "user:x:7:7::/:/bin/sh\n"})
	if dir, err = unpacked(t, true, has); err != nil || text(dir, "etc/passwd") != "user:x:7:7::/:/bin/sh\n" {
		t.Errorf("an image with the account: %q, %v", text(dir, "etc/passwd"), err)
	}
	for want, l := range map[string]layer{
		"passes through a symbolic link": plain(t, file{name: "etc/passwd", link: "/etc/passwd"}),
		"no regular file":                plain(t, file{name: "etc/passwd/"}),
		"is larger than 1048576 bytes": plain(t, file{name: "etc/passwd", text: strings.Repeat("x",
			maxAccountBytes+1)}),
	} {
		if _, err := unpacked(t, true, l); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func FuzzLayer(f *testing.F) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "/"})
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "a/../b"})
	_ = w.Close()
	f.Add(buf.Bytes())
	f.Fuzz(func(t *testing.T, in []byte) {
		dir, _ := unpacked(t, true, layer{data: in})
		if list, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(list) != 1 {
			t.Errorf("files beside the tree: %v, %v", list, err)
		}
	})
}

// On a host, device nodes are omitted, and an error about a full disk does not suggest a larger
// image. Files that no archive describes have the time 0, so that the same input gives the same
// files.
func TestDirectoryOfAHost(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: files get owners")
	}
	dir := t.TempDir()
	var stream, answer bytes.Buffer
	l := plain(t, file{name: "dev/null", head: tar.Header{Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}},
		file{name: "tool", text: "t"})
	h := imageproto.Header{User: true, Layers: []imageproto.Layer{l.Layer}}
	if err := errors.Join(imageproto.WriteHeader(&stream, h),
		imageproto.WriteLayer(&stream, bytes.NewReader(l.data))); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	if code := Main([]string{dir, "1048576"}, &stream, &answer, &stderr); code != 0 {
		t.Fatalf("%d, %s", code, stderr.String())
	}
	if err := imageproto.ReadAnswer(&answer); err != nil {
		t.Fatal(err)
	}
	if text(dir, "tool") != "t" || text(dir, "dev/null") != "none" {
		t.Errorf("tool %q, a device %q", text(dir, "tool"), text(dir, "dev/null"))
	}
	for _, name := range []string{".", "etc", "etc/hosts", "etc/passwd", "root", "home", "home/user"} {
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil || name != "." && st.ModTime().Unix() != 0 {
			t.Errorf("%s: %v, %v", name, st.ModTime(), err)
		}
	}
	if err := (&tree{host: true}).full(unix.ENOSPC); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a full disk of the host: %v", err)
	}
	for _, args := range [][]string{nil, {dir}, {dir, "x"}, {dir, "0"}, {dir, "1", "2"}} {
		if code := Main(args, &stream, &answer, &stderr); code != 1 {
			t.Errorf("%q: %d", args, code)
		}
	}
	answer.Reset()
	if code := Main([]string{dir, "1048576"}, strings.NewReader("x"), &answer, &stderr); code != 0 {
		t.Errorf("a damaged stream: %d, %s", code, stderr.String())
	}
	var refused *imageproto.RefusedError
	if err := imageproto.ReadAnswer(&answer); !errors.As(err, &refused) ||
		!strings.Contains(refused.Reason, "read header") {
		t.Errorf("a damaged stream: %v", err)
	}
}
