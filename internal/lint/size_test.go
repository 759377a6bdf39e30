package lint

import (
	"go/ast"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// Limits of hand-written files and functions, in lines. A file or function that exceeds a soft
// limit is only listed (go test -v).
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

// maxPackage is the maximum number of code lines in a package of the daemon's side. Tests, comments
// and blank lines do not count. Without a limit, the packages that every feature touches would
// become too large to understand.
const maxPackage = 4000

func TestPackagesOfTheHostAreBounded(t *testing.T) {
	lines := map[string]int{}
	for _, s := range sources(t) {
		if folder := filepath.Dir(s.path); strings.HasPrefix(folder, "internal/host/") && !s.test() && !s.generated {
			text, err := os.ReadFile(filepath.Join(root, s.path))
			if err != nil {
				t.Fatal(err)
			}
			lines[folder] += codeLines(text)
		}
	}
	if len(lines) == 0 {
		t.Fatal("no package was found")
	}
	largest := ""
	for folder, n := range lines {
		if n > maxPackage {
			t.Errorf("%s has %d lines of code, at most %d: take a subject out that stands by itself", folder, n, maxPackage)
		}
		if n > lines[largest] {
			largest = folder
		}
	}
	t.Logf("%s is the largest, with %d lines of code", largest, lines[largest])
}

// codeLines counts the lines of a file that contain code.
func codeLines(text []byte) int {
	files := token.NewFileSet()
	file := files.AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0)
	lines := map[int]bool{}
	for {
		pos, tok, literal := s.Scan()
		switch {
		case tok == token.EOF:
			return len(lines)
		case tok == token.SEMICOLON && literal == "\n":
			continue // a semicolon that the scanner has inserted
		}
		for n := range strings.Count(literal, "\n") + 1 {
			lines[file.Line(pos)+n] = true
		}
	}
}

func TestCodeLines(t *testing.T) {
	text := "// Package x does nothing.\npackage x\n\n/* no\ncode */\nvar a = `1\n2` // both\n\nvar b = 1 +\n\t2\n"
	if n := codeLines([]byte(text)); n != 5 {
		t.Errorf("%d lines of code, want 5", n)
	}
}

// maxWidth is the maximum number of characters in a line of code. A tab counts as one.
const maxWidth = 120

// longText is the minimum length of a string that may make its line exceed maxWidth. A text that is
// not broken into parts is easier to find and to read.
const longText = 60

func TestCodeIsNarrow(t *testing.T) {
	for _, s := range sources(t) {
		if s.generated {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, s.path))
		if err != nil {
			t.Fatal(err)
		}
		long := linesOfLongTexts(text)
		for i, line := range strings.Split(string(text), "\n") {
			// controller-gen reads each marker from one line.
			isMarker := strings.HasPrefix(line, "// +kubebuilder:") || strings.HasPrefix(line, "\t// +kubebuilder:")
			if n := utf8.RuneCountInString(line); n > maxWidth && !long[i+1] && !isMarker {
				t.Errorf("%s:%d has %d characters: break the line before %d", s.path, i+1, n, maxWidth+1)
			}
		}
	}
}

// linesOfLongTexts returns the numbers of the lines that contain a long string, or a part of a
// multi-line string.
func linesOfLongTexts(text []byte) map[int]bool {
	files := token.NewFileSet()
	file := files.AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0)
	long := map[int]bool{}
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			return long
		}
		first := file.Line(pos)
		last := first + strings.Count(literal, "\n")
		if tok == token.STRING && (last > first || utf8.RuneCountInString(literal) > longText) {
			for n := first; n <= last; n++ {
				long[n] = true
			}
		}
	}
}

func TestLinesOfLongTexts(t *testing.T) {
	text := "package x\n\nvar a = `1\n2`\nvar b = \"" + strings.Repeat("x", longText) + "\"\nvar c = \"short\" // " +
		strings.Repeat("x", maxWidth) + "\n"
	long := linesOfLongTexts([]byte(text))
	if len(long) != 3 || !long[3] || !long[4] || !long[5] {
		t.Errorf("%v, want lines 3 to 5", long)
	}
}
