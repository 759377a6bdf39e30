package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	module = "github.com/forkd/forkd/"
	root   = "../.."
)

// pkg describes a package, with the fields of `go list`.
type pkg struct {
	ImportPath string
	Dir        string
	Name       string
	GoFiles    []string
	Imports    []string
	Deps       []string
}

// path returns the package's path in this repository.
func (p *pkg) path() string { return strings.TrimPrefix(p.ImportPath, module) }

// list returns the packages of the module, without test packages.
func list(t *testing.T) []pkg {
	t.Helper()
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command here: the import rules are checked where the code is built")
	}
	cmd := exec.Command(goTool, "list", "-json=ImportPath,Dir,Name,GoFiles,Imports,Deps", "./...")
	cmd.Dir = root
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
	}
	var pkgs []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) < 40 {
		t.Fatalf("go list found %d packages: the module is larger than that", len(pkgs))
	}
	return pkgs
}

// source is one parsed Go file.
type source struct {
	path      string // path in this repository
	file      *ast.File
	fset      *token.FileSet
	lines     int
	generated bool
}

func (s *source) test() bool { return strings.HasSuffix(s.path, "_test.go") }

// sources parses every Go file of the repository, tests included.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != root && isForeign(name) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		all = append(all, source{rel, f, fset, fset.File(f.FileStart).LineCount(), ast.IsGenerated(f)})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 200 {
		t.Fatalf("found %d Go files: the repository has more than that", len(all))
	}
	return all
}
