// Command errorlint reports comparisons of errors by == and type assertions on errors, which miss wrapped
// ones. `go vet -vettool` runs it and caches what it finds; the program that errorlint comes with
// cannot be run so.
package main

import (
	"github.com/polyfloyd/go-errorlint/errorlint"
	"golang.org/x/tools/go/analysis/unitchecker"
)

func main() { unitchecker.Main(errorlint.NewAnalyzer()) }
