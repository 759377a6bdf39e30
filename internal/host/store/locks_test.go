package store

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"
)

// No code may use the file system while it holds mu. Forks, lists and deletions wait for mu, so a
// slow disk would delay all of them.
func TestNoFileIsTouchedUnderMu(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, file := range files {
		if name := file.Name(); !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			held := underMu(f)
			if len(held) > 0 {
				seen++
			}
			for _, statement := range held {
				ast.Inspect(statement, func(n ast.Node) bool {
					if call, ok := n.(*ast.CallExpr); ok && touchesFiles(call) {
						t.Errorf("%s: %s touches files under mu", set.Position(call.Pos()), f.Name.Name)
					}
					return true
				})
			}
		}
	}
	if seen < 20 {
		t.Errorf("%d functions hold mu: the test looks at the wrong ones", seen)
	}
}

// underMu returns those statements of a function that run while mu is locked. If the function's
// name ends with Locked, these are all statements. In other functions, they are the statements
// after a lock that is unlocked by defer.
func underMu(f *ast.FuncDecl) []ast.Stmt {
	list := f.Body.List
	if strings.HasSuffix(f.Name.Name, "Locked") {
		return list
	}
	for i := 1; i < len(list); i++ {
		d, ok := list[i].(*ast.DeferStmt)
		if ok && selector(d.Call.Fun) == "s.mu.Unlock" && selectorOf(list[i-1]) == "s.mu.Lock" {
			return list[i+1:]
		}
	}
	return nil
}

// touchesFiles reports whether the name of a called function suggests that it uses the file system.
func touchesFiles(call *ast.CallExpr) bool {
	name := selector(call.Fun)
	for _, pkg := range []string{"os.", "unix.", "atomicfile.", "private.", "fileid."} {
		if strings.HasPrefix(name, pkg) {
			return true
		}
	}
	return slices.Contains([]string{"s.open", "s.openSized", "s.readBounded", "s.readManifest", "g.remove"}, name)
}

// selectorOf returns the name of the function that the statement calls.
func selectorOf(s ast.Stmt) string {
	if e, ok := s.(*ast.ExprStmt); ok {
		if call, ok := e.X.(*ast.CallExpr); ok {
			return selector(call.Fun)
		}
	}
	return ""
}

// selector returns the text of an expression that consists of names and dots.
func selector(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return selector(e.X) + "." + e.Sel.Name
	}
	return ""
}
