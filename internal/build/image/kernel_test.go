package image

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cavaliergopher/cpio"
)

func TestKernelPackagesInOrder(t *testing.T) {
	for name, want := range map[string]bool{
		"linux-image-6.12.117+deb12-cloud-amd64":          true,
		"linux-image-6.12.43+deb13+1-cloud-amd64":         true,
		"linux-image-6.12.117+deb12-cloud-amd64-unsigned": false,
		"linux-image-6.12.117+deb12-cloud-amd64-dbg":      false,
		"linux-image-6.12.117+deb12-amd64":                false,
		"linux-image-6.1.0-56-cloud-amd64":                false,
		"linux-image-6.12-cloud-amd64":                    false, // a metapackage without files
	} {
		if cloudPattern.MatchString(name) != want {
			t.Errorf("%s: accepted is %v", name, !want)
		}
	}
	parent := t.TempDir()
	if _, err := newestCached(parent); err == nil {
		t.Error("an empty cache has a kernel")
	}
	for _, dir := range []string{"6.12.9+deb12-cloud-amd64", "6.12.117+deb12-cloud-amd64", "user-0123",
		".6.12.118+deb12-cloud-amd64.staging"} {
		if err := os.Mkdir(filepath.Join(parent, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if v, err := newestCached(parent); err != nil || v != "6.12.117+deb12-cloud-amd64" {
		t.Errorf("newest in the cache: %q, %v", v, err)
	}
}

const fakeELF = "\x7fELF\x02\x01\x01\x00"

func TestUserKernel(t *testing.T) {
	cache, dir := t.TempDir(), t.TempDir()
	kernel := filepath.Join(dir, "vmlinux")
	// The first match is one of the kernel's format strings, not its version.
	text := fakeELF + strings.Repeat("x", 64) + "Linux version %s (%s)\x00Linux version 6.12.1-test (u@h) #1\x00"
	if err := os.WriteFile(kernel, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	agent := []byte(fakeELF + "agent")
	k, err := UserKernel(t.Context(), cache, kernel, agent)
	if err != nil {
		t.Fatal(err)
	}
	if k.Version != "6.12.1-test" || k.BzImage != "" || k.Modules != "" {
		t.Errorf("%+v", k)
	}
	if got, err := os.ReadFile(k.VMLinux); err != nil || string(got) != text {
		t.Errorf("vmlinux: %d bytes, %v", len(got), err)
	}
	checkInitrd(t, k.Initrd, agent)

	again, err := UserKernel(t.Context(), cache, kernel, agent)
	if err != nil || *again != *k {
		t.Errorf("second call: %+v, %v", again, err)
	}
	other, err := UserKernel(t.Context(), cache, kernel, append(agent, '2'))
	if err != nil || other.Initrd == k.Initrd || other.VMLinux != k.VMLinux {
		t.Errorf("another agent: %+v, %v", other, err)
	}
}

func checkInitrd(t *testing.T, file string, agent []byte) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	content := make(map[string]string)
	for r := cpio.NewReader(f); ; {
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
		content[h.Name] = string(data)
		if h.Name == "init" && h.Mode.Perm() != 0o755 {
			t.Errorf("init has mode %o", h.Mode.Perm())
		}
	}
	for _, name := range []string{"dev", "proc", "sys", "newroot", "dev/console", "init", "modules/order"} {
		if _, ok := content[name]; !ok {
			t.Errorf("no %s in %v", name, content)
		}
	}
	if content["init"] != string(agent) || content["modules/order"] != "" {
		t.Errorf("init %q, order %q", content["init"], content["modules/order"])
	}
}

// Initramfs adds the modules that are next to the kernel, wherever the kernel is. If there are no
// modules next to it, Initramfs adds none.
func TestInitramfs(t *testing.T) {
	kernel := filepath.Join(t.TempDir(), "vmlinux")
	agent := []byte("\x7fELF agent")
	p, err := Initramfs(kernel, agent)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(p, agent) || bytes.Contains(p, []byte(".ko")) {
		t.Errorf("without modules: %d bytes", len(p))
	}
	if err := os.Mkdir(filepath.Join(filepath.Dir(kernel), modulesName), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Initramfs(kernel, agent); err == nil {
		t.Error("an empty directory of modules was taken")
	}
}

func TestKernelErrors(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	good := write("good", []byte(fakeELF+"Linux version 6.12.1 (u@h)"))
	for what, c := range map[string]struct {
		kernel string
		agent  []byte
		want   string
	}{
		"missing":     {filepath.Join(dir, "none"), []byte(fakeELF), filepath.Join(dir, "none") + ": no such file"},
		"not kernel":  {write("text", bytes.Repeat([]byte("text"), 1000)), []byte(fakeELF), "not an x86 bzImage"},
		"no version":  {write("elf", []byte(fakeELF)), []byte(fakeELF), "no version"},
		"empty agent": {good, nil, "agent is not an ELF"},
	} {
		if _, err := UserKernel(t.Context(), t.TempDir(), c.kernel, c.agent); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", what, err, c.want)
		}
	}
}
