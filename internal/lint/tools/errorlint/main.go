// Command errorlint reports comparisons of errors by == and type assertions on errors, because
// these miss wrapped errors. The errorlint library's own command cannot be run by `go vet
// -vettool`, which caches findings.
package main

import (
	"github.com/polyfloyd/go-errorlint/errorlint"
	"golang.org/x/tools/go/analysis/unitchecker"
)

func main() { unitchecker.Main(errorlint.NewAnalyzer()) }
