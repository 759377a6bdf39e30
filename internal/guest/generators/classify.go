package generators

import (
	"fmt"
	"regexp"
	"slices"
)

// libraries lists the shared libraries and programs whose generator in memory cannot be reseeded
// from outside. OpenSSL is not listed, because drbg.go finds its generators in any file. Libraries
// that ask the kernel for each random number, such as libsodium, are not listed either.
var libraries = []struct {
	pattern *regexp.Regexp // matches the name of the file
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

// known returns the name of the generator in a library or program with the given file name. It
// returns "" if no generator is known.
func known(file string) string {
	for _, l := range libraries {
		if l.pattern.MatchString(file) {
			return l.name
		}
	}
	return ""
}

// classify returns the names of a process's generators that cannot be reseeded. It finds only
// generators that the process's mapped files reveal. It also reports whether the process may have a
// generator of OpenSSL.
func (p *process) classify() (repeats []string, openssl bool, err error) {
	for i := range p.regions {
		r := &p.regions[i]
		if len(r.inode) == 0 {
			continue
		}
		m, ok := p.mapped[string(r.inode)]
		if !ok {
			if m, err = p.marks(fmt.Sprintf("map_files/%x-%x", r.start, r.end), base(r.path)); err != nil {
				return nil, false, err
			}
			p.mapped[string(r.inode)] = m
		}
		openssl = openssl || m.openssl
		if r.exec && m.repeats != "" && !slices.Contains(repeats, m.repeats) {
			repeats = append(repeats, m.repeats)
		}
	}
	program, err := p.marks("exe", p.program)
	if err != nil {
		return nil, false, err
	}
	if program.rust && len(repeats) == 0 {
		repeats = append(repeats, "rust: crate rand")
	}
	if program.golang {
		repeats = append(repeats, "go: math/rand")
	}
	if !openssl {
		err = p.searchMemory(openSSL, func(r *region) bool { return r.loaded },
			func(uint64) error { openssl = true; return nil })
	}
	return repeats, openssl, err
}
