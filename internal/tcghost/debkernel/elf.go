package debkernel

import (
	"cmp"
	"debug/elf"
	"regexp"
	"slices"
	"strconv"
)

// static reports whether path is an ELF executable that needs no dynamic loader.
func static(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

var number = regexp.MustCompile(`\d+`)

// compareVersions orders kernel versions by the numbers in them: 6.12.9 before 6.12.117.
func compareVersions(a, b string) int {
	return slices.CompareFunc(number.FindAllString(a, -1), number.FindAllString(b, -1), func(x, y string) int {
		m, errM := strconv.ParseUint(x, 10, 64)
		n, errN := strconv.ParseUint(y, 10, 64)
		if errM != nil || errN != nil {
			return cmp.Compare(x, y)
		}
		return cmp.Compare(m, n)
	})
}
