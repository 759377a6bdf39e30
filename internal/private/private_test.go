package private

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestDirIsMadePrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b")
	for range 2 { // the first call of Dir creates the directory, the second finds it
		d, err := Dir(path, "--x-dir")
		if err != nil {
			t.Fatal(err)
		}
		d.Close()
	}
	for _, p := range []string{path, filepath.Dir(path)} {
		if st, err := os.Stat(p); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", p, st.Mode(), err)
		}
	}
}

// Dir refuses a directory if another user can write to it or replace it.
func TestDirRefusesWhatIsNotPrivate(t *testing.T) {
	mkdir := func(t *testing.T, path string, mode os.FileMode) {
		t.Helper()
		if err := errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	chown := func(t *testing.T, path string) {
		t.Helper()
		if os.Getuid() != 0 {
			t.Skip("only root can give a directory away")
		}
		if err := os.Lchown(path, 4242, 4242); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		prepare func(t *testing.T, parent string) // creates parent/d, which Dir must refuse
		want    string
	}{
		"writable for all":     {func(t *testing.T, p string) { mkdir(t, p+"/d", 0o777) }, "chmod 700"},
		"readable for a group": {func(t *testing.T, p string) { mkdir(t, p+"/d", 0o750) }, "chmod 700"},
		"sticky":               {func(t *testing.T, p string) { mkdir(t, p+"/d", 0o777|fs.ModeSticky) }, "chmod 700"},
		"another user's": {func(t *testing.T, p string) { mkdir(t, p+"/d", 0o700); chown(t, p+"/d") },
			"belongs to user 4242"},
		"below another user's": {func(t *testing.T, p string) { mkdir(t, p+"/d", 0o700); chown(t, p) },
			"above it belongs to user 4242"},
		"below what all change": {func(t *testing.T, p string) { os.Chmod(p, 0o777) }, "above it is writable"},
		"below what a group changes": {func(t *testing.T, p string) {
			if err := os.Chown(p, -1, 4242); err != nil {
				t.Skip("only root can give a directory to a group")
			}
			os.Chmod(p, 0o770)
		}, "writable for group 4242"},
		"a file": {func(t *testing.T, p string) { os.WriteFile(p+"/d", nil, 0o600) }, "not a directory"},
		"a link": {func(t *testing.T, p string) {
			mkdir(t, p+"/other", 0o700)
			os.Symlink("other", p+"/d")
		}, "symbolic link"},
		"below another user's link": {func(t *testing.T, p string) {
			mkdir(t, p+"/other", 0o700)
			os.Symlink("other", p+"/l")
			chown(t, p+"/l")
		}, "above it belongs to user 4242"},
	} {
		t.Run(name, func(t *testing.T) {
			parent := filepath.Join(t.TempDir(), "p")
			mkdir(t, parent, 0o755)
			c.prepare(t, parent)
			path := filepath.Join(parent, "d")
			if _, err := os.Lstat(parent + "/l"); err == nil {
				path = filepath.Join(parent, "l", "d")
			}
			d, err := Dir(path, "--x-dir")
			if err == nil {
				d.Close()
				t.Fatal("accepted")
			}
			if text := err.Error(); !strings.Contains(text, c.want) || !strings.Contains(text, path) ||
				!strings.Contains(text, "--x-dir") {
				t.Errorf("%v: want %q, the path and the option in it", err, c.want)
			}
		})
	}
}

func TestOpenStaysBeneathAndNeverWaits(t *testing.T) {
	top := t.TempDir()
	dir, err := Dir(filepath.Join(top, "d"), "--x-dir")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	outside := filepath.Join(top, "outside")
	inside := filepath.Join(dir.Name(), "sub")
	if err := errors.Join(os.WriteFile(outside, []byte("secret"), 0o600), os.Mkdir(inside, 0o700),
		os.WriteFile(inside+"/file", []byte("x"), 0o600), os.Symlink(outside, inside+"/link"),
		os.Symlink("file", inside+"/near"), os.Symlink("sub", dir.Name()+"/way"),
		syscall.Mkfifo(inside+"/fifo", 0o600)); err != nil {
		t.Fatal(err)
	}
	f, err := Open(dir, "sub/file")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	for _, name := range []string{"sub/link", "sub/near", "way/file", "../outside", "sub/../../outside", outside,
		"sub/fifo", "sub", ""} {
		if f, err := Open(dir, name); err == nil {
			f.Close()
			t.Errorf("%q was opened", name)
		}
	}
	if _, err := Open(dir, "sub/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	for _, path := range []string{inside + "/near", inside + "/fifo", inside, "sub/file"} {
		if f, err := OpenPath(path); err == nil {
			f.Close()
			t.Errorf("%q was opened by its path", path)
		}
	}
}
