// Command errorlint reports comparisons of errors by == and type assertions on errors, which miss
// wrapped errors. It exists because `go vet -vettool`, which caches findings, cannot run the
// errorlint library's own command.
package main

import (
	"github.com/polyfloyd/go-errorlint/errorlint"
	"golang.org/x/tools/go/analysis/unitchecker"
)

func main() { unitchecker.Main(errorlint.NewAnalyzer()) }
