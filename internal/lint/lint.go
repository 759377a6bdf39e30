// Package lint checks rules that the compiler does not check: which packages a package may import,
// which packages a program may contain, how long files and functions may become, and whether every
// package documents its purpose.
//
// It contains only tests and is not part of the product. The rules and their reasons are in the
// tables of its test files; docs/architecture.md gives the background.
package lint
