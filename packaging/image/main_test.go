package main

import (
	"archive/tar"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// The image for a registry or an engine has the program above the base, and a configuration that
// starts the program. Building it twice from the same files gives the same image.
func TestImage(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	dir := t.TempDir()
	base, program := filepath.Join(dir, "base.tar"), filepath.Join(dir, "forkd")
	f, err := os.Create(base)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	if err := w.WriteHeader(&tar.Header{Name: "etc/debian_version", Mode: 0o644, ModTime: time.Unix(0, 0)}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, []byte("the program"), 0o700); err != nil {
		t.Fatal(err)
	}
	digests := map[string]bool{}
	for _, file := range []string{"a.tar", "b.tar"} {
		out := filepath.Join(dir, file)
		if err := write(base, program, "1.2.3", out); err != nil {
			t.Fatal(err)
		}
		image, err := tarball.ImageFromPath(out, nil)
		if err != nil {
			t.Fatal(err)
		}
		digest, err := image.Digest()
		if err != nil {
			t.Fatal(err)
		}
		digests[digest.String()] = true
		cfg, err := image.ConfigFile()
		if err != nil || len(cfg.Config.Entrypoint) != 1 || cfg.Config.Entrypoint[0] != "/usr/bin/forkd" ||
			cfg.Config.Cmd[0] != "daemon" {
			t.Errorf("it starts %+v, %v", cfg.Config, err)
		}
		modes := map[string]int64{}
		files := mutate.Extract(image)
		r := tar.NewReader(files)
		for h, err := r.Next(); err == nil; h, err = r.Next() {
			modes[filepath.Clean(h.Name)] = h.Mode
		}
		files.Close()
		for name, want := range map[string]int64{"etc/debian_version": 0o644, "usr/bin/forkd": 0o755, "var/lib/forkd": 0o700,
			"var/cache/forkd": 0o700} {
			if modes[name] != want {
				t.Errorf("%s has the mode %#o, want %#o", name, modes[name], want)
			}
		}
	}
	if len(digests) != 1 {
		t.Errorf("two images of the same files: %v", digests)
	}
}
