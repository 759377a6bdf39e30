// Package lint checks rules that the compiler does not check: which package may import which, what
// the binaries may link, how large files and functions may grow, and that every package documents
// its purpose.
//
// It contains only tests, no code of the product. The rules and their reasons are in the tables of
// its test files; docs/architecture.md gives the background.
package lint
