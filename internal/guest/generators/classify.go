package generators

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"strings"
)

// libraries are shared libraries with a generator in memory that cannot be reseeded from outside.
// OpenSSL is not included: drbg.go finds its generators whatever file they came from. Libraries
// that ask the kernel each time, such as libsodium, are not included either.
var libraries = []struct {
	pattern *regexp.Regexp // of the file's name
	name    string
}{
	{regexp.MustCompile(`^libcrypto(-\w+)?\.so\.(0|1\.0|[2-9]\d)`), "libcrypto of an OpenSSL before 1.1 or of LibreSSL"},
	{regexp.MustCompile(`^libgnutls(-\w+)?\.so`), "libgnutls"},
	{regexp.MustCompile(`^libgcrypt(-\w+)?\.so`), "libgcrypt"},
	{regexp.MustCompile(`^lib(freebl|softokn)\w*(-\w+)?\.so`), "nss"},
	{regexp.MustCompile(`^libsqlite3(-\w+)?\.so`), "libsqlite3"},
	{regexp.MustCompile(`^libmbedcrypto(-\w+)?\.so`), "libmbedcrypto"},
	{regexp.MustCompile(`^libwolfssl(-\w+)?\.so`), "libwolfssl"},
	{regexp.MustCompile(`^libbotan-\d(-\w+)?\.so`), "libbotan"},
	{regexp.MustCompile(`^(python\d|libpython\d)`), "python: random, hash()"},
	{regexp.MustCompile(`^_multiarray_umath\.`), "numpy.random"},
	{regexp.MustCompile(`^(node|libnode\.so.*)$`), "node: Math.random"},
	{regexp.MustCompile(`^deno$`), "deno: Math.random"},
	{regexp.MustCompile(`^bun$`), "bun: Math.random"},
	{regexp.MustCompile(`^libjvm\.so`), "java: Random, SplittableRandom, SecureRandom by SHA1PRNG or DRBG"},
	{regexp.MustCompile(`^(ruby[\d.]*|libruby)`), "ruby: Random, rand"},
	{regexp.MustCompile(`^(perl[\d.]*|libperl\.so)`), "perl: rand"},
	{regexp.MustCompile(`^(php[\d.]*|php-fpm.*|php-cgi.*|libphp.*)$`), "php: mt_rand"},
}

// traits are the conclusions from the files of a process about its generators.
type traits struct {
	repeats []string // names of libraries
	// ownHeap says that a runtime manages the program's memory, and that no C library in it draws
	// random numbers. It may be large, and is not searched.
	ownHeap bool
}

// classify looks at the names of the files that a process has mapped, and at its program.
func (p *process) classify(exe string) traits {
	var t traits
	java, openssl := false, false
	seen := map[string]bool{}
	for i := range p.regions {
		r := &p.regions[i]
		if !r.exec || !strings.HasPrefix(r.path, "/") || seen[r.path] {
			continue
		}
		seen[r.path] = true
		name := base(r.path)
		java = java || name == "libjvm.so"
		openssl = openssl || strings.HasPrefix(name, "libcrypto") || strings.Contains(name, "tcnative")
		for _, l := range libraries {
			if l.pattern.MatchString(name) {
				t.repeats = append(t.repeats, l.name)
			}
		}
	}
	goProgram, rust := p.builtBy(len(t.repeats) > 0)
	if goProgram {
		t.repeats = append(t.repeats, "go: math/rand")
	}
	if rust {
		t.repeats = append(t.repeats, "rust: crate rand")
	}
	t.ownHeap = (java || goProgram) && !openssl
	return t
}

// Marks of the tools that built a program: the ELF note with a Go build id (its type and owner),
// and the source paths of Rust crates in panic messages.
var (
	goNote    = []byte("\x04\x00\x00\x00Go\x00\x00")
	rustCrate = regexp.MustCompile(`/rand(_core|_chacha)?-0\.\d+\.\d+/src/`)
)

// maxRead bounds how much of a program's file is searched for marks.
const maxRead = 16 << 20

// builtBy reports whether a process's program was built by Go, or by Rust with the crate rand. A
// Rust program is recognized only if it still has its panic messages. If the program is known
// already, it does not search.
func (p *process) builtBy(known bool) (goProgram, rust bool) {
	f, err := os.Open(p.path(p.pid, "exe"))
	if err != nil {
		return false, false
	}
	defer f.Close()
	head := make([]byte, 16<<10)
	n, _ := io.ReadFull(f, head)
	if bytes.Contains(head[:n], goNote) {
		return true, false
	}
	return false, !known && p.hasRustCrate(f)
}

// hasRustCrate searches a program for the crate rand in steps, whose overlap no path exceeds.
func (p *process) hasRustCrate(f *os.File) bool {
	const overlap = 256
	buf := p.buffer()
	for at := int64(0); at < maxRead; at += int64(len(buf) - overlap) {
		n, err := f.ReadAt(buf, at)
		for text := buf[:n]; ; {
			i := bytes.Index(text, []byte("/rand"))
			if i < 0 {
				break
			}
			if loc := rustCrate.FindIndex(text[i:min(len(text), i+overlap)]); loc != nil && loc[0] == 0 {
				return true
			}
			text = text[i+1:]
		}
		if err != nil {
			return false
		}
	}
	return false
}
