package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// vmPkg is a package with tests that boot VMs.
type vmPkg struct {
	path  string
	tests []string // sorted
}

// pattern returns the argument of -run that selects the tests.
func (p vmPkg) pattern() string { return "^(" + strings.Join(p.tests, "|") + ")$" }

// discover returns the packages that have VM tests. The patterns in names select the packages to
// look at, as for go list.
func discover(ctx context.Context, names []string) ([]vmPkg, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles"},
		names...)...)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return nil, fmt.Errorf("go list: %w: %s", err, exit.Stderr)
		}
		return nil, fmt.Errorf("go list: %w", err)
	}
	var found []vmPkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath, Dir           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		var files []*ast.File
		for _, name := range append(p.TestGoFiles, p.XTestGoFiles...) {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			files = append(files, f)
		}
		if tests := vmTestsOf(files); len(tests) > 0 {
			found = append(found, vmPkg{p.ImportPath, tests})
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no VM tests: no test calls one of %s", strings.Join(needVM, ", "))
	}
	return found, nil
}

// needVM are the functions that make a test a VM test.
var needVM = []string{"vmtest.Load", "vmtest.NeedKVM", "opcount.Start"}

// vmTestsOf returns the tests that call vmtest.Load, vmtest.NeedKVM or opcount.Start, directly or
// through functions in these files. It compares functions only by their names, so it may return too many
// tests if two methods have the same name.
func vmTestsOf(files []*ast.File) []string {
	calls := make(map[string][]string) // by name of a function: the functions that call it
	var queue []string
	for _, f := range files {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && slices.Contains(needVM, x.Name+"."+n.Sel.Name) {
						queue = append(queue, fn.Name.Name)
					}
					calls[n.Sel.Name] = append(calls[n.Sel.Name], fn.Name.Name)
				case *ast.Ident:
					calls[n.Name] = append(calls[n.Name], fn.Name.Name)
				}
				return true
			})
		}
	}
	seen := make(map[string]bool)
	var tests []string
	for len(queue) > 0 {
		name := queue[0]
		queue = queue[1:]
		if seen[name] {
			continue
		}
		seen[name] = true
		if strings.HasPrefix(name, "Test") && name != "TestMain" {
			tests = append(tests, name)
			continue
		}
		queue = append(queue, calls[name]...)
	}
	slices.Sort(tests)
	return tests
}
