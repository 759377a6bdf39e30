//go:build race

package kvm

// serveNone: atomic operations call the race detector, which wants a processor of the Go scheduler.
const serveNone = true
