package initramfs

import (
	"bytes"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/cavaliergopher/cpio"
)

func build(t *testing.T) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := NewWriter(&buf)
	for _, err := range []error{
		w.File("/init", 0o755, []byte("binary")),
		w.Dir("proc", 0o555),
		w.File("lib/modules/a.ko", 0o644, bytes.Repeat([]byte("m"), 4097)),
		w.File("lib/modules/b.ko", 0o644, nil),
		w.Dir("lib", 0o700), // exists already
		w.Symlink("bin/sh", "busybox"),
		w.CharDevice("dev/console", 0o600, 5, 1),
		w.Close(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return buf.Bytes()
}

func TestArchiveReadsBack(t *testing.T) {
	archive := build(t)
	if len(archive)%512 != 0 {
		t.Errorf("length %d is not padded to 512", len(archive))
	}
	var got []string
	for r := cpio.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		line := h.Mode.String() + " " + h.Name
		if h.Linkname != "" {
			line += " -> " + h.Linkname
		}
		if len(data) > 0 && len(data) < 10 {
			line += " " + string(data)
		}
		got = append(got, line)
	}
	want := `0100755 init binary
040555 proc
040755 lib
040755 lib/modules
0100644 lib/modules/a.ko
0100644 lib/modules/b.ko
040755 bin
0120777 bin/sh -> busybox
040755 dev
020600 dev/console`
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
}

// The cpio command reads the device number, which the library cannot read.
func TestCpioCommandAgrees(t *testing.T) {
	path, err := exec.LookPath("cpio")
	if err != nil {
		t.Skip("no cpio command")
	}
	cmd := exec.Command(path, "-itv", "--quiet")
	cmd.Stdin = bytes.NewReader(build(t))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"crw-------", "5,   1", "dev/console", "bin/sh -> busybox"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestSameContentSameBytes(t *testing.T) {
	if !bytes.Equal(build(t), build(t)) {
		t.Error("two archives of the same content differ")
	}
}

func TestMistakesAreErrors(t *testing.T) {
	w := NewWriter(io.Discard)
	if err := w.File("a", 0o644, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.File("/a", 0o644, nil); err == nil {
		t.Error("the same name twice: no error")
	}
	if err := w.Close(); err == nil {
		t.Error("close after an error: no error")
	}
	w = NewWriter(io.Discard)
	if err := w.File("/", 0o644, nil); err == nil {
		t.Error("no name: no error")
	}
	w = NewWriter(io.Discard)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.File("late", 0o644, nil); err == nil {
		t.Error("file after Close: no error")
	}
}
