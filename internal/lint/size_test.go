package lint

import (
	"go/ast"
	"testing"
)

// Limits of hand-written files, in lines. Beyond the soft ones a file or function is only listed
// (go test -v).
const (
	softFile     = 400
	hardFile     = 600
	softFunction = 60
	hardFunction = 100
)

func TestSizes(t *testing.T) {
	for _, s := range sources(t) {
		if s.generated {
			continue
		}
		switch {
		case s.lines > hardFile:
			t.Errorf("%s has %d lines, at most %d: cut it by subject", s.path, s.lines, hardFile)
		case s.lines > softFile:
			t.Logf("%s has %d lines, better at most %d", s.path, s.lines, softFile)
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || s.test() {
				continue
			}
			n := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1
			switch {
			case n > hardFunction:
				t.Errorf("%s: %s has %d lines, at most %d", s.path, f.Name.Name, n, hardFunction)
			case n > softFunction:
				t.Logf("%s: %s has %d lines, better at most %d", s.path, f.Name.Name, n, softFunction)
			}
		}
	}
}
