package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/bench/internal/lab"
	"github.com/forkd/forkd/internal/host/bake"
	"github.com/forkd/forkd/internal/vmtest"
)

func TestGuestAndMemoryFlags(t *testing.T) {
	good := bench{ns: lab.Numbers{List: []int{1}}, rounds: 1}
	for name, want := range map[string]uint64{"stub": 128, "linux": 512} {
		b := good
		b.guestName = name
		if err := b.check(); err != nil || b.memoryMiB != want {
			t.Errorf("%s: %d MiB, %v", name, b.memoryMiB, err)
		}
		b.memoryMiB = 64
		if err := b.check(); err != nil || b.memoryMiB != 64 {
			t.Errorf("%s with 64 MiB: %d MiB, %v", name, b.memoryMiB, err)
		}
	}
	for flag, b := range map[string]bench{
		"-guest": {guestName: "bsd"}, "-memory": {guestName: "linux", memoryMiB: 1 << 20},
	} {
		b.ns, b.rounds = good.ns, 1
		if err := b.check(); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%+v: %v", b, err)
		}
	}
}

// If the image of a recipe is missing, the error names the recipe.
func TestLinuxGuestWantsAnImage(t *testing.T) {
	d := &lab.Daemon{Assets: &vmtest.Assets{Images: map[string]string{"gone": filepath.Join(t.TempDir(), "gone")}}}
	if _, err := newLinuxGuest(d, "gone", 512); err == nil {
		t.Error("an image that is not there")
	}
	if _, err := newLinuxGuest(d, "unknown", 512); err == nil || !strings.Contains(err.Error(), "unknown") {
		t.Errorf("an unknown recipe: %v", err)
	}
}

// newVMDirs returns a peer and a function that makes directories for its VMs.
func newVMDirs(t *testing.T) (f *firecracker, vm func() string) {
	f = &firecracker{dir: t.TempDir(), snapshots: t.TempDir()}
	return f, func() string {
		dir, err := os.MkdirTemp(f.dir, "")
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
}

// All VMs share one disk, which is the image with the writes of the parent. A write of a child to
// the disk is an error.
func TestChildrenShareADisk(t *testing.T) {
	f, vm := newVMDirs(t)
	rootfs := filepath.Join(t.TempDir(), "rootfs")
	if err := os.WriteFile(rootfs, []byte("image"), 0o400); err != nil {
		t.Fatal(err)
	}
	g := &linuxGuest{parent: bake.Request{Rootfs: rootfs}}
	if _, err := g.configure(f); err != nil {
		t.Fatal(err)
	}
	write := func(dir, content string, at time.Time) {
		t.Helper()
		disk := filepath.Join(dir, diskFile)
		if err := errors.Join(os.WriteFile(disk, []byte(content), 0), os.Chtimes(disk, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	parent := vm()
	if err := g.setUp(f, parent); err != nil {
		t.Fatal(err)
	}
	write(parent, "IMAGE", time.Unix(1e9, 0))
	f.baked = true
	if err := g.saved(f); err != nil {
		t.Fatal(err)
	}
	child := vm()
	if err := g.setUp(f, child); err != nil {
		t.Fatal(err)
	}
	if p, err := os.ReadFile(filepath.Join(child, diskFile)); string(p) != "IMAGE" || err != nil {
		t.Errorf("a child's disk has %q (%v)", p, err)
	}
	if p, err := os.ReadFile(rootfs); string(p) != "image" || err != nil {
		t.Errorf("the image has %q (%v)", p, err)
	}
	write(child, "spoilt", time.Unix(2e9, 0))
	if err := g.setUp(f, vm()); err == nil || !strings.Contains(err.Error(), "disk") {
		t.Errorf("after a child has written: %v", err)
	}
}

func TestCopySparse(t *testing.T) {
	dir := t.TempDir()
	for name, at := range map[string][]int64{
		"empty": nil, "hole only": {}, "data first": {0}, "holes around data": {1 << 20, 5 << 20},
		"data at the end": {8<<20 - 4},
	} {
		from, err := os.Create(filepath.Join(dir, "from "+name))
		if err != nil {
			t.Fatal(err)
		}
		if at != nil {
			err = from.Truncate(8 << 20)
		}
		for _, at := range at {
			_, werr := from.WriteAt([]byte("data"), at)
			err = errors.Join(err, werr)
		}
		if err := errors.Join(err, from.Close()); err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, "to "+name)
		if err := copySparse(to, from.Name()); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want, err := os.ReadFile(from.Name())
		got, gerr := os.ReadFile(to)
		if err != nil || gerr != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes became %d, or others (%v, %v)", name, len(want), len(got), err, gerr)
		}
	}
}

// The template clears some bits, and leaves all others unchanged.
func TestWithoutXSAVE(t *testing.T) {
	hidden := map[string][]int{"0x1 ecx": {12, 26, 27, 28, 29}, "0x7 ebx": {3, 5, 8}}
	for _, leaf := range withoutXSAVE()["cpuid_modifiers"].([]fields) {
		for _, m := range leaf["modifiers"].([]fields) {
			name := leaf["leaf"].(string) + " " + m["register"].(string)
			bitmap, ok := strings.CutPrefix(m["bitmap"].(string), "0b")
			if !ok || len(bitmap) != 32 {
				t.Fatalf("%s: %q", name, m["bitmap"])
			}
			want := bytes.Repeat([]byte("x"), 32)
			for _, bit := range hidden[name] {
				want[31-bit] = '0'
			}
			if bitmap != string(want) {
				t.Errorf("%s: %s, want %s", name, bitmap, want)
			}
			delete(hidden, name)
		}
	}
	if len(hidden) > 0 {
		t.Errorf("not hidden: %v", hidden)
	}
}

func TestAwaitAnnouncement(t *testing.T) {
	listen := func() (net.Listener, string) {
		path := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l, path
	}
	for said, want := range map[string]bool{
		`{"version":5,"warm":["python"]}` + "\n": true,
		`{"errors":["no python3"]}` + "\n":       false,
		"nonsense":                               false,
		"":                                       false,
	} {
		l, path := listen()
		agent, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(agent, said); err != nil {
			t.Fatal(err)
		}
		agent.Close()
		if err := awaitAnnouncement(t.Context(), l); (err == nil) != want {
			t.Errorf("%q: %v", said, err)
		}
	}
	// If an agent never connects, the benchmark must not wait for ever.
	l, _ := listen()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := awaitAnnouncement(ctx, l); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody came: %v", err)
	}
}
