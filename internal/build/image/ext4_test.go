package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/forkd/forkd/internal/proto/imageproto"
)

// unpackProgram builds forkd-unpack. If the host cannot create file systems, it skips the test: if
// e2fsprogs is missing, or if the user is not root and has no subordinate ids.
func unpackProgram(t *testing.T) []byte {
	t.Helper()
	if err := errors.Join(require(toolMke2fs, toolFallocate), requireOwners(t.Context())); err != nil {
		t.Skipf("skipped, cannot build images here: %v", err)
	}
	name := filepath.Join(t.TempDir(), "forkd-unpack")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", name, "github.com/forkd/forkd/cmd/forkd-unpack")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

func debugfs(t *testing.T, fs, command string) string {
	t.Helper()
	out, err := exec.Command("/usr/sbin/debugfs", "-R", command, fs).Output()
	if err != nil {
		t.Fatalf("debugfs %s: %v", command, err)
	}
	return string(out)
}

// debianOf returns a function that writes the stream of a Debian base with the files of a recipe.
// That function calls open(ctx) to read the archive of the base.
func debianOf(r *Recipe, open func(ctx context.Context) (io.ReadCloser, error)) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		return writeStream(ctx, w, r, source{name: "debian:test", open: func() (io.ReadCloser, error) { return open(ctx) }})
	}
}

func TestHostUnpacksDebianBases(t *testing.T) {
	program := unpackProgram(t)
	name := filepath.Join(t.TempDir(), "rootfs")
	r := &Recipe{User: true, files: []overlayFile{{name: "srv/app", typ: tar.TypeReg, mode: 0o604, data: []byte("hello")}}}
	base := archive(t, dir("etc"), reg("etc/passwd"), tar.Header{Typeflag: tar.TypeReg, Name: "tool", Uid: 7, Gid: 8,
		Mode: 0o755}, tar.Header{Typeflag: tar.TypeChar, Name: "dev/null", Devmajor: 1, Devminor: 3})
	err := writeExt4(t.Context(), name, t.TempDir(), uuidOf(strings.Repeat("0", 32)), 64*mib, program,
		debianOf(r, func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(base)), nil }))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("/usr/sbin/e2fsck", "-fn", name).CombinedOutput(); err != nil {
		t.Errorf("e2fsck: %v\n%s", err, out)
	}
	for command, want := range map[string]string{
		"stat /tool": "User:     7   Group:     8", "cat /srv/app": "hello", "cat /etc/passwd": "\nuser:x:1000:",
		"stat /home/user": "Mode:  0755", "cat /etc/hosts": "127.0.0.1 localhost",
	} {
		if got := debugfs(t, name, command); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
	if got := debugfs(t, name, "ls /dev"); strings.Contains(got, "null") {
		t.Errorf("a device node: %s", got)
	}
}

func TestUnpackReportsTheFirstCause(t *testing.T) {
	program := filepath.Join(t.TempDir(), "forkd-unpack")
	if err := os.WriteFile(program, unpackProgram(t), 0o700); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	after := func(head []byte, err error) func(context.Context) (io.ReadCloser, error) {
		return func(context.Context) (io.ReadCloser, error) {
			r, w := io.Pipe()
			go func() {
				_, failed := w.Write(head)
				w.CloseWithError(errors.Join(err, failed))
			}()
			return r, nil
		}
	}
	endless := func(head []byte) func(context.Context) (io.ReadCloser, error) {
		return func(ctx context.Context) (io.ReadCloser, error) {
			r, w := io.Pipe()
			p := &producer{PipeReader: r, ended: make(chan struct{})}
			go func() {
				defer close(p.ended)
				w.CloseWithError(run(ctx, bytes.NewReader(head), w, nil, "sh", "-c", "cat; exec cat /dev/zero"))
			}()
			return p, nil
		}
	}
	for what, c := range map[string]struct {
		open func(context.Context) (io.ReadCloser, error)
		want string
	}{
		"source fails at once": {func(context.Context) (io.ReadCloser, error) { return nil, boom },
			"debian:test: boom"},
		"source fails late":                  {after(archive(t, reg("a"))[:512], boom), "debian:test: boom"},
		"source fails after a whole archive": {after(archive(t, reg("a")), boom), "debian:test: boom"},
		"refused": {endless(archive(t, reg("../a"))),
			`archive entry "../a": the name leaves the image`},
		"damaged": {after([]byte(strings.Repeat("x", 1024)), nil), "layer 1: read archive: "},
	} {
		err := runUnpack(t.Context(), asRoot(program, t.TempDir(), "1048576"), debianOf(&Recipe{}, c.open))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", what, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := runUnpack(ctx, asRoot(program, t.TempDir(), "1048576"), func(ctx context.Context, _ io.Writer) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	// If the program exits without an answer, that is an error even if its status is 0.
	err = runUnpack(t.Context(), []string{"true"}, func(_ context.Context, w io.Writer) error {
		return imageproto.WriteHeader(w, imageproto.Header{})
	})
	if err == nil {
		t.Error("a program without an answer passes")
	}
}
