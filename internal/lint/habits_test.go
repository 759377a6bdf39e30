package lint

import (
	"go/ast"
	"go/token"
	"regexp"
	"strings"
	"testing"
)

// unfinished matches marks of unfinished work. Such work belongs in the issue tracker.
var unfinished = regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK)\b`)

func TestNothingIsPutOff(t *testing.T) {
	for _, s := range sources(t) {
		if strings.HasPrefix(s.path, "internal/lint/") {
			continue
		}
		for _, group := range s.file.Comments {
			for _, c := range group.List {
				if unfinished.MatchString(c.Text) {
					t.Errorf("%s: %s", s.fset.Position(c.Pos()), c.Text)
				}
			}
		}
	}
}

// TestNoHiddenWiring forbids init functions. Code should run only because other code calls it.
func TestNoHiddenWiring(t *testing.T) {
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" && !s.generated {
				t.Errorf("%s: func init hides when it runs; make it a call", s.fset.Position(f.Pos()))
			}
		}
	}
}

// TestNoMutablePackageState forbids assignments to package-level variables. It also forbids
// package-level locks, because they can only guard such variables. Tables and errors are
// initialized where they are declared.
func TestNoMutablePackageState(t *testing.T) {
	for _, s := range sources(t) {
		if s.generated || s.test() {
			continue
		}
		globals := map[string]bool{}
		for _, d := range s.file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			for _, spec := range g.Specs {
				v := spec.(*ast.ValueSpec)
				for _, n := range v.Names {
					globals[n.Name] = true
				}
				if sel, ok := v.Type.(*ast.SelectorExpr); ok && isIdent(sel.X, "sync") {
					t.Errorf("%s: a package-level sync.%s guards mutable package state", s.fset.Position(v.Pos()), sel.Sel)
				}
			}
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
				reportAssignments(t, &s, f, globals)
			}
		}
	}
}

// reportAssignments reports assignments in f to names of globals that f does not declare itself.
func reportAssignments(t *testing.T, s *source, f *ast.FuncDecl, globals map[string]bool) {
	local := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			for _, name := range n.Names {
				local[name.Name] = true
			}
		case *ast.ValueSpec:
			for _, name := range n.Names {
				local[name.Name] = true
			}
		case *ast.AssignStmt:
			for _, e := range n.Lhs {
				if id, ok := e.(*ast.Ident); ok && n.Tok == token.DEFINE {
					local[id.Name] = true
				} else if ok && globals[id.Name] && !local[id.Name] {
					t.Errorf("%s: %s is a package-level variable", s.fset.Position(n.Pos()), id.Name)
				}
			}
		}
		return true
	})
}

func isIdent(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}
