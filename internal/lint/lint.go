// Package lint checks the rules that the compiler does not know: which package may import which,
// what the binaries may link, how large files and functions may grow, and that every package says
// what it is.
//
// It is tests only and holds no code of the product. The rules and their reasons stand in the
// tables of its test files; docs/architecture.md tells the story behind them.
package lint
