package lint

import (
	"go/ast"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The map wholes has, by package, the types that give access to all sandboxes and snapshots, and
// the constructors of these types.
var wholes = map[string][]string{
	"internal/host/sandbox":   {"Manager", "New"},
	"internal/host/store":     {"Store", "Open"},
	"internal/host/workspace": {"Set", "Open"},
	"internal/host/event":     {"Ring", "NewRing", "Follower"},
}

// The map permitting has the methods of tenancy.Host that give access to a sandbox in a request
// without a principal. For each method, it lists the files that may call the method, because the
// code in these files checks such requests.
var permitting = map[string][]string{
	"Permitted": {"internal/daemon/face/streams.go", "internal/daemon/e2b/data.go"},
	"IDs":       {"internal/daemon/e2b/token.go"},
}

// TestHandlersSeeAView forbids the daemon's request handlers from using the types in the map
// wholes. A handler receives the tenancy.View of its request, so it cannot omit the check of the
// principal's rights. There are two exceptions. The file wire.go uses the Manager. The builders of
// templates and Dockerfiles also use it, because they create their own sandboxes.
func TestHandlersSeeAView(t *testing.T) {
	wired, handlers, permitted := 0, 0, 0
	for _, s := range sources(t) {
		if !strings.HasPrefix(s.path, "internal/daemon/") || s.test() {
			continue
		}
		free := s.path == "internal/daemon/wire.go" || strings.HasPrefix(s.path, "internal/daemon/template/") ||
			strings.HasPrefix(s.path, "internal/daemon/build/")
		handlers++
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if slices.Contains(wholes[s.packageOf(sel.X)], sel.Sel.Name) {
				if free {
					wired++
				} else {
					t.Errorf("%s: a face may not have %s.%s: it knows the sandboxes of all; use the request's tenancy.View",
						s.fset.Position(n.Pos()), sel.X, sel.Sel)
				}
			}
			if where, ok := permitting[sel.Sel.Name]; ok {
				if slices.Contains(where, s.path) {
					permitted++
				} else {
					t.Errorf("%s: %s is for requests without a principal, in %q", s.fset.Position(n.Pos()), sel.Sel, where)
				}
			}
			return true
		})
	}
	if wired == 0 || handlers == 0 || permitted == 0 {
		t.Errorf("%d files, %d names in the wiring, %d of permitted requests: the rule checks nothing", handlers, wired,
			permitted)
	}
}

// TestViewsHandOutNoWhole checks that no function of package tenancy returns a type in the map
// wholes, and that no exported field has such a type.
func TestViewsHandOutNoWhole(t *testing.T) {
	checked := 0
	for _, s := range sources(t) {
		if !strings.HasPrefix(s.path, "internal/host/tenancy/") || s.test() {
			continue
		}
		check := func(name string, fields *ast.FieldList) {
			if fields == nil || !ast.IsExported(name) {
				return
			}
			checked++
			ast.Inspect(fields, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok && slices.Contains(wholes[s.packageOf(sel.X)], sel.Sel.Name) {
					t.Errorf("%s: %s hands out a %s.%s", s.fset.Position(n.Pos()), name, sel.X, sel.Sel)
				}
				return true
			})
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				check(n.Name.Name, n.Type.Results)
			case *ast.Field:
				for _, name := range n.Names {
					if _, isStruct := n.Type.(*ast.FuncType); !isStruct {
						check(name.Name, &ast.FieldList{List: []*ast.Field{n}})
					}
				}
			}
			return true
		})
	}
	if checked == 0 {
		t.Error("package tenancy has no exported function: the rule checks nothing")
	}
}

// packageOf returns the path in this repository of the package that x names, or "".
func (s *source) packageOf(x ast.Expr) string {
	name, ok := x.(*ast.Ident)
	if !ok {
		return ""
	}
	for _, imp := range s.file.Imports {
		path, err := strconv.Unquote(imp.Path.Value)
		if err != nil {
			continue
		}
		own, ours := strings.CutPrefix(path, module)
		base := own[strings.LastIndexByte(own, '/')+1:]
		if imp.Name != nil {
			base = imp.Name.Name
		}
		if ours && base == name.Name {
			return own
		}
	}
	return ""
}
