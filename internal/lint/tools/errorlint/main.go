// Command errorlint reports comparisons of errors by == and type assertions on errors, which miss wrapped
// errors. `go vet -vettool` runs it and caches its findings; errorlint's own command does not support
// that.
package main

import (
	"github.com/polyfloyd/go-errorlint/errorlint"
	"golang.org/x/tools/go/analysis/unitchecker"
)

func main() { unitchecker.Main(errorlint.NewAnalyzer()) }
