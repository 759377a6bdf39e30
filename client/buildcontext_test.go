package client

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/forkd/forkd/api/v1"
)

// filesIn makes files with contents in a new directory. The content "link:TARGET" makes a symbolic
// link, "hard:NAME" a hard link to an existing file, and "pipe:" a pipe.
func filesIn(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, file := range files {
		name, content, _ := strings.Cut(file, "=")
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		kind, to, _ := strings.Cut(content, ":")
		switch kind {
		case "link":
			err = errors.Join(err, os.Symlink(to, path))
		case "hard":
			err = errors.Join(err, os.Link(filepath.Join(dir, to), path))
		case "pipe":
			err = errors.Join(err, unix.Mkfifo(path, 0o600))
		default:
			err = errors.Join(err, os.WriteFile(path, []byte(content), 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// packed returns the entries of a packed context in order, with their contents.
func packed(t *testing.T, dir, dockerfile string) (string, error) {
	t.Helper()
	c, err := OpenBuildContext(dir, dockerfile)
	if err != nil {
		return "", err
	}
	defer c.Close()
	var text bytes.Buffer
	out := tar.NewWriter(&text)
	if err := errors.Join(c.Pack(out), out.Close()); err != nil {
		return "", err
	}
	var all []string
	for in := tar.NewReader(&text); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return strings.Join(all, " "), nil
		}
		if err != nil {
			t.Fatal(err)
		}
		name, ok := strings.CutPrefix(h.Name, v1.BuildContext)
		if !ok {
			t.Errorf("entry %+v", h)
		}
		switch h.Typeflag {
		case tar.TypeSymlink:
			name += "->" + h.Linkname
		case tar.TypeReg:
			content, err := io.ReadAll(in)
			if err != nil {
				t.Fatal(err)
			}
			if h.Mode != 0o644 {
				name += fmt.Sprintf("(%o)", h.Mode)
			}
			if len(content) > 0 && len(content) < 10 {
				name += "=" + string(content)
			}
		case tar.TypeDir:
			if h.Mode != 0o755 {
				name += fmt.Sprintf("(%o)", h.Mode)
			}
		default:
			t.Errorf("%s has the type %c", name, h.Typeflag)
		}
		all = append(all, name)
	}
}

// A packed context lacks the entries that .dockerignore excludes. Symbolic links stay links, and
// hard links become files. An excluded directory with an exception below it is packed with its own
// mode.
func TestPackContext(t *testing.T) {
	dir := filesIn(t, "Dockerfile=FROM x # 1", "a.log=1", "keep.log=2", "sub/b.log=3", "sub/c=4", "out/big=5", "run=6",
		"l=link:/etc", "same=hard:sub/c", "out/deep/kept=7", ".dockerignore=**/*.log\n!keep.log\nout\n!out/deep/kept\n",
		"Dockerfile.dev=FROM x # 2", "Dockerfile.dev.dockerignore=sub\nD*\n/.dockerignore\n")
	if err := errors.Join(os.Chmod(filepath.Join(dir, "out"), 0o750),
		os.Chmod(filepath.Join(dir, "run"), 0o711|os.ModeSetuid)); err != nil {
		t.Fatal(err)
	}
	socket, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	for _, c := range []struct{ file, want string }{
		{"", ".dockerignore Dockerfile Dockerfile.dev Dockerfile.dev.dockerignore keep.log=2 l->/etc out/(750) out/deep/ " +
			"out/deep/kept=7 run(4711)=6 same=4 sub/ sub/c=4"},
		{"Dockerfile.dev", "a.log=1 keep.log=2 l->/etc out/(750) out/big=5 out/deep/ out/deep/kept=7 run(4711)=6 same=4"},
	} {
		got, err := packed(t, dir, c.file)
		if err != nil {
			t.Fatal(err)
		}
		got = strings.ReplaceAll(got, "Dockerfile=FROM x # 1", "Dockerfile")
		if got != c.want {
			t.Errorf("with %q:\n%s, want\n%s", c.file, got, c.want)
		}
	}
}

// A context is refused if it has a pipe, or a link that leads out of the context. The client does
// not wait for the pipe's writer, and the error names the file. Nothing outside the context is
// read.
func TestHostileContexts(t *testing.T) {
	outside := filesIn(t, "secret=*.txt", "D=FROM outside")
	secret := filepath.Join(outside, "secret")
	const link = ": the link leads to no file of the build context"
	for want, files := range map[string][]string{
		"/Dockerfile" + link:                    {"Dockerfile=link:" + secret},
		"/.dockerignore" + link:                 {"Dockerfile=FROM a", ".dockerignore=link:" + secret},
		"/Dockerfile.dockerignore" + link:       {"Dockerfile=FROM b", "Dockerfile.dockerignore=link:/no/such/file"},
		"/.dockerignore: it is a pipe":          {"Dockerfile=FROM c", ".dockerignore=pipe:"},
		"/Dockerfile: it is a pipe":             {"Dockerfile=pipe:"},
		"/Dockerfile: it is a directory":        {"Dockerfile/x=1"},
		"/sub/p: it is a pipe, and a build con": {"Dockerfile=FROM d", "sub/p=pipe:"},
		"/Dockerfile: no such file":             {"x=1"},
		`the pattern "[a-"`:                     {"Dockerfile=FROM e", ".dockerignore=x\n!y\n[a-\n"},
		"has more than 1048576 bytes":           {"Dockerfile=FROM f", ".dockerignore=" + strings.Repeat("#", 1<<20+1)},
		"Dockerfile has more than 1048576":      {"Dockerfile=" + strings.Repeat("#", 1<<20+1)},
	} {
		dir, began := filesIn(t, files...), time.Now()
		_, err := packed(t, dir, "")
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "txt") {
			t.Errorf("%v: %v, want %q", files, err, want)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%v: it took %v", files, took)
		}
	}
	for file, files := range map[string][]string{
		"":                               {"Dockerfile=link:sub/real", "sub/real=FROM a"}, // inside the context
		filepath.Join(outside, "D"):      {"x=1"},                                         // named by the caller
		filepath.Join("sub", "Dev.file"): {"sub/Dev.file=FROM a", "sub/p=pipe:", ".dockerignore=**/p"},
	} {
		if _, err := packed(t, filesIn(t, files...), file); err != nil {
			t.Errorf("%q of %v: %v", file, files, err)
		}
	}
}

// A file that is replaced by a link or a pipe after it was inspected is not read.
func TestContextsThatChange(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	a := filepath.Join(dir, "a")
	for name, replace := range map[string]func() error{
		"link":    func() error { return os.Symlink("secret", a) },
		"outside": func() error { return os.Symlink("/etc/passwd", a) },
		"file":    func() error { return os.Rename(filepath.Join(dir, "secret"), a) },
		"pipe":    func() error { return unix.Mkfifo(a, 0o600) },
	} {
		for name, content := range map[string]string{"a": "1", "secret": "2"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		info, err := root.Lstat("a")
		if err != nil {
			t.Fatal(err)
		}
		if f, err := openSame(root, "a", info); err != nil {
			t.Errorf("before it is a %s: %v", name, err)
		} else {
			f.Close()
		}
		leave := os.Remove // the new file may then get the same inode number
		if name == "file" {
			leave = func(a string) error { return os.Rename(a, a+".before") }
		}
		if err := errors.Join(leave(a), replace()); err != nil {
			t.Fatal(err)
		}
		if f, err := openSame(root, "a", info); err == nil {
			t.Errorf("it became a %s, and is read", name)
			f.Close()
		}
		if err := os.Remove(a); err != nil {
			t.Fatal(err)
		}
	}
}

// A context above the daemon's bounds is refused before all of it is sent.
func TestContextsAreBounded(t *testing.T) {
	for want, p := range map[string]packing{
		"more than 1048576 files": {entries: v1.MaxBuildEntries},
		"more than 64 MiB":        {names: v1.MaxBuildNames},
		"more than 8 GiB":         {bytes: v1.MaxBuildContent},
	} {
		err := p.count(&tar.Header{Name: v1.BuildContext + "x", Size: 1})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), ".dockerignore") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
