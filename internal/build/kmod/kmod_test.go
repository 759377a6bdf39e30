package kmod

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// object makes a minimal ELF file with a .modinfo section that lists dependencies.
func object(depends string) []byte {
	const ehdr, shdr = 64, 64
	info := []byte("license=GPL\x00depends=" + depends + "\x00name=x\x00")
	names := []byte("\x00.modinfo\x00.shstrtab\x00")
	le := binary.LittleEndian
	b := make([]byte, ehdr)
	copy(b, "\x7fELF\x02\x01\x01")
	le.PutUint16(b[16:], 1)  // ET_REL
	le.PutUint16(b[18:], 62) // EM_X86_64
	le.PutUint32(b[20:], 1)
	le.PutUint64(b[40:], uint64(ehdr+len(info)+len(names))) // e_shoff
	le.PutUint16(b[52:], ehdr)
	le.PutUint16(b[58:], shdr)
	le.PutUint16(b[60:], 3) // e_shnum
	le.PutUint16(b[62:], 2) // e_shstrndx
	b = append(append(b, info...), names...)
	section := func(name, kind uint32, off, size int) {
		s := make([]byte, shdr)
		le.PutUint32(s, name)
		le.PutUint32(s[4:], kind)
		le.PutUint64(s[24:], uint64(off))
		le.PutUint64(s[32:], uint64(size))
		b = append(b, s...)
	}
	section(0, 0, 0, 0)
	section(1, 1, ehdr, len(info))             // SHT_PROGBITS
	section(10, 3, ehdr+len(info), len(names)) // SHT_STRTAB
	return b
}

// modulesDir makes a modules directory. In the given map, the keys are paths of modules, and the
// values are their lists of dependencies.
func modulesDir(t *testing.T, modules map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for path, depends := range modules {
		full := filepath.Join(dir, "kernel", path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		data := object(depends)
		if filepath.Ext(path) == ".gz" {
			var buf bytes.Buffer
			w := gzip.NewWriter(&buf)
			w.Write(data)
			w.Close()
			data = buf.Bytes()
		}
		if err := os.WriteFile(full, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "modules.builtin"), []byte("kernel/drivers/virtio/virtio_pci.ko\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func names(modules []Module) []string {
	var out []string
	for _, m := range modules {
		out = append(out, m.Name)
	}
	return out
}

func TestCollectOrdersDependenciesFirst(t *testing.T) {
	dir := modulesDir(t, map[string]string{
		"net/virtio_net.ko":        "net_failover,virtio-pci",
		"net/net_failover.ko":      "failover",
		"net/failover.ko":          "",
		"arch/x86/kvm-amd.ko.gz":   "kvm,ccp",
		"arch/x86/kvm.ko":          "",
		"crypto/ccp.ko":            "",
		"never/named/unrelated.ko": "missing",
	})
	got, err := Collect(dir, []string{"virtio-net", "kvm_amd", "kvm", "virtio_pci"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"failover", "net_failover", "virtio_net", "kvm", "ccp", "kvm_amd"}
	if !slices.Equal(names(got), want) {
		t.Fatalf("got %v, want %v", names(got), want)
	}
	for _, m := range got {
		if !bytes.HasPrefix(m.Data, []byte("\x7fELF")) {
			t.Errorf("%s is not decompressed", m.Name)
		}
	}
}

func TestCollectRefuses(t *testing.T) {
	dir := modulesDir(t, map[string]string{"a.ko": "b", "b.ko": "a", "c.ko": "missing", "d.ko.lzo": ""})
	if _, err := Collect(dir, []string{"a"}); err == nil {
		t.Error("circular dependency: no error")
	}
	if _, err := Collect(dir, []string{"c"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("missing dependency: got %v, want ErrNotFound", err)
	}
	if _, err := Collect(dir, []string{"d"}); err == nil {
		t.Error("unknown compression: no error")
	}
	if err := os.WriteFile(filepath.Join(dir, "kernel", "e.ko"), []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Collect(dir, []string{"e"}); err == nil {
		t.Error("not an ELF file: no error")
	}
	if _, err := Collect(filepath.Join(dir, "nothing"), nil); err == nil {
		t.Error("no directory: no error")
	}
}

// Modules keep their signatures, and a signature does not hide the dependencies.
func TestCollectKeepsSignatures(t *testing.T) {
	dir := modulesDir(t, map[string]string{"a.ko": "b", "b.ko": ""})
	path := filepath.Join(dir, "kernel", "a.ko")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	signed := append(data, "sig\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03"+signatureMagic...)
	if err := os.WriteFile(path, signed, 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := Collect(dir, []string{"a"})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(names(got), []string{"b", "a"}) || !bytes.Equal(got[1].Data, signed) {
		t.Errorf("got %v, the signed one changed: %v", names(got), !bytes.Equal(got[1].Data, signed))
	}
}

func TestUnsigned(t *testing.T) {
	signed := func(body, signature string, length uint32) []byte {
		b := append([]byte(body+signature), make([]byte, 8)...)
		return append(binary.BigEndian.AppendUint32(b, length), signatureMagic...)
	}
	if got := Unsigned(signed("module", "sig", 3)); string(got) != "module" {
		t.Errorf("signed: got %q", got)
	}
	for name, in := range map[string][]byte{
		"not signed": []byte("module"), "empty": nil, "length too large": signed("module", "sig", 1<<32-1),
		"only the magic": []byte(signatureMagic),
	} {
		if got := Unsigned(in); !bytes.Equal(got, in) {
			t.Errorf("%s: got %q, want it unchanged", name, got)
		}
	}
}

// TestCollectRealModules needs FORKD_TEST_MODULES, the path of a lib/modules/<version> directory.
func TestCollectRealModules(t *testing.T) {
	dir := os.Getenv("FORKD_TEST_MODULES")
	if dir == "" {
		t.Skip("FORKD_TEST_MODULES is not set")
	}
	got, err := Collect(dir, []string{"virtio_pci", "kvm-amd", "virtio_net", "9p", "9pnet_virtio", "ext4"})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(names(got))
}
